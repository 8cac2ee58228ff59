# SPDX-License-Identifier: Apache-2.0
import json
import socket
import subprocess
import sys
import threading

import pytest
import torch

from skest.distributed.cluster_status import as_line, as_table, cluster_status
from skest.distributed.observer import Observer
from skest.distributed.status import main
from skest.distributed.testing import LocalServers
from skest.distributed.wire import Message, Op, Status
from tests.distributed._training import Trainer

IDS = torch.tensor([0, 3, 3, 6])
N_STEPS = 5


@pytest.fixture
def training():
    """Two servers, which a worker has trained with, and the worker."""
    with LocalServers(2) as servers:
        worker = Trainer(servers.addresses).initialize().begin()
        for _ in range(N_STEPS):
            worker.step(IDS)
        yield servers.addresses, worker
        worker.close()


def nowhere():
    """Return an address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        return f"127.0.0.1:{opened.getsockname()[1]}"


def reply(step=7, generation=1, tasks=(), ps=0, memory=2**21):
    figures = {"memory_bytes": memory, "variable_bytes": 2048, "updates": step}
    control = {**figures, "up_for": 100.4, "ps": ps, "tasks": list(tasks)}
    return Message(Status.OK, generation, step, control=control)


def task(kind="worker", index=0, **changes):
    known = {"pushes": 4, "rate": 2.0, "staleness": [[0, 3], [2, 1]], "refused": 0}
    known |= {"bytes_in": 1024, "bytes_out": 2048, "has_left": False, "silent_for": 0.2}
    return {"task_type": kind, "task_index": index, **known, **changes}


def test_an_observer_sees_a_training(training):
    addresses, worker = training
    observer = Observer(addresses)
    status = observer.look()
    assert (status["step"], status["generation"]) == (N_STEPS, 1)
    assert [server["updates"] for server in status["servers"]] == [N_STEPS] * 2
    n_variables = sum(p.nbytes for p in worker.network.parameters())
    assert sum(s["variable_bytes"] for s in status["servers"]) == n_variables
    (found,) = status["tasks"]
    assert (found["task_type"], found["task_index"]) == ("worker", 0)
    assert (found["steps"], found["staleness"]) == (N_STEPS, [[0, N_STEPS]])
    assert found["rate"] > 0
    # The servers may still have to count what the worker was sent last.
    assert 0 < found["bytes_in"] <= sum(s.bytes_sent for s in worker.client._sessions)
    json.dumps(status)
    worker.step(IDS)
    assert observer.look()["step"] == N_STEPS + 1  # by the same sessions
    observer.close()
    assert observer.look()["step"] == N_STEPS + 1  # by new ones
    observer.close()


def test_refused_updates_are_counted(training):
    addresses, worker = training
    worker.client.generation = 7
    with pytest.raises(ConnectionError):
        worker.exchange.push()
    observer = Observer(addresses)
    assert observer.look()["tasks"][0]["refused"] == 2  # one on each server
    observer.close()


def test_nobody_waits_for_an_observer():
    with LocalServers(max_staleness=0) as servers:
        observer = Observer(servers.addresses)
        worker = Trainer(servers.addresses).initialize().begin()
        observer.look()
        thread = threading.Thread(target=lambda: [worker.step(IDS) for _ in range(3)])
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        stats = worker.client.ask(0, Message(Op.STATS)).control
        assert stats["active"] == []
        assert len(stats["tasks"]) == 1
        observer.close()
        worker.close()


def test_a_server_that_is_gone_is_a_line(training):
    addresses, _ = training
    gone = nowhere()
    observer = Observer([addresses[0], gone], timeout=1.0)
    status = observer.look()
    observer.close()
    assert status["step"] == N_STEPS
    assert f"There is no answer from ps at {gone}" in status["servers"][1]["problem"]
    (line,) = [line for line in as_table(status).splitlines() if gone in line]
    assert line.startswith("1   ")
    assert "ps 1: lost" in as_line(status)


def test_the_secret_is_needed(monkeypatch, capsys):
    with LocalServers(secret="s") as servers:
        monkeypatch.setenv("SKEST_SECRET", "t")
        assert main(["--ps", *servers.addresses]) == 1
        assert "set the same SKEST_SECRET" in capsys.readouterr().out
        monkeypatch.setenv("SKEST_SECRET", "s")
        assert main(["--ps", *servers.addresses]) == 0
        assert "not initialized yet" in capsys.readouterr().out


def test_an_empty_secret_is_none(monkeypatch, capsys):
    monkeypatch.setenv("SKEST_SECRET", "")
    with LocalServers() as servers:
        assert main(["--ps", *servers.addresses]) == 0
    assert "not initialized yet" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_writes_nothing_but_the_table():
    command = [sys.executable, "-m", "skest.distributed.status", "--timeout", "1"]
    done = subprocess.run(
        [*command, "--ps", nowhere()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 2


def test_the_command_reads_the_cluster_of_the_environment(
    training, monkeypatch, capsys
):
    cluster = {"chief": ["127.0.0.1:1"], "ps": training[0]}
    config = {"cluster": cluster, "task": {"type": "chief", "index": 0}}
    monkeypatch.setenv("SKEST_CONFIG", json.dumps(config))
    assert main(["--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert [server["address"] for server in status["servers"]] == training[0]
    assert status["step"] == N_STEPS


def test_the_command_looks_again_until_ctrl_c(training, monkeypatch, capsys):
    pauses = []

    def sleep(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("skest.distributed.status.time.sleep", sleep)
    assert main(["--watch", "0.5", "--json", "--ps", *training[0]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["step"] for line in lines] == [N_STEPS] * 3
    assert pauses == [0.5] * 3


def test_ctrl_c_while_nobody_has_answered(monkeypatch, capsys):
    def look(observer):
        raise KeyboardInterrupt

    monkeypatch.setattr("skest.distributed.observer.Observer.look", look)
    assert main(["--ps", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nobody to ask: give the addresses"),
        (
            ["--ps", "nonsense"],
            "must be 'host:port' with a port of at most 65535; got 'nonsense'",
        ),
        (["--watch", "0"], "--watch: must be a positive number of seconds; got '0'"),
        (
            ["--timeout", "x"],
            "--timeout: must be a positive number of seconds; got 'x'",
        ),
    ],
)
def test_wrong_arguments(arguments, message, monkeypatch, capsys):
    monkeypatch.delenv("SKEST_CONFIG", raising=False)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in " ".join(capsys.readouterr().err.split())


def test_figures_of_servers_are_put_together():
    first = reply(tasks=[task(), task("chief", has_left=True)])
    second = reply(step=6, ps=1, tasks=[task(pushes=3, silent_for=0.1, refused=2)])
    status = cluster_status({"h1:1": first, "h2:1": second})
    assert status["step"] == 7  # that of server 0
    chief, worker = status["tasks"]
    assert (chief["task_type"], chief["has_left"]) == ("chief", True)
    assert (worker["steps"], worker["refused"], worker["silent_for"]) == (4, 2, 0.1)
    assert (worker["bytes_in"], worker["bytes_out"]) == (2048, 4096)


def test_a_table():
    far = [[n, 10] for n in range(10)]
    tasks = [task("chief", has_left=True), task(staleness=far, pushes=100)]
    answers = {"h1:2222": reply(step=1234, tasks=tasks), "h2:2222": "It is gone."}
    assert as_table(cluster_status(answers)).splitlines() == [
        "step 1,234, generation 1",
        "",
        "task      steps  steps/s  staleness                                 in       "
        "out      refused  last heard",
        "chief 0   4      2.0      0: 75%, 2: 25%                            1.0 KiB  "
        "2.0 KiB  0        left",
        "worker 0  100    2.0      0: 10%, 1: 10%, 2: 10%, 3: 10%, 4-9: 60%  1.0 KiB  "
        "2.0 KiB  0        0.2 s ago",
        "",
        "ps  address  memory   variables  updates  up",
        "0   h1:2222  2.0 MiB  2.0 KiB    1,234    0:01:40 h",
        "1   h2:2222  It is gone.",
    ]


def test_a_line():
    tasks = [task(), task(index=1, staleness=[[0, 4]])]
    assert as_line(cluster_status({"h1:1": reply(tasks=tasks, memory=None)})) == (
        "2 tasks, 4.0 steps/s, staleness 0: 88%, 2: 12%, in 2.0 KiB, out 4.0 KiB, "
        "refused 0, ps 0: unknown"
    )
