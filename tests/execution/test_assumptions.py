# SPDX-License-Identifier: Apache-2.0
"""What recordings take for granted holds in all later steps, or is noticed."""

import pytest
import torch
from torch import nn

from skest.execution import GraphStep
from skest.execution.assumptions import Assumptions
from skest.optimizers import make_optimizer
from skest.training import train_step
from tests.execution._steps import batches, make_spec, mlp, run_both, state

# Kinds of batches that train different parameters


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 4)
        self.tasks = nn.ModuleDict({name: nn.Linear(4, 1) for name in "ab"})

    def forward(self, features):
        ((name, x),) = features.items()
        return self.tasks[name](self.body(x).tanh())


def task_batches(n_steps, n_alone):
    """Return batches of two tasks in turns, after some of the first one alone."""
    return [
        ({"a" if i < n_alone or i % 2 else "b": x}, y)
        for i, (x, y) in enumerate(batches(n_steps))
    ]


TORCH = torch.optim
OPTIMIZERS = {
    "sgd": lambda p: TORCH.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: TORCH.Adam(p, lr=0.01),
    "fused adam": lambda p: TORCH.Adam(p, lr=0.01, fused=True),
    "adagrad": lambda p: TORCH.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: TORCH.RMSprop(p, lr=0.01),
    "ftrl by name": lambda p: make_optimizer("ftrl", p, 0.1),
    "adam by name": lambda p: make_optimizer("adam", p, 0.01),
}


@pytest.mark.parametrize(("is_watched", "clip_norm"), [(True, None), (False, 0.1)])
@pytest.mark.parametrize("n_alone", [0, 10])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_kinds_that_train_different_parameters(name, n_alone, is_watched, clip_norm):
    def make():
        network = TwoTasks()
        optimizer = OPTIMIZERS[name](network.parameters())
        return make_spec(network, optimizer=optimizer, clip_norm=clip_norm)

    data = task_batches(58, n_alone)
    step, reports = run_both(make, data, is_watched=is_watched)
    assert reports == []
    assert step.n_replayed >= 10


def test_kinds_that_train_different_parameters_with_a_schedule():
    def make():
        network = TwoTasks()
        optimizer = TORCH.SGD(network.parameters(), lr=0.1)
        scheduler = TORCH.lr_scheduler.StepLR(optimizer, 20)
        return make_spec(network, optimizer=optimizer, lr_scheduler=scheduler)

    step, reports = run_both(make, task_batches(50, 0))
    assert reports == []
    assert step.n_replayed >= 10


def test_gradients_of_other_kinds_are_left_nowhere():
    network = TwoTasks()
    step = GraphStep(make_spec(network), eager_steps=1, report=print)
    for features, labels in task_batches(50, 0):
        step(features, labels)
        (name,) = features
        for task, layer in network.tasks.items():
            assert (layer.weight.grad is not None) == (task == name)


# Optimizers that remember something in Python

N_STEPS = [0]


class EverySixth(torch.optim.Optimizer):
    """SGD that goes back half the way to where it was, in every sixth step."""

    def __init__(self, parameters, where):
        super().__init__(parameters, {"lr": 0.1, "counter": 0})
        self.where, self.counter, self.held = where, 0, {"counter": [0]}
        N_STEPS[0] = 0
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["slow"] = parameter.detach().clone()
        if where == "state":
            self.state["counter"] = 0

    def count(self):
        if self.where == "group":
            self.param_groups[0]["counter"] += 1
            return self.param_groups[0]["counter"]
        if self.where == "state":
            self.state["counter"] += 1
            return self.state["counter"]
        if self.where == "attribute":
            self.counter += 1
            return self.counter
        held = N_STEPS if self.where == "global" else self.held["counter"]
        held[0] += 1
        return held[0]

    @torch.no_grad()
    def step(self, closure=None):
        is_sixth = self.count() % 6 == 0
        for parameter in self.param_groups[0]["params"]:
            parameter.add_(parameter.grad, alpha=-self.param_groups[0]["lr"])
            if is_sixth:
                slow = self.state[parameter]["slow"].lerp_(parameter, 0.5)
                parameter.copy_(slow)


@pytest.mark.parametrize("is_watched", [True, False])
@pytest.mark.parametrize("where", ["group", "state", "attribute", "held", "global"])
def test_optimizers_that_count_in_python_update_by_themselves(where, is_watched):
    def train(make_step):
        network = mlp()
        optimizer = EverySixth(network.parameters(), where)
        spec = make_spec(network, optimizer=optimizer)
        step = make_step(spec)
        for batch in batches(20):
            step(*batch)
        return step, list(network.parameters())

    _, of_eager = train(lambda spec: lambda *batch: train_step(spec, *batch))
    step, of_graph = train(
        lambda s: GraphStep(s, eager_steps=1, report=print, is_watched=is_watched)
    )
    assert step.n_replayed >= 14
    for ours, theirs in zip(of_graph, of_eager, strict=True):
        assert torch.equal(ours, theirs)


