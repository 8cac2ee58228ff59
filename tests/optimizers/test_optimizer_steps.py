# SPDX-License-Identifier: Apache-2.0
"""A step is what the optimizer makes of it, with or without the mark for a profiler."""

import functools
import subprocess
import sys

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from skest.optimizers.ftrl import Ftrl
from skest.optimizers.row_sparse import RowSparse, has_step_hooks, take_step

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


def marks(call):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        call()
    return [e.name for e in p.events() if e.name.startswith("Optimizer.step#")]


def test_same_numbers_as_step():
    for make in [*OPTIMIZERS.values(), Halving]:
        ours, theirs = weight(), weight()
        first, second = make([ours]), make([theirs])
        for _ in range(3):
            take_step(first)
            second.step()
        assert torch.equal(ours, theirs)
        assert not torch.equal(ours, torch.tensor([1.0, -2.0, 3.0]))


def test_a_profiler_sees_the_mark():
    optimizer = torch.optim.SGD([weight()])
    assert marks(lambda: take_step(optimizer)) == ["Optimizer.step#SGD.step"]


def test_hooks_are_called():
    for kind in ["pre", "post", "all"]:
        calls = []
        optimizer = torch.optim.SGD([weight()])
        take_step(optimizer)
        register = {
            "pre": optimizer.register_step_pre_hook,
            "post": optimizer.register_step_post_hook,
            "all": register_optimizer_step_post_hook,
        }[kind]
        handle = register(lambda *_, calls=calls, kind=kind: calls.append(kind))
        try:
            assert has_step_hooks(optimizer)
            take_step(optimizer)
        finally:
            handle.remove()
        take_step(optimizer)
        assert calls == [kind]
        assert not has_step_hooks(optimizer)


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
