# SPDX-License-Identifier: Apache-2.0
"""The model of semantics.json, whose one variable counts the training steps.

Its metric "m", which is its loss as well, is what a table says for a step, and
1 / (1 + step) where it says nothing. A batch has two rows, with its number as ``x``.
"""

import itertools

import numpy as np
import torch
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest.metrics import Mean


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return {"x": x, "w": self.w.expand(len(x))}


def counting_estimator(model_dir, run_config=None, metric_by_step=None, modes=None):
    """Return an Estimator; `modes` gets the mode of every call of the model function."""
    table = {int(step): value for step, value in (metric_by_step or {}).items()}

    def value(w):
        step = round(w.item())
        return torch.tensor(table.get(step, 1 / (1 + step)))

    def model_fn(features, labels, mode):
        if modes is not None:
            modes.append(mode)
        network = Counter()
        return EstimatorSpec(
            mode,
            network=network,
            # The value is the metric; the gradient adds 1 to `w` in a step of rate 1.
            loss=lambda y, z, x: value(network.w) - (network.w - network.w.detach()),
            predictions=lambda z: {"x": z["x"][:, 0], "step": z["w"].round().long()},
            optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
            eval_metrics={
                "m": (Mean(), lambda y, z, x: (value(network.w),)),
                "x_mean": (Mean(), lambda y, z, x: (x,)),
            },
        )

    return Estimator(model_fn, model_dir, RunConfig(**(run_config or {})))


def counting_input(n_batches=None, labels=True):
    """Return an input function; without a number, it never ends."""

    def input_fn():
        numbers = itertools.count() if n_batches is None else range(n_batches)
        for i in numbers:
            x = np.full((2, 1), i, dtype=np.float32)
            yield (x, x[:, 0]) if labels else x

    return input_fn