def test_an_attribute_of_an_optimizer_that_others_change_counts():
    class Scaled(torch.optim.SGD):
        scale = 1.0

        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                parameter.data.add_(parameter.grad, alpha=-0.1 * self.scale)

    def make():
        network = mlp()
        return make_spec(network, optimizer=Scaled(network.parameters(), lr=0.1))

    eager, graph = make(), make()
    step = GraphStep(graph, eager_steps=1, report=print)
    for i, (features, labels) in enumerate(batches(12)):
        if i == 6:
            eager.optimizers[0].scale = graph.optimizers[0].scale = 0.5
        assert torch.equal(step(features, labels), train_step(eager, features, labels))
    assert step.n_replayed == 12 - 3 - 2


def test_an_optimizer_that_replaces_slots_at_times_updates_by_itself():
    class Replacing(torch.optim.SGD):
        """Puts new slots in place of the old ones in steps with few rows."""

        is_small = False

        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                slots = self.state[parameter]
                slots.setdefault("sum", torch.zeros_like(parameter))
                if self.is_small:
                    slots["sum"] = slots["sum"] / 2
                slots["sum"].add_(parameter.grad)
                parameter.data.sub_(0.1 * slots["sum"])

    def make():
        network = mlp()
        return make_spec(network, optimizer=Replacing(network.parameters(), lr=0.1))

    eager, graph = make(), make()
    step = GraphStep(graph, eager_steps=1, report=print)
    for i, (features, labels) in enumerate(batches(24)):
        Replacing.is_small = i in (9, 15)
        rows = slice(2 if Replacing.is_small else None)
        batch = features[rows], labels[rows]
        assert torch.equal(step(*batch), train_step(eager, *batch))
    assert step.n_replayed > 10


# Options


def with_rate(rate):
    network = mlp()
    return make_spec(network, optimizer=TORCH.Adam(network.parameters(), lr=rate))


@pytest.mark.parametrize("at_a_glance", [True, False])
def test_options(at_a_glance):
    spec = with_rate(0.1)
    (group,) = spec.optimizers[0].param_groups
    look = Assumptions(spec)

    def has_changed():
        return look.options_have_changed(at_a_glance=at_a_glance)

    assert not has_changed()
    group["lr"] = float("0.1")
    group["betas"] = tuple([*group["betas"]])
    assert not has_changed()
    for name, value in {
        "lr": 0.01,
        "betas": (0.5, 0.9),
        "foreach": True,
        "own": "name",
        "weight_decay": torch.tensor(0.1),
    }.items():
        group[name] = value
        assert has_changed()
        assert not has_changed()
    group["weight_decay"].add_(1)  # its numbers are read in every step
    assert not has_changed()
    spec.optimizers[0].add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    assert has_changed()


@pytest.mark.parametrize("is_watched", [True, False])
def test_options_that_change_are_seen_in_every_step(is_watched):
    def make():
        network = mlp()
        return make_spec(
            network, optimizer=make_optimizer("adam", network.parameters())
        )

    eager, graph = make(), make()
    step = GraphStep(graph, eager_steps=1, report=print, is_watched=is_watched)
    for i, (features, labels) in enumerate(batches(20)):
        for spec in (eager, graph):
            spec.optimizers[0].param_groups[0]["lr"] = 0.1 / (1 + i // 5)
        assert torch.equal(step(features, labels), train_step(eager, features, labels))
    assert step.n_replayed > 10


def test_code_that_ran_in_an_eager_step_is_looked_after():
    weight = {"of all": 1.0}

    def make():
        def loss(labels, logits, features):
            if len(labels) == 2:
                weight["of all"] = 0.5
            return weight["of all"] * (logits - labels).square().mean()

        return make_spec(mlp(), loss=loss)

    eager, graph = make(), make()
    step = GraphStep(graph, eager_steps=1, report=print, is_watched=False)
    for i, (x, y) in enumerate(batches(12)):
        batch = (x[:2], y[:2]) if i == 6 else (x, y)
        weight["of all"] = 0.5 if i > 6 else 1.0
        expected = train_step(eager, *batch)
        weight["of all"] = 0.5 if i > 6 else 1.0
        assert torch.equal(step(*batch), expected)
    assert step.n_replayed > 3


# Gradients that are the same in every step


@pytest.mark.parametrize("change", ["zero_", "neg_"])
def test_who_changes_gradients_after_a_step_changes_no_other_step(change):
    def make():
        torch.manual_seed(0)
        network = nn.Linear(3, 1)
        return make_spec(network, loss=lambda y, z, x: -z.mean())

    eager, graph = make(), make()
    step = GraphStep(graph, eager_steps=1, report=print)
    for features, labels in batches(8):
        assert torch.equal(step(features, labels), train_step(eager, features, labels))
        for spec in (eager, graph):
            for parameter in spec.network.parameters():
                getattr(parameter.grad, change)()
    assert step.n_replayed == 5
    for ours, theirs in zip(state(graph), state(eager), strict=True):
        assert torch.equal(ours, theirs)
