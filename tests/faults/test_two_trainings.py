# SPDX-License-Identifier: Apache-2.0
"""Two processes in one model_dir, and one that was killed."""

import contextlib
import os
import time

import pytest

from skest import Estimator
from skest.exceptions import ModelDirInUseError
from tests import _forkserver
from tests._models import At, model_fn, table_fn

SECONDS = 120


def train_and_stay(model_dir, connection, forks):
    """Stay in step 2 until the test has left; in a child if the process forks there."""

    def stay(run):
        if forks and os.fork():
            time.sleep(SECONDS)
        # By now the child has done what it does with locks in the beginning.
        connection.send("trains")
        connection.poll(SECONDS)
        os._exit(0)

    Estimator(model_fn, model_dir).train(table_fn(), [At(2, stay)])


@contextlib.contextmanager
def another_training(model_dir, forks=False):
    """Train in another process, which is in step 2 then."""
    context = _forkserver.context()
    here, there = context.Pipe()
    process = context.Process(target=train_and_stay, args=(model_dir, there, forks))
    process.start()
    there.close()
    with here:
        assert here.recv() == "trains"
        yield process
    process.join()


def test_the_second_is_refused_until_the_first_is_gone(tmp_path, caplog):
    estimator = Estimator(model_fn, tmp_path)
    with another_training(tmp_path) as first:
        with pytest.raises(
            ModelDirInUseError, match=f"trained in by process {first.pid} on "
        ):
            estimator.train(table_fn())
        assert estimator.checkpoint.global_step == 0  # as the other one has saved it
        first.kill()
        first.join()
        estimator.train(table_fn())
    assert estimator.checkpoint.global_step == 5
    assert f"of process {first.pid} on" in caplog.text
    assert "was killed" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_that_outlives_a_killed_training_keeps_no_lock(tmp_path):
    with another_training(tmp_path, forks=True) as killed:
        killed.kill()
        killed.join()
        estimator = Estimator(model_fn, tmp_path).train(table_fn())  # the child stays
    assert estimator.checkpoint.global_step == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_that_was_forked_meanwhile_keeps_no_lock(tmp_path):
    children = []

    def fork(run):
        child = os.fork()
        if child == 0:
            time.sleep(SECONDS)
            os._exit(0)
        children.append(child)

    estimator = Estimator(model_fn, tmp_path)
    try:
        estimator.train(table_fn(), [At(2, fork)])
        estimator.train(table_fn())
    finally:
        for child in children:
            os.kill(child, 9)
            os.waitpid(child, 0)
    assert estimator.checkpoint.global_step == 10
