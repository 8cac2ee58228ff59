# SPDX-License-Identifier: Apache-2.0
"""Steps of runs in which no code of others is called: the short way, and around it."""

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from skest.execution import GraphStep, shortcut
from skest.execution.shortcut import Shortcut
from skest.training import train_step
from tests.execution._steps import make_spec, run_both, state


class Sum(nn.Module):
    """Gives each feature a weight of its own, so that their order counts."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(2, 1)
        self.b = nn.Linear(2, 1)

    def forward(self, features):
        b = features["b"]
        b = b.to_dense() if isinstance(b, torch.Tensor) else sum(b)
        return self.a(features["a"]) + self.b(b)


def make():
    return make_spec(Sum())


def batch(i, n_rows=4, **changes):
    generator = torch.Generator().manual_seed(i)
    features = {name: torch.randn(n_rows, 2, generator=generator) for name in "ab"}
    return {**features, **changes}, torch.randn(n_rows, 1, generator=generator)


@pytest.fixture
def n_short(monkeypatch):
    """Count the steps that went the short way."""
    taken = []
    call = Shortcut.__call__

    def counted(self, *data):
        loss = call(self, *data)
        taken.append(loss is not None)
        return loss

    monkeypatch.setattr(Shortcut, "__call__", counted)
    return lambda: sum(taken)


def test_steps_of_known_runs_go_the_short_way(n_short):
    step, reports = run_both(make, [batch(i) for i in range(12)], is_watched=False)
    assert reports == []
    # Of 12 steps one is eager, one is recorded, one compared; one is replayed with all
    # looks.
    assert (step.n_replayed, n_short()) == (9, 8)


def test_batches_of_a_table_are_known_by_their_rows(n_short, monkeypatch):
    data = [batch(i, 3 if i % 5 == 4 else 4) for i in range(150)]
    looked_at = []
    kind_of_tensor = shortcut.kind_of_tensor
    monkeypatch.setattr(
        shortcut, "kind_of_tensor", lambda t: looked_at.append(t) or kind_of_tensor(t)
    )
    step, reports = run_both(make, data, is_watched=False, has_table=True)
    assert reports == []
    # One step of three rows in five, and the one behind it, are replayed with all looks.
    n_ways = step.n_replayed - n_short()
    assert 0 < n_ways < n_short()
    assert len(looked_at) == 3 * n_ways  # to know those of the next step


def test_watched_steps_do_not(n_short):
    step, _ = run_both(make, [batch(i) for i in range(12)])
    assert (step.n_replayed, n_short()) == (9, 0)


def changed_type(i):
    features, labels = batch(i)
    return features, labels.double()


def changed_strides(i):
    features, labels = batch(i)
    return {**features, "a": features["a"].t().contiguous().t()}, labels


def other_order(i):
    features, labels = batch(i)
    return {"b": features["b"], "a": features["a"]}, labels


def more_features(i):
    return batch(i, c=torch.ones(4, 2))


@pytest.mark.parametrize(
    "other",
    [
        lambda i: batch(i, 3),
        changed_type,
        changed_strides,
        other_order,
        more_features,
        lambda i: batch(i, b=torch.eye(4, 2).to_sparse()),
        lambda i: batch(i, b=tuple(batch(-i - 1)[0].values())),
    ],
    ids=["rows", "type", "strides", "order", "names", "sparse", "nested"],
)
def test_batches_of_other_kinds_take_their_own_way(other, n_short):
    data = [other(i) if i % 5 == 4 else batch(i) for i in range(150)]
    step, reports = run_both(make, data, is_watched=False)
    assert reports == []
    assert 0 < n_short() < step.n_replayed


@pytest.mark.parametrize(
    "odd",
    [
        lambda i: batch(i, b=tuple(batch(-i - 1)[0].values())),
        lambda i: batch(i, b=batch(0)[0]["a"].to_sparse()),
        lambda i: (lambda f: ({**f, "b": f["a"]}, batch(i)[1]))(batch(i)[0]),
    ],
    ids=["nested", "sparse", "twice the same"],
)
def test_batches_of_other_structures_are_looked_at_as_ever(odd, n_short):
    step, reports = run_both(make, [odd(i) for i in range(12)], is_watched=False)
    assert reports == []
    assert (step.n_replayed, n_short()) == (9, 0)


def test_a_tensor_that_is_in_every_batch_is_compared_first(n_short):
    same = torch.ones(4, 2)
    data = [batch(i, b=same) for i in range(8)]
    data += [batch(i) for i in range(8, 20)]
    step, reports = run_both(make, data, is_watched=False)
    assert reports == []
    assert step.n_replayed == 20 - 2 - 2  # the other tensors are compared once more
    assert n_short() == 20 - 8 - 2


def test_rates_that_follow_a_schedule_are_read_in_every_step(n_short):
    def scheduled():
        network = Sum()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return make_spec(network, optimizer=optimizer, lr_scheduler=schedule)

    eager, graph = scheduled(), scheduled()
    step = GraphStep(graph, eager_steps=1, report=print, is_watched=False)
    for i in range(12):
        assert torch.equal(step(*batch(i)), train_step(eager, *batch(i)))
        for spec in (eager, graph):
            spec.lr_schedulers[0].step()
    for ours, theirs in zip(state(graph), state(eager), strict=True):
        assert torch.equal(ours, theirs)
    assert n_short() == 8


def test_options_that_change_are_seen(n_short):
    eager, graph = make(), make()
    step = GraphStep(graph, eager_steps=1, report=print, is_watched=False)
    for i in range(16):
        if i == 8:
            assert n_short() == 4
            for spec in (eager, graph):
                spec.optimizers[0].param_groups[0]["lr"] = 0.025
        assert torch.equal(step(*batch(i)), train_step(eager, *batch(i)))
        for ours, theirs in zip(state(graph), state(eager), strict=True):
            assert torch.equal(ours, theirs)
    # Only gradients are recorded anew, and the optimizer takes its steps itself.
    assert n_short() == 4 + 8 - 3


def test_hooks_of_all_modules_are_called(n_short):
    step = GraphStep(make(), eager_steps=1, report=print, is_watched=False)
    called = []
    for i in range(16):
        if i == 8:
            handle = register_module_forward_hook(lambda *args: called.append(None))
        if i == 10:
            handle.remove()
        step(*batch(i))
    assert len(called) == 2 * 3
    assert n_short() == 4 + 5


def test_a_batch_that_requires_gradients_gets_them(n_short):
    reports = []
    step = GraphStep(make(), eager_steps=1, report=reports.append, is_watched=False)
    for i in range(8):
        step(*batch(i))
    assert n_short() == 4
    features, labels = batch(8)
    step({**features, "a": features["a"].requires_grad_()}, labels)
    assert features["a"].grad is not None
    (report,) = reports
    assert "a batch has a tensor that requires gradients" in report
    assert n_short() == 4


def test_gradients_are_set_in_every_step():
    eager, graph = make(), make()
    step = GraphStep(graph, eager_steps=1, report=print, is_watched=False)
    for i in range(10):
        for parameter in graph.network.parameters():
            parameter.grad = None
        step(*batch(i))
        train_step(eager, *batch(i))
        for ours, theirs in zip(
            graph.network.parameters(), eager.network.parameters(), strict=True
        ):
            assert torch.equal(ours.grad, theirs.grad)


def test_gradients_of_variables_that_no_optimizer_holds_are_looked_at(n_short):
    def half_trained():
        network = Sum()
        optimizer = torch.optim.SGD(network.a.parameters(), lr=0.1)
        return make_spec(network, optimizer=optimizer)

    step, reports = run_both(
        half_trained, [batch(i) for i in range(12)], is_watched=False
    )
    assert reports == []
    assert (step.n_replayed, n_short()) == (9, 0)
