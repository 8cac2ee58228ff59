# SPDX-License-Identifier: Apache-2.0
"""Trainings of several processes on this machine, for the tests."""

import dataclasses
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from skest import EstimatorSpec, RunConfig


@dataclass(frozen=True)
class SharedMemory:
    """Stands for the strategy of this name."""

    num_workers: int = 2


if "train_distribute" in {field.name for field in dataclasses.fields(RunConfig)}:
    from skest.strategies import SharedMemory  # type: ignore[no-redef]

    Config = RunConfig
else:

    @dataclass(frozen=True)
    class Config(RunConfig):  # type: ignore[no-redef]
        """Settings with a strategy."""

        train_distribute: Any = None


def shared(num_workers=2, **settings):
    """Return settings of a training in shared memory."""
    return Config(train_distribute=SharedMemory(num_workers), **settings)


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
