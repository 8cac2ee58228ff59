# SPDX-License-Identifier: Apache-2.0
"""Trainings of several processes on this machine, for the tests."""

import time

import numpy as np
import torch

from skest import Estimator, EstimatorSpec, RunConfig
from skest.distributed import SharedMemory
from skest.hooks import Hook
from tests.distributed._processes import wait_for


def shared(num_workers=2, **settings):
    """Return settings of a training in shared memory."""
    return RunConfig(train_distribute=SharedMemory(num_workers), **settings)


def linear_model_fn(features, labels, mode, params):
    """Return a linear regression; ``optimizer`` of `params` makes its optimizer."""
    network = torch.nn.Linear(features.shape[1], 1)
    make = params.get("optimizer", torch.optim.SGD)
    return EstimatorSpec(
        mode,
        network=network,
        loss=lambda y, z, x: ((z[:, 0] - y) ** 2).mean(),
        predictions=lambda z: {"y": z[:, 0]},
        optimizer=make(network.parameters(), lr=0.05),
    )


def slow_batches(n, seconds=0.005):
    """Yield batches with a pause before each."""
    X = np.random.default_rng(0).normal(size=(16, 2)).astype(np.float32)
    for _ in range(n):
        time.sleep(seconds)
        yield X, X @ np.asarray([1, -2], np.float32)


class WithOthers(Hook):
    """Waits for another process before the first step, and acts then."""

    def __init__(self, act):
        self.act = act
        self.replica = None

    def before_step(self, run):
        if self.replica is None:
            self.replica = replica_of(run)
            wait_for(lambda: self.may_go_on(run))
            self.act(run, self.replica)

    def may_go_on(self, run):
        self.replica.supervisor.check()
        return not self.replica.parts.is_alone(run)


def replica_of(run):
    """Return the part of this process, which the capture of checkpoints belongs to."""
    return run._capture.func.__self__


def train_together(config, act, input_fn, max_steps):
    """Train with a hook that acts when another process has begun; none is left."""
    estimator, hook = Estimator(linear_model_fn, config=config), WithOthers(act)
    try:
        estimator.train(input_fn, hooks=[hook], max_steps=max_steps)
    finally:
        if hook.replica is not None:
            assert hook.replica.supervisor.pids == {}
    return estimator, hook


def stop(run, replica):
    """Stop the training."""
    run.request_stop("enough")


def nothing(run, replica):
    """Let the training go on."""
