# SPDX-License-Identifier: Apache-2.0
"""A process in training gets Ctrl-C at any moment."""

import os
import random
import signal
import time

import pytest

from skest import Estimator, EvalSpec, RunConfig, TrainSpec, train_and_evaluate
from skest.checkpoints.store import DirectoryStore
from tests import _forkserver
from tests._models import assert_same_checkpoint, model_fn, table_fn

SECONDS = 120.0
PARAMS = {"network": "torch_dropout", "optimizer": "adam", "lr": 1e-4}


def endless():
    """Yield batches; an interrupted training goes on behind those that it has seen."""
    whole = list(table_fn()())
    for i in range(1_000_000):
        yield whole[i % len(whole)]


def train(model_dir, sender):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config = RunConfig(random_seed=0, save_checkpoints_steps=50)
    estimator = Estimator(model_fn, model_dir, config, PARAMS)
    train_and_evaluate(
        estimator,
        TrainSpec(endless, max_steps=1_000_000),
        EvalSpec(table_fn(), throttle_secs=0),
    )
    sender.send((estimator.checkpoint.global_step, estimator.stop_reason))


def interrupted(model_dir, delay):
    """Train in a process, press Ctrl-C, and return the step and why it ended."""
    context, store = _forkserver.context(), DirectoryStore(model_dir)
    receiver, sender = context.Pipe(duplex=False)
    before = store.version()
    process = context.Process(target=train, args=(model_dir, sender))
    process.start()
    sender.close()
    end = time.monotonic() + SECONDS
    while store.version() == before:
        assert process.is_alive()
        assert time.monotonic() < end
        time.sleep(0.01)
    time.sleep(delay)
    os.kill(process.pid, signal.SIGINT)
    found = receiver.recv()
    process.join()
    assert process.exitcode == 0
    return found


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_ctrl_c_keeps_a_checkpoint_and_returns(tmp_path):
    delays, steps = random.Random(0), [0]
    for _ in range(5):
        step, reason = interrupted(tmp_path, delays.uniform(0, 0.1))
        assert reason == "interrupted by Ctrl-C"
        steps.append(step)
    assert steps == sorted(steps)
    # No step was cut short: the variables are those of a training without Ctrl-C.
    whole = Estimator(model_fn, config=RunConfig(random_seed=0), params=PARAMS)
    whole.train(endless, steps=steps[-1])
    estimator = Estimator(model_fn, tmp_path, params=PARAMS)
    assert_same_checkpoint(estimator.checkpoint, whole.checkpoint)
