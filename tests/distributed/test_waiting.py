# SPDX-License-Identifier: Apache-2.0
"""Tests of `skest.distributed.local`: nobody waits for ever for one who stands still."""

import logging
import os
import signal

import pytest

from skest import Estimator, RunConfig
from skest.distributed import AsyncParameterServer, SharedMemory
from skest.distributed import local as waiting
from skest.distributed.local import Silence, wait_for_workers
from skest.distributed.supervisor import Supervisor, Task
from skest.exceptions import TaskFailedError
from skest.hooks import Hook
from tests.distributed._local import linear_model_fn, replica_of, slow_batches
from tests.distributed._processes import wait_for
from tests.distributed.test_supervisor import script


class Stopping(Hook):
    """Lets the worker stand still for good, once, when it has begun."""

    def begin(self, run):
        self.supervisor, parts = replica_of(run).supervisor, replica_of(run).parts
        wait_for(lambda: self.supervisor.check() or not parts.is_alone(run))
        os.kill(self.supervisor.pids["worker-1"], signal.SIGSTOP)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy",
    [
        SharedMemory(2, lease=3.0),
        AsyncParameterServer(2, 1, lease=3.0),
        AsyncParameterServer(2, 1, lease=3.0, max_staleness=2, pipeline=1),
    ],
    ids=["shared", "async", "bounded"],
)
@pytest.mark.timeout(100)
def test_a_worker_that_stands_still_is_started_again(strategy, caplog):
    def unequal(input_context):
        return slow_batches(200 if input_context.input_pipeline_id else 5)

    estimator = Estimator(linear_model_fn, config=RunConfig(train_distribute=strategy))
    hook = Stopping()
    with caplog.at_level(logging.WARNING, "skest"):
        estimator.train(unequal, hooks=[hook])
    assert hook.supervisor.restarts["worker-1"] == 1
    assert "worker-1 stands still for 3 s: it is killed." in caplog.messages
    assert estimator.stop_reason == "the input ended"
    assert estimator.checkpoint.global_step >= 205


def sleeping(tmp_path):
    return Task("worker-1", script(tmp_path, "import time; time.sleep(1000)"))


def test_one_that_stands_still_again_and_again_is_an_error(tmp_path, caplog):
    silence = Silence()

    def silent_for():
        return {"worker-1": silence.of({1: 0})[1]}  # it has begun, and then no more

    with Supervisor(max_restarts=0) as supervisor:
        supervisor.start(sleeping(tmp_path))
        with pytest.raises(TaskFailedError, match="killed by SIGKILL, after 0 rest"):
            wait_for_workers(supervisor, ["worker-1"], silent_for, lease=0.2)
    assert "worker-1 stands still for 0.2 s: it is killed." in caplog.messages


def test_one_that_does_not_begin_is_an_error(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(waiting, "_SECONDS_TO_BEGIN", 0.5)
    with Supervisor(max_restarts=1) as supervisor:
        supervisor.start(sleeping(tmp_path))
        with pytest.raises(TaskFailedError, match="after 1 restarts"):
            wait_for_workers(supervisor, ["worker-1"], dict, lease=0.2)
    assert caplog.messages.count("worker-1 stands still for 0.5 s: it is killed.") == 2


def test_one_that_is_started_again_has_time_to_begin(tmp_path):
    # What is known of it is about its life before.
    task = Task("worker-1", script(tmp_path, "import time; time.sleep(1)"))
    with Supervisor(max_restarts=0) as supervisor:
        supervisor.start(task)
        known = {"worker-1": 1000.0}
        wait_for_workers(supervisor, ["worker-1"], lambda: known, lease=0.1)


def test_silence_is_the_time_since_a_counter_moved():
    clock = iter([0.0, 5.0, 7.0, 8.0])
    silence = Silence(lambda: next(clock))
    assert silence.of({}) == {}
    assert silence.of({1: 0, 2: 3}) == {1: 0.0, 2: 0.0}
    assert silence.of({1: 0, 2: 4}) == {1: 2.0, 2: 0.0}
    assert silence.of({1: 0, 2: 4}) == {1: 3.0, 2: 1.0}
