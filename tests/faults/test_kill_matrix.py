# SPDX-License-Identifier: Apache-2.0
"""Every task is killed, frozen, and stopped for good at every moment; training ends."""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from skest.checkpoint_store import DirectoryStore
from skest.distributed.launch import local_cluster
from skest.distributed.supervisor import Supervisor, Task
from skest.exceptions import TaskFailedError
from tests.distributed import _role
from tests.distributed._processes import is_running, wait_for

SCRIPT = Path(__file__).with_name("_strikes.py")
SECONDS = 60.0  # for each blow, on a loaded machine
SECONDS_TO_END = 90.0
FROZEN = 4.0  # seconds; longer than a lease
LEASE = 3.0  # of who sees to the tasks, when one is stopped for good
# What befalls a task: a signal, and whether one follows that wakes it.
BLOWS = {
    "kill": (signal.SIGKILL, False),
    "stop": (signal.SIGSTOP, True),
    "still": (signal.SIGSTOP, False),
}
SETTINGS = {"max_steps": 200, "save_steps": 10, "pause": 0.002}

# Who waits at which moment while a task is struck. Workers have no part in saving and
# restoring: they are struck while the chief does so.
LOSE_PS = ("ps-1", "chief-0", "pushes")  # so that all are restored
MOMENTS = {
    "worker-0": {
        "init": [("worker-0", "connected")],
        "step": [("worker-0", "pushes")],
        "save": [("chief-0", "saves")],
        "restore": [LOSE_PS, ("chief-0", "initializes")],
    },
    "ps-0": {
        "init": [("ps-0", "is initialized")],
        "step": [("ps-0", "has applied")],
        "save": [("ps-0", "is saved")],
        "restore": [LOSE_PS, ("ps-0", "is initialized")],
    },
    "chief-0": {
        "init": [("chief-0", "initializes")],
        "step": [("chief-0", "pushes")],
        "save": [("chief-0", "saves")],
        "restore": [LOSE_PS, ("chief-0", "initializes")],
    },
    "evaluator-0": {
        "init": [("evaluator-0", "starts")],
        "step": [("evaluator-0", "evaluates")],
        "save": [("evaluator-0", "records")],
        "restore": [("evaluator-0", "restores")],
    },
}


def blows(victim, blow):
    """Return (who is struck, blow, who waits, at which moment, what it is called)."""
    found = []
    for name, waits in MOMENTS[victim].items():
        for wait in waits:
            if wait == LOSE_PS:
                found.append(("ps-1", "kill", *wait[1:], f"before {name}"))
            else:
                found.append((victim, blow, *wait, name))
    return found


def tasks(directory, planned, with_evaluator, **changes):
    """Return the tasks of a cluster: a chief, a worker and two servers."""
    cluster = local_cluster(2, 2)
    names = [f"{kind}-{i}" for kind, all_ in cluster.items() for i in range(len(all_))]
    names += ["evaluator-0"] if with_evaluator else []
    moments = [part for _, _, waiter, moment, _ in planned for part in (waiter, moment)]
    arguments = [
        SCRIPT,
        directory / "model",
        json.dumps({**SETTINGS, **changes}),
        directory,
        *moments,
    ]
    for name in names:
        kind, _, index = name.partition("-")
        task = {"cluster": cluster, "task": {"type": kind, "index": int(index)}}
        yield Task(
            name,
            ["--script", *map(str, arguments)],
            environ={
                "SKEST_CONFIG": json.dumps(task),
                "OMP_NUM_THREADS": "1",
                "RES_OPTIONS": "timeout:1 attempts:1",
            },
        )


def send(supervisor, directory, number, blow):
    """Send a signal when its moment is there."""
    victim, what, *_ = blow
    sent, _ = BLOWS[what]

    def is_reached():
        supervisor.check()
        return (directory / f"reached-{number}").exists()

    try:
        wait_for(is_reached, SECONDS)
    except AssertionError:
        pytest.fail(f"{blow} was not reached in {SECONDS:g} s")
    wait_for(lambda: victim in supervisor.pids, SECONDS)
    pid = supervisor.pids[victim]
    os.kill(pid, sent)
    if sent == signal.SIGKILL:
        wait_for(lambda: supervisor.pids.get(victim) != pid, SECONDS)
    (directory / f"struck-{number}").touch()
    return pid


def strike(supervisor, directory, number, blow):
    """Send a signal, and wake who is to wake; all others are started again."""
    victim, what, *_ = blow
    pid = send(supervisor, directory, number, blow)
    if BLOWS[what][1]:
        time.sleep(FROZEN)
        os.kill(pid, signal.SIGCONT)
    else:
        wait_for(lambda: supervisor.pids.get(victim) != pid, SECONDS)
    return pid


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("blow", BLOWS)
@pytest.mark.parametrize("victim", MOMENTS)
def test_training_ends_by_itself(tmp_path, victim, blow):
    planned = blows(victim, blow)
    pids = set()
    lease = LEASE if blow == "still" else SECONDS
    options = {"max_restarts": 9, "log_dir": tmp_path / "logs", "lease": lease}
    with Supervisor(**options) as supervisor:
        for task in tasks(tmp_path, planned, victim == "evaluator-0"):
            supervisor.start(task)
        for i, blow in enumerate(planned):
            pids |= {strike(supervisor, tmp_path, i, blow), *supervisor.pids.values()}
        assert supervisor.wait(SECONDS_TO_END), f"{list(supervisor.pids)} did not end"
        killed = [name for name, what, *_ in planned if what != "stop"]
        assert supervisor.restarts == {
            name: killed.count(name) for name in supervisor.restarts
        }
    assert not any(map(is_running, pids))
    checkpoint = DirectoryStore(tmp_path / "model").latest()
    assert checkpoint.global_step >= SETTINGS["max_steps"]
    assert all(torch.isfinite(v).all() for v in checkpoint.variables.values())
    assert not [p.name for p in (tmp_path / "model").iterdir() if p.name[0] == "."]
    settings = {**_role.SETTINGS, **SETTINGS}
    estimator = _role.make_estimator(tmp_path / "model", settings)
    loss = estimator.evaluate(lambda: _role.batches(5), steps=5)["loss"]
    assert loss < 1.0


@contextlib.contextmanager
def left_alone(directory, victim):
    """Yield who sees to a cluster in which a task stands still, and lets it."""
    blow = (victim, "still", *MOMENTS[victim]["step"][0], "step")
    options = {"max_restarts": 0, "log_dir": directory / "logs", "lease": 1e3}
    with Supervisor(**options) as supervisor:
        for task in tasks(directory, [blow], True, attach_timeout=20.0):
            supervisor.start(task)
        send(supervisor, directory, 0, blow)
        yield supervisor


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("victim", ["worker-0", "evaluator-0"])
def test_all_others_end_without_one_that_stands_still(tmp_path, victim):
    with left_alone(tmp_path, victim) as supervisor:
        others = supervisor.restarts.keys() - {victim}
        assert supervisor.wait(SECONDS_TO_END, others)
        assert list(supervisor.pids) == [victim]
    checkpoint = DirectoryStore(tmp_path / "model").latest()
    assert checkpoint.global_step >= SETTINGS["max_steps"]


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_nobody_waits_for_ever_for_a_server_that_stands_still(tmp_path):
    expected = r"(?s)(chief|worker)-0 ended with exit status 1.*TimeoutError: The param"
    with (
        left_alone(tmp_path, "ps-0") as supervisor,
        pytest.raises(TaskFailedError, match=expected),
    ):
        supervisor.wait(SECONDS_TO_END)
    assert not supervisor.pids
