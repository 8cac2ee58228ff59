# SPDX-License-Identifier: Apache-2.0
"""A step is what the optimizer makes of it, with or without the mark for a profiler."""

import functools
import subprocess
import sys

import pytest
import torch

from skest.optimizers.ftrl import Ftrl
from skest.optimizers.row_sparse import RowSparse, take_step

OPTIMIZERS = {
    "adam": functools.partial(torch.optim.Adam, fused=True),
    "adagrad": torch.optim.Adagrad,
    "ftrl": Ftrl,
    "row_sparse": lambda parameters: RowSparse(torch.optim.Adagrad(parameters)),
    "sgd": functools.partial(torch.optim.SGD, momentum=0.9),
}


class Halving(torch.optim.SGD):
    """An optimizer with a step of its own around that of another."""

    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.mul_(0.5)


def weight():
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    parameter.grad = torch.tensor([0.5, 0.25, -1.0])
    return parameter


def test_same_numbers_as_step():
    for make in [*OPTIMIZERS.values(), Halving]:
        ours, theirs = weight(), weight()
        first, second = make([ours]), make([theirs])
        for _ in range(3):
            take_step(first)
            second.step()
        assert torch.equal(ours, theirs)
        assert not torch.equal(ours, torch.tensor([1.0, -2.0, 3.0]))


def test_sparse_gradients_that_a_rule_does_not_take():
    for kind in [torch.optim.Adam, torch.optim.AdamW]:
        table = torch.nn.Embedding(5, 2, sparse=True)
        table(torch.tensor([1])).sum().backward()
        match = rf"sparse gradients.*Wrap the optimizer, .*RowSparse\({kind.__name__}\("
        with pytest.raises(RuntimeError, match=match):
            take_step(kind(table.parameters()))
        take_step(RowSparse(kind(table.parameters())))


FITS = """
import functools
import sys
import numpy as np
import torch
from skest import DNNClassifier, LinearClassifier
from skest.optimizers import make_optimizer
from skest.optimizers.ftrl import ProximalAdagrad

X = np.random.default_rng(0).normal(size=(400, 3))
y = (X[:, 0] > 0).astype(int)
for model in (
    DNNClassifier((4,), optimizer="adam", max_iter=40),  # recorded, too
    DNNClassifier((4,), optimizer=ProximalAdagrad, max_iter=1),
    LinearClassifier(max_iter=1),
):
    model.fit(X, y).partial_fit(X, y)
LinearClassifier(optimizer="sdca", max_iter=1).fit(X, y)
print(sorted({"torch._dynamo", "sympy"} & sys.modules.keys()))


class Wrapped(torch.optim.SGD):
    @functools.wraps(torch.optim.SGD.add_param_group)
    def add_param_group(self, group):  # by somebody else than torch
        super().add_param_group({**group, "lr": 0.5})


weights = [torch.nn.Parameter(torch.zeros(2))]
print(make_optimizer(Wrapped, weights).param_groups[0]["lr"])
"""


@pytest.mark.slow
def test_fits_import_nothing_that_compiles():
    run = [sys.executable, "-W", "ignore", "-c", FITS]
    found = subprocess.run(run, capture_output=True, text=True, timeout=120)
    assert (found.stdout, found.stderr) == ("[]\n0.5\n", "")
