# SPDX-License-Identifier: Apache-2.0
"""A recorded step that differs from an eager one is noticed, and not taken."""

import pytest
import torch

from skest.execution import GraphStep
from skest.execution.program import Program
from tests.execution._steps import batches, make_spec, mlp


def reports_of(spec, after):
    """Train with recorded steps; `after` changes what they give."""

    class Other(Program):
        def __call__(self, *inputs):
            loss, *others = super().__call__(*inputs)
            return (loss, *after(others))

    reports = []
    step = GraphStep(spec, eager_steps=1, report=reports.append, program=Other)
    for batch in batches(6):
        step(*batch)
    return reports


def test_integers_are_compared_exactly():
    norm = torch.nn.BatchNorm1d(5)
    norm.num_batches_tracked += 10_000

    def one_less(others):
        norm.num_batches_tracked -= 1
        return others

    (report,) = reports_of(make_spec(mlp(norm)), one_less)
    assert "in what it changes of shape (), by up to 1" in report


def test_a_counter_that_stands_still_is_seen_behind_a_long_training():
    network = mlp()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    spec = make_spec(network, optimizer=optimizer)
    network(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    for slots in optimizer.state.values():
        slots["step"] += 10_000

    def one_less(others):
        optimizer.state[network[0].weight]["step"] -= 1
        return others

    (report,) = reports_of(spec, one_less)
    assert "in what it changes of shape (4,), by up to 1" in report


def test_an_update_that_is_not_made_is_seen_where_it_is_small():
    network = mlp()
    with torch.no_grad():
        network[0].weight.add_(1)
    start = network[0].weight.detach().clone()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)

    def undone(others):
        with torch.no_grad():
            network[0].weight.copy_(start)
        return others

    (report,) = reports_of(make_spec(network, optimizer=optimizer), undone)
    assert "in what it changes of shape (5, 3), by up to" in report


class Rows(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(200_000, 1, sparse=True)

    def forward(self, x):
        return self.table(x[:, 0].abs().mul(20_000).long() + 20_000)


def changed(gradient, ids, values):
    return torch.sparse_coo_tensor(ids, values, gradient.shape, check_invariants=True)


@pytest.mark.parametrize(
    "other",
    [
        lambda g: changed(g, g._indices() + 1, g._values()),
        lambda g: changed(g, g._indices()[:, :2], g._values()[:2]),
        lambda g: g.to_dense(),
    ],
    ids=["ids", "fewer", "dense"],
)
def test_sparse_gradients_are_compared_with_their_ids(other):
    network = Rows()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    halving = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # the update is eager
    spec = make_spec(network, optimizer=optimizer, lr_scheduler=halving)
    reports = reports_of(spec, lambda others: [other(g) for g in others])
    assert "in a gradient of shape (200000, 1)" in reports[0]
