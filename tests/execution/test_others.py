# SPDX-License-Identifier: Apache-2.0
"""Gradients that others than the optimizers of the model want."""

import pytest
import torch
from torch import nn

from skest.execution import GraphStep
from skest.training import train_step
from tests.execution._steps import batches, make_spec, mean_square, mlp

_EAGER = "Training steps are taken eagerly: "


def half_trained():
    """Return a model whose second layer no optimizer holds."""
    network = mlp()
    optimizer = torch.optim.SGD(network[0].parameters(), lr=0.1)
    return make_spec(network, optimizer=optimizer)


def with_anchor():
    """Return a model whose loss depends on a variable that is not of the network."""
    anchor = nn.Parameter(torch.ones(()))

    def loss(labels, logits, features):
        return mean_square(labels, anchor * logits, features)

    spec = make_spec(mlp(), loss=loss)
    return spec, anchor


def sums(optimizer, step):
    """Use a gradient again and again; it adds up."""
    optimizer.step()


def begins_at_zero(optimizer, step):
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def begins_anew(optimizer, step):
    optimizer.step()
    optimizer.zero_grad()


def sometimes(optimizer, step):
    if step % 4 == 3:
        begins_anew(optimizer, step)


_NEW = "a variable that no optimizer holds gets a new gradient."
_REPLACED = "a gradient of a variable that no optimizer holds was replaced."


@pytest.mark.parametrize(
    ("update", "reason"),
    [(sums, None), (begins_at_zero, None), (begins_anew, _NEW), (sometimes, _REPLACED)],
)
@pytest.mark.parametrize("where", ["network", "loss"])
def test_variables_that_somebody_else_trains(where, update, reason):
    def trained(make_step):
        if where == "network":
            spec = half_trained()
            others = list(spec.network[2].parameters())
        else:
            spec, anchor = with_anchor()
            others = [anchor]
        optimizer, step = torch.optim.SGD(others, lr=0.05), make_step(spec)
        for i, (features, labels) in enumerate(batches(12)):
            step(features, labels)
            update(optimizer, i)
        return [*spec.network.parameters(), *others]

    reports = []
    expected = trained(lambda spec: lambda *batch: train_step(spec, *batch))
    found = trained(lambda s: GraphStep(s, eager_steps=1, report=reports.append))
    assert all(map(torch.equal, found, expected))
    assert reports == ([] if reason is None else [_EAGER + reason])


def test_a_batch_that_wants_gradients_gets_them():
    spec, reports = make_spec(mlp()), []
    step = GraphStep(spec, eager_steps=1, report=reports.append)
    for i, (features, labels) in enumerate(batches(6)):
        features.requires_grad_(i >= 4)
        step(features, labels)
        assert (features.grad is not None) == (i >= 4)
    assert step.n_replayed == 1
    assert reports == [f"{_EAGER}a batch has a tensor that requires gradients."]


@pytest.mark.parametrize("added", ["tensor", "text"])
def test_what_a_network_puts_into_a_batch_is_there(added):
    class Adding(nn.Sequential):
        def forward(self, features):
            x = features["x"]
            features["y"] = x.exp() if added == "tensor" else "text"
            return super().forward(x)

    torch.manual_seed(0)
    spec, reports = make_spec(Adding(nn.Linear(3, 1))), []
    step = GraphStep(spec, eager_steps=1, report=reports.append)
    for x, labels in batches(5):
        features = {"x": x}
        step(features, labels)
        assert "y" in features
    assert reports == [f"{_EAGER}the model changes what a batch consists of."]


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_gradients_may_be_kept(clip_norm):
    def kept(make_step):
        spec = make_spec(mlp(), clip_norm=clip_norm)
        step, found = make_step(spec), []
        for features, labels in batches(6):
            step(features, labels)
            found += [parameter.grad for parameter in spec.network.parameters()]
        return found

    expected = kept(lambda spec: lambda *batch: train_step(spec, *batch))
    found = kept(lambda spec: GraphStep(spec, eager_steps=1, report=pytest.fail))
    assert all(map(torch.equal, found, expected))
