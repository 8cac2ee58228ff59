# SPDX-License-Identifier: Apache-2.0
"""Trainings of several processes on this machine, for the tests."""

import os
import time

import numpy as np
import torch
from joblib.externals.loky.process_executor import ProcessPoolExecutor

from skest import Estimator, EstimatorSpec, RunConfig
from skest.distributed import AsyncParameterServer, SharedMemory
from skest.hooks import Hook
from tests import _forkserver
from tests.distributed._processes import is_running, pids, wait_for

STRATEGIES = {"memory": SharedMemory(2), "servers": AsyncParameterServer(2, 1)}


class ForkedExecutor(ProcessPoolExecutor):
    """An executor of loky whose process starts at once, and need not import torch."""

    def __init__(self, max_workers, env):
        super().__init__(
            max_workers,
            context=_forkserver.context(),
            initializer=be_started_with,
            initargs=(env, os.getpid()),
        )


def be_started_with(environ, parent):
    """Be, in a fork of another process, like one that the parent itself has started."""
    os.environ.update(environ)
    os.getppid = lambda: parent


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


def endless():
    return slow_batches(10**9)


class WithOthers(Hook):
    """Waits until the other process has taken steps, and acts then, once.

    ``act(run, processes)`` gets what sees to the other processes.
    """

    def __init__(self, act):
        self.act, self.n_own, self.processes = act, 0, None

    def before_step(self, run):
        if self.processes is None:
            self.processes = run._capture.func.__self__._workers
            self.pids = pids(self.processes)
        # A step of the other one is one that this process did not take.
        if self.act is not None and run.global_step > self.n_own + run.start_step:
            act, self.act = self.act, None
            act(run, self.processes)

    def after_step(self, run, loss):
        self.n_own += 1
        self.processes.check()


def train_together(strategy, act, input_fn=endless, max_steps=None, **settings):
    """Train with a hook that acts when another process has begun; none is left."""
    config = RunConfig(train_distribute=STRATEGIES[strategy], random_seed=0, **settings)
    estimator, hook = Estimator(linear_model_fn, config=config), WithOthers(act)
    try:
        estimator.train(input_fn, hooks=[hook], max_steps=max_steps)
    finally:
        if hook.processes is not None:
            wait_for(lambda: not any(map(is_running, hook.pids.values())))
    return estimator
