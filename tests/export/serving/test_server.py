# SPDX-License-Identifier: Apache-2.0
import re
import shutil
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from skest.command_line import main, serve
from skest.export.serving.server import ModelServer
from tests.export.serving import _single
from tests.export.serving._clients import Client, connect, post, until

PREDICT = "/v1/models/double:predict"


@pytest.fixture
def base(tmp_path):
    _single.write(tmp_path / "double" / "1700000000")
    return tmp_path / "double"


def test_health_is_answered_while_models_are_loaded(base, monkeypatch):
    server = ModelServer({"double": base}, port=0)
    go, refresh = threading.Event(), server._catalog.refresh
    monkeypatch.setattr(server._catalog, "refresh", lambda: go.wait(60) and refresh())
    with ThreadPoolExecutor(1) as pool:
        started = pool.submit(server.start)
        ask = Client(server)
        assert ask("/v2/health/live")[0] == 200
        assert ask("/v2/health/ready")[0] == 503
        go.set()
        started.result()
        assert ask("/v2/health/ready")[0] == 200
    server.stop()


def test_without_onnxruntime(base, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    server = ModelServer({"double": base}, port=0)
    with pytest.raises(ImportError, match="needs onnxruntime"):
        server.start()
    with pytest.raises(OSError):
        connect(server)
    monkeypatch.setattr(serve.signal, "signal", lambda *_: None)
    assert main(["serve", str(base), "--port", "0"]) == 2
    assert "needs onnxruntime" in capsys.readouterr().err


def test_a_taken_port(base):
    with ModelServer({"double": base}, port=0) as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(
            OSError,
            match=f"no server at 127.0.0.1:{port}: .* in use. Choose another port",
        ):
            ModelServer({"double": base}, port=port)


class Blocked:
    """Makes the calls of a model wait."""

    def __init__(self, server, monkeypatch):
        self.busy, self.go = threading.Event(), threading.Event()
        model = server._catalog.served("double").newest[1]
        run = model.run

        def slow(*arguments):
            self.busy.set()
            assert self.go.wait(60)
            return run(*arguments)

        monkeypatch.setattr(model, "run", slow)


def test_running_requests_are_finished(base, monkeypatch):
    server = ModelServer({"double": base}, port=0).start()
    blocked = Blocked(server, monkeypatch)
    probe = Client(server)
    assert probe("/v2/health/ready")[0] == 200
    with ThreadPoolExecutor(2) as pool:
        client = Client(server)
        answer = pool.submit(client, PREDICT, {"instances": [1]})
        assert blocked.busy.wait(60)
        stopped = pool.submit(server.stop)
        until(lambda: not server.ready)
        status, document = probe("/v2/health/ready")
        assert status == 503 and "not ready" in document["error"]
        assert probe.response.headers["Connection"] == "close"
        fresh = Client(server)
        status, document = fresh(PREDICT, {"instances": [1]})
        assert status == 503 and "stopping" in document["error"]
        assert Client(server)("/v2/models/double/ready")[0] == 503
        assert not stopped.done()
        blocked.go.set()
        assert answer.result() == (200, {"predictions": [[2.0]]})
        assert stopped.result() is True
    with pytest.raises(OSError):
        connect(server)


SLOW = """
import atexit, sys, time
from skest.command_line import main
from skest.export.serving.requests import Call

atexit.register(print, "the interpreter ends")
def run(*arguments):
    print("at work", flush=True)
    time.sleep(60)

Call.run = run
sys.exit(main(["serve", sys.argv[1], "--port", "0", "--grace", "0.1"]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_process_whose_requests_take_too_long_ends_at_once(base):
    # An engine at work in a thread aborts the process when the interpreter ends.
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, f"double={base}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    process.url = process.stdout.readline().split()[-1]
    with connect(process) as connection:
        connection.sendall(post(PREDICT, b'{"instances": [1]}'))
        assert process.stdout.readline() == "at work\n"
        process.terminate()
        printed, log = process.communicate(timeout=60)
    assert process.returncode == 1
    assert printed == ""
    assert "Traceback" not in log


@pytest.fixture
def process(base):
    """A server in a process of its own, and where it listens."""
    command = [sys.executable, "-m", "skest", "serve", f"double={base}"]
    process = subprocess.Popen(
        [*command, "--port", "0", "--poll-seconds", "0.05", "--timeout", "5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    process.url = re.fullmatch(r"Serving at (http://127.0.0.1:\d+)\n", line)[1]
    yield process
    process.kill()
    process.communicate()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_a_process_stops_when_it_is_asked_to(process, base):
    ask = Client(process)
    assert ask(PREDICT, {"instances": [1]})[1] == {"predictions": [[2.0]]}
    _single.write(base / "1700000001", 5.0)
    until(lambda: ask(PREDICT, {"instances": [1]})[1] == {"predictions": [[5.0]]})
    process.send_signal(signal.SIGTERM)
    _, log = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "Traceback" not in log
    assert "Version 1700000001 of" in log


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{base}/nothing"], "There is no directory"),
        (["{base}", "{base}"], "Two models are called 'double'"),
        (["{base}", "--port", "65536"], "'port' must be from 0 to 65535; got 65536"),
        (["{base}", "--max-rows", "0"], "'max_rows' must be positive"),
    ],
)
def test_wrong_command_lines(base, capsys, monkeypatch, arguments, message):
    monkeypatch.setattr(serve.signal, "signal", lambda *_: None)
    assert main(["serve", *(text.format(base=base) for text in arguments)]) == 2
    assert message in capsys.readouterr().err


def test_what_can_not_be_served_from_the_beginning(base, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(serve.signal, "signal", lambda *_: None)
    shutil.copytree(base, tmp_path / "damaged")
    for model in (tmp_path / "damaged").glob("*/model.onnx"):
        model.write_bytes(model.read_bytes() + b"x")
    paths = [f"sound={base}", str(tmp_path / "damaged")]
    assert main(["serve", *paths, "--port", "0", "--no-trial"]) == 2
    error = (
        "serve: error: No version of 'damaged' can be served: .* incomplete or damaged"
    )
    assert re.search(error, capsys.readouterr().err)


def test_names_of_models(base):
    for argument in (f"{base}", f"{base}/", f"{base}/1700000000", f"double={base}"):
        assert list(serve._models([argument])) == ["double"]
