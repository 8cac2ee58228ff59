# SPDX-License-Identifier: Apache-2.0
"""A script as all tasks of a cluster."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from skest.checkpoints.store import DirectoryStore
from skest.distributed import launch
from skest.distributed.launch import local_cluster, main
from tests.distributed._processes import wait_for

ROOT = Path(__file__).parents[2]
TELL = """
    import json, os, sys
    config = json.loads(os.environ["SKEST_CONFIG"])
    print(json.dumps([config, sys.argv[1:], os.environ.get("OMP_NUM_THREADS"),
                      os.environ["SKEST_SECRET"]]))
    """


def write(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_each_task_is_told_who_it_is(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    logs = tmp_path / "logs"
    options = ["--workers", "3", "--ps", "1", "--evaluator", "--log-dir", str(logs)]
    assert main([*options, write(tmp_path, TELL), "--rate", "3"]) == 0
    told = {path.stem: json.loads(path.read_text()) for path in logs.iterdir()}
    assert set(told) == {"chief-0", "worker-0", "worker-1", "ps-0", "evaluator-0"}
    (secret,) = {told[name][3] for name in told}
    assert len(secret) == 64
    for name, (config, arguments, threads, _) in told.items():
        kind, index = name.split("-")
        assert config["task"] == {"type": kind, "index": int(index)}
        assert config["cluster"] == told["chief-0"][0]["cluster"]
        assert arguments == ["--rate", "3"]
        assert threads == ("1" if kind == "ps" else None)


def test_the_secret_of_the_environment_is_that_of_the_tasks(tmp_path, monkeypatch):
    monkeypatch.setenv("SKEST_SECRET", "of all")
    options = ["--workers", "1", "--ps", "0", "--log-dir", str(tmp_path)]
    assert main([*options, write(tmp_path, TELL)]) == 0
    assert json.loads((tmp_path / "chief-0.log").read_text())[3] == "of all"


@pytest.mark.parametrize(("workers", "ps"), [(1, 0), (2, 1), (4, 3)])
def test_addresses_are_different(workers, ps):
    cluster = local_cluster(workers, ps)
    addresses = [address for of_kind in cluster.values() for address in of_kind]
    assert len(set(addresses)) == len(addresses) == workers + ps
    assert all(address.startswith("127.0.0.1:") for address in addresses)
    assert all(cluster.values())


def test_a_server_that_does_not_end_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(launch, "_SECONDS_FOR_SERVERS", 0.5)
    text = """
        import os, time
        if '"ps"' in os.environ["SKEST_CONFIG"].partition('"task"')[2]:
            time.sleep(1000)
        """
    assert main(["--workers", "1", "--ps", "1", write(tmp_path, text)]) == 0
    assert "ps-0 did not end in 0.5 s after all others" in capsys.readouterr().err


@pytest.mark.slow
def test_a_worker_that_stands_still_is_ended_behind_the_chief(tmp_path, capsys):
    """It waits for itself: it runs, and Python never gets to the end of it."""
    text = f"""
        import json, os, threading
        from skest.hooks import Hook
        from tests.distributed._role import run

        class Deadlock(Hook):
            def after_step(self, run, loss):
                lock = threading.Lock()
                lock.acquire()
                lock.acquire()

        task = json.loads(os.environ["SKEST_CONFIG"])["task"]
        hooks = [Deadlock()] if task["type"] == "worker" else []
        run({str(tmp_path / "model")!r}, {{"lease": 2.0, "max_steps": 20}}, hooks=hooks)
        """
    options = ["--workers", "2", "--ps", "1", "--log-dir", str(tmp_path / "logs")]
    assert main([*options, "--grace", "0.5", write(tmp_path, text)]) == 0
    told = capsys.readouterr().err
    assert "worker-0 did not end in 0.5 s after the chief, and is ended." in told
    assert (tmp_path / "model" / "ckpt-20").is_dir()


def test_a_worker_without_servers_may_go_on_behind_the_chief(tmp_path):
    text = """
        import os, time
        if '"worker"' in os.environ["SKEST_CONFIG"].partition('"task"')[2]:
            time.sleep(1)
            print("done")
        """
    logs = tmp_path / "logs"
    options = ["--workers", "2", "--ps", "0", "--grace", "0.1", "--log-dir", str(logs)]
    assert main([*options, write(tmp_path, text)]) == 0
    assert texts(logs)["worker-0"] == "done\n"


def test_a_task_that_dies_too_often_ends_all(tmp_path, capsys):
    text = """
        import os, time
        if '"worker"' in os.environ["SKEST_CONFIG"].partition('"task"')[2]:
            raise SystemExit(7)
        time.sleep(1000)
        """
    options = ["--max-restarts", "1", "--log-dir", str(tmp_path / "logs")]
    assert main([*options, write(tmp_path, text)]) == 1
    told = capsys.readouterr().err
    log = str(tmp_path / "logs" / "worker-0.log")
    assert f"status 7; what it wrote is in '{log}'; it is started again." in told
    assert f"status 7; what it wrote is in '{log}', after 1 restarts." in told


@pytest.mark.slow
def test_a_killed_server_lets_all_go_on_from_the_last_checkpoint(tmp_path, capsys):
    text = f"""
        import json, os, signal
        from pathlib import Path
        from skest.hooks import Hook
        from tests.distributed._role import run

        class KillServer(Hook):
            def after_step(self, run, loss):
                if run.global_step >= 20 and not Path("{tmp_path}/killed").exists():
                    Path("{tmp_path}/killed").touch()
                    os.kill(int(Path("{tmp_path}/ps").read_text()), signal.SIGKILL)

        task = json.loads(os.environ["SKEST_CONFIG"])["task"]
        if task["type"] == "ps":
            Path("{tmp_path}/ps").write_text(str(os.getpid()))
        hooks = [KillServer()] if task["type"] == "chief" else []
        run("{tmp_path}/model", {{"timeout": 30.0}}, hooks=hooks)
        """
    options = ["--workers", "2", "--ps", "1", "--log-dir", str(tmp_path / "logs")]
    assert main([*options, write(tmp_path, text)]) == 0
    told = capsys.readouterr().err
    assert "ps-0 was killed by signal 9" in told
    assert "all tasks are started again" in told
    assert DirectoryStore(tmp_path / "model").latest_step() >= 60
    # The second chief, in the same log, did not begin anew.
    chief = (tmp_path / "logs" / "chief-0.log").read_text()
    first, *others = map(int, re.findall(r"step (\d+): loss", chief))
    assert min(others) > first


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_let_tasks_save(tmp_path, number):
    text = """
        import time
        try:
            print("begin", flush=True)
            time.sleep(1000)
        except KeyboardInterrupt:
            print("saved", flush=True)
        """
    logs = tmp_path / "logs"
    command = [sys.executable, "-m", "skest.distributed.launch", "--log-dir", str(logs)]
    launcher = subprocess.Popen(
        [*command, write(tmp_path, text)], cwd=ROOT, preexec_fn=heed_ctrl_c
    )
    expected = {"chief-0": "begin\n", "worker-0": "begin\n", "ps-0": "begin\n"}
    wait_for(lambda: texts(logs) == expected)
    os.kill(launcher.pid, number)
    assert launcher.wait(60) == 130
    saved = "begin\nsaved\n"
    assert texts(logs) == {**expected, "chief-0": saved, "worker-0": saved}


def heed_ctrl_c():
    """Undo what a shell does to commands with an ampersand."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def texts(logs):
    return {path.stem: path.read_text() for path in logs.glob("*.log")}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "0", "x.py"], "--workers: must be an integer >= 1; got 0"),
        (["--ps", "-1", "x.py"], "--ps: must be an integer >= 0; got -1"),
        (["--grace", "0", "x.py"], "--grace: must be > 0 and <= 86400 seconds; got 0"),
        (["nowhere.py"], "there is no script 'nowhere.py'"),
        ([], "required: script"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err
