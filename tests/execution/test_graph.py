# SPDX-License-Identifier: Apache-2.0
import copy
import functools
import gc
import itertools
import os
import random
import re
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook

from skest.execution import GraphStep
from skest.feature_columns import (
    FeatureColumns,
    SequenceFeatures,
    sequence_numeric_column,
)
from skest.feature_columns.lookup import combined_rows, row_lookup, row_table
from skest.networks import RNN, BatchNorm, Dropout
from skest.optimizers import OPTIMIZERS, make_optimizer
from skest.row_sparse import RowSparse
from skest.training import Halves, train_step
from tests.execution._steps import (
    assert_change_counts,
    batches,
    make_spec,
    mean_square,
    mlp,
    run_both,
    state,
)


def named(name, **options):
    return lambda network: make_optimizer(name, network.parameters(), 0.1, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_all_optimizers_by_name(name, dtype):
    def make():
        network = mlp(dtype=dtype)
        return make_spec(network, optimizer=named(name)(network))

    step, reports = run_both(make, batches(6, dtype=dtype))
    assert (step.n_replayed, reports) == (3, [])


# Adam that is not fused reads its counters in Python, so that only the gradients are
# recorded; Rprop has branches, NAdam counts in tensors.
@pytest.mark.parametrize(
    "make_own",
    [
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, fused=True, amsgrad=True),
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), fused=True),
        lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
        lambda p: torch.optim.Adamax(p),
        lambda p: torch.optim.ASGD(p),
        lambda p: torch.optim.NAdam(p),
        lambda p: torch.optim.RAdam(p),
        lambda p: torch.optim.Rprop(p),
        lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
        lambda p: torch.optim.SGD(p, nesterov=True, momentum=0.9, weight_decay=0.1),
    ],
)
def test_other_optimizers(make_own):
    def make():
        network = mlp()
        return make_spec(network, optimizer=make_own(network.parameters()))

    step, reports = run_both(make, batches(8))
    assert (step.n_replayed, reports) == (5, [])


def test_an_optimizer_that_counts_in_python_updates_by_itself():
    class Counting(torch.optim.SGD):
        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    count = self.state[parameter].get("count", 0) + 1
                    self.state[parameter]["count"] = count
                    parameter.data.add_(parameter.grad, alpha=-0.1 / count)

    made = []

    def make():
        network = mlp()
        made.append(Counting(network.parameters(), lr=0.1))
        return make_spec(network, optimizer=made[-1])

    step, _ = run_both(make, batches(6))
    assert step.n_replayed == 3
    counts = [[slots["count"] for slots in o.state.values()] for o in made]
    assert counts == [4 * [6], 4 * [6]]


def test_an_optimizer_that_needs_more_than_gradients_stays_eager():
    class Observing(torch.optim.SGD):
        is_recordable = False

    def make():
        network = mlp()
        return make_spec(network, optimizer=Observing(network.parameters(), lr=0.1))

    _, reports = run_both(make, batches(5))
    assert reports == [
        "Training steps are taken eagerly: Observing needs more than gradients."
    ]


def test_two_optimizers_and_clipping():
    def make():
        network = mlp()
        parameters = list(network.parameters())
        optimizers = [
            make_optimizer("adam", parameters[:2], 0.1),
            make_optimizer("ftrl", parameters[2:], 0.1, l1=0.01),
        ]
        return make_spec(network, optimizer=optimizers, clip_norm=0.1)

    step, _ = run_both(make, batches(6))
    assert step.n_replayed == 3


@pytest.mark.parametrize(
    "middle",
    [
        lambda: [Dropout(0.3)],
        lambda: [nn.Dropout(0.3)],
        lambda: [BatchNorm(5)],
        lambda: [nn.BatchNorm1d(5)],
        lambda: [nn.LayerNorm(5), nn.GELU(), nn.Dropout(0.1), nn.BatchNorm1d(5)],
        lambda: [nn.Softmax(dim=1), nn.PReLU()],
        lambda: [nn.Linear(5, 5), nn.LeakyReLU(inplace=True), nn.Hardswish()],
        lambda: [
            nn.Unflatten(1, (1, 5)),
            nn.Conv1d(1, 2, 3),
            nn.Flatten(),
            nn.LazyLinear(5),
        ],
    ],
)
def test_layers(middle):
    def make():
        torch.manual_seed(0)
        network = mlp(*middle())
        network(torch.zeros(2, 3))
        for module in network:
            if isinstance(module, Dropout):
                module.generator = torch.Generator().manual_seed(3)
        return make_spec(network)

    step, reports = run_both(make, batches(6))
    assert (step.n_replayed, reports) == (3, [])


class Tables(nn.Module):
    """Two tables with common and with missing ids, one of them used twice."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = row_table(torch.randn(20, 2))
        self.second = row_table(torch.randn(50, 1))
        self.last = nn.Linear(2, 1)

    def forward(self, features):
        x = combined_rows(self.first, features["few"], "mean", max_norm=1.0)
        x = x + row_lookup(self.second, features["one"])
        return self.last(x)


def id_batches(n_steps):
    generator = torch.Generator().manual_seed(0)
    for _ in range(n_steps):
        few = torch.randint(-1, 20, (16, 3), generator=generator)
        one = torch.randint(-1, 50, (16,), generator=generator)
        yield {"few": few, "one": one}, few[:, :1].float()


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_row_tables(name):
    def make():
        network = Tables()
        return make_spec(network, optimizer=named(name)(network))

    step, reports = run_both(make, list(id_batches(8)))
    assert (step.n_replayed, reports) == (5, [])


def test_row_tables_that_are_clipped():
    def make():
        network = Tables()
        return make_spec(network, optimizer=named("adagrad")(network), clip_norm=0.1)

    step, reports = run_both(make, list(id_batches(6)))
    assert (step.n_replayed, reports) == (3, [])


def test_a_table_that_is_looked_up_twice():
    class Twice(Tables):
        def forward(self, features):
            again = row_lookup(self.second, features["few"][:, 0])
            return super().forward(features) + again

    def make():
        network = Twice()
        return make_spec(network, optimizer=named("adagrad")(network))

    # The sum of two sparse gradients has a shape that depends on the ids.
    step, reports = run_both(make, list(id_batches(6)))
    assert step.n_replayed == 0
    assert reports == [
        "Training steps are taken eagerly: 'aten::add.Tensor' joins sparse gradients of "
        "a table that is used twice."
    ]


class Bag(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.EmbeddingBag(9, 3, sparse=True, **options)
        self.layer = nn.Linear(3, 1)

    def forward(self, ids):
        return self.layer(self.rows(ids))


@pytest.mark.parametrize("kind", [torch.optim.Adagrad, torch.optim.SGD])
@pytest.mark.parametrize("mode", ["sum", "mean"])
@pytest.mark.parametrize("padding", [None, 0])
def test_sparse_bags(mode, kind, padding):
    def make():
        network = Bag(mode=mode, padding_idx=padding)
        return make_spec(network, optimizer=kind(network.parameters(), lr=0.1))

    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(9, (8, 4), generator=generator) for _ in range(8)]
    step, reports = run_both(make, [(i, i[:, :1] / 9) for i in ids])
    # Without entries for one id, there are fewer of them in some batches.
    assert step.n_replayed == (5 if padding is None else 0)
    assert len(reports) == (0 if padding is None else 1)


def test_a_scheduled_rate_is_the_one_of_the_step():
    def make():
        network = mlp()
        optimizer = make_optimizer("adam", network.parameters(), lambda s: 0.1 * 0.9**s)
        return make_spec(network, optimizer=optimizer)

    reports = []
    eager, graph = make(), make()
    step = GraphStep(graph, eager_steps=1, report=reports.append)
    for features, labels in batches(8):
        assert torch.equal(step(features, labels), train_step(eager, features, labels))
        for spec in (eager, graph):
            spec.lr_schedulers[0].step()
    assert (step.n_replayed, reports) == (5, [])


def test_a_shared_parameter_and_one_without_a_gradient():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(3, 3))
            self.unused = nn.Parameter(torch.randn(3))
            self.left, self.right = (
                nn.Parameter(torch.ones(1)),
                nn.Parameter(torch.ones(1)),
            )

        def forward(self, x):
            y = torch.tanh(x @ self.weight) @ self.weight.t()
            return y[:, :1] + (self.left + self.right)

    step, _ = run_both(lambda: make_spec(Shared(), clip_norm=0.5), batches(6))
    assert step.n_replayed == 3
    step, _ = run_both(lambda: make_spec(Shared()), batches(6))
    assert step.n_replayed == 3


def test_every_size_of_batch_has_a_recording_of_its_own():
    # 2 of 3 batches are full; the others have to come 20 times before.
    step, _ = run_both(lambda: make_spec(mlp()), batches(90, sizes=(8, 8, 5)))
    assert step.n_replayed == 60 - 3 + 30 - 22


def test_gradients_can_be_read_after_a_step():
    eager, graph = make_spec(mlp()), make_spec(mlp())
    step = GraphStep(graph, eager_steps=1, report=print)
    for features, labels in batches(6):
        step(features, labels)
        train_step(eager, features, labels)
        for ours, theirs in zip(
            graph.network.parameters(), eager.network.parameters(), strict=True
        ):
            assert torch.equal(ours.grad, theirs.grad)


def test_another_update_is_called_after_every_step_and_not_recorded():
    eager, graph = make_spec(mlp()), make_spec(mlp())
    updated = []

    def scaled(spec):
        updated.append(spec)
        with torch.no_grad():
            for parameter in spec.network.parameters():
                parameter -= len(updated) * 0.01 * parameter.grad

    halves = Halves(update=scaled)
    step = GraphStep(graph, eager_steps=1, report=print, halves=halves)
    for features, labels in batches(8):
        loss = step(features, labels)
        updated.pop()  # it counts again for the other one
        assert torch.equal(loss, halves.eager(eager)(features, labels))
        for ours, theirs in zip(state(graph), state(eager), strict=True):
            assert torch.equal(ours, theirs)
    assert updated == [eager] * 8
    assert step.n_replayed == 8 - 3


def test_losses_are_tensors_of_their_own():
    step = GraphStep(make_spec(mlp()), eager_steps=1, report=print)
    losses = [step(*batch) for batch in batches(8)]
    values = [loss.item() for loss in losses]
    assert len(set(values)) == len(values)


def test_a_batch_may_hold_a_tensor_twice_and_nests():
    def loss(labels, logits, features):
        return mean_square(labels["y"][0], logits, features)

    class Nested(nn.Sequential):
        def forward(self, features):
            return super().forward(features["a"] + features["b"])

    def make():
        torch.manual_seed(0)
        return make_spec(Nested(nn.Linear(3, 1)), loss=loss)

    data = [({"a": x, "b": x}, {"y": (y, None)}) for x, y in batches(6)]
    step, reports = run_both(make, data)
    assert (step.n_replayed, reports) == (3, [])


# What stays eager


def branching(labels, logits, features):
    loss = mean_square(labels, logits, features)
    return loss if loss > 0.3 else 2 * loss


def masked(labels, logits, features):
    return (logits - labels)[labels > 0].square().sum()


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (branching, "(is_nonzero|_local_scalar_dense)' makes Python or the shape of a"),
        (
            masked,
            "(index.Tensor|nonzero)' makes Python or the shape of a tensor depend",
        ),
    ],
)
def test_what_depends_on_data_stays_eager_and_tells_once(loss, reason):
    step, reports = run_both(lambda: make_spec(mlp(), loss=loss), batches(6))
    assert step.n_replayed == 0
    (report,) = reports
    assert re.match(f"Training steps are taken eagerly: 'aten::{reason}", report)


def test_a_step_that_changes_the_batch_stays_eager():
    def loss(labels, logits, features):
        return mean_square(labels.add_(1), logits, features)

    reports = []
    step = GraphStep(make_spec(mlp(), loss=loss), eager_steps=1, report=reports.append)
    for batch in batches(4):
        step(*batch)
    assert reports == [
        "Training steps are taken eagerly: 'aten::add_.Tensor' changes the batch."
    ]


@pytest.mark.parametrize(
    "layer", [nn.LeakyReLU(0.5, inplace=True), nn.Dropout(0.5, inplace=True)]
)
def test_a_step_that_changes_a_view_of_the_batch_stays_eager(layer):
    def make():
        torch.manual_seed(0)
        return make_spec(nn.Sequential(nn.Flatten(), layer, nn.Linear(3, 1)))

    eager, graph = make(), make()
    reports = []
    step = GraphStep(graph, eager_steps=1, report=reports.append)
    for seed, (x, y) in enumerate(batches(6)):
        xs = [x.reshape(8, 3, 1).clone() for _ in range(2)]
        torch.manual_seed(seed)
        expected = train_step(eager, xs[0], y)
        torch.manual_seed(seed)
        assert torch.equal(step(xs[1], y), expected)
        assert torch.equal(*xs)
    for ours, theirs in zip(state(graph), state(eager), strict=True):
        assert torch.equal(ours, theirs)
    (report,) = reports
    assert "changes the batch" in report


def loss_through_numpy(labels, logits, features):
    scale = torch.from_numpy(np.exp(features.numpy()[:, :1]))
    return (scale * (logits - labels).square()).mean()


def loss_of_iterator():
    numbers = itertools.count(1)  # a state that nobody can see from outside
    return lambda y, z, x: mean_square(y, z, x) / next(numbers)


class RareBranch(nn.Linear):
    """Takes another way for few batches, or from a late step on."""

    def __init__(self, is_rare):
        super().__init__(5, 5)
        self.is_rare = is_rare

    def forward(self, x):
        return super().forward(x) * (2.0 if self.is_rare(x) else 1.0)


def counting():
    counts = [0]

    def is_rare(x):
        counts[0] += 1
        return counts[0] > 6

    return is_rare


def with_own_activation():
    is_rare = counting()

    def activation(x):
        return x.relu() * (0.5 if is_rare(x) else 1.0)

    layer = nn.TransformerEncoderLayer(5, 1, 4, 0.0, activation, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (1, 5)), layer, nn.Flatten())


def with_replaced_forward():
    layer, is_rare = nn.Linear(5, 5), counting()
    forward = layer.forward
    layer.forward = lambda x: forward(x) * (0.5 if is_rare(x) else 1.0)
    return layer


DEPEND_ON_DATA = "makes Python depend on data"
CHANGED = "changes in a step what its Python code reads"


@pytest.mark.parametrize(
    ("make_layer", "reason"),
    [
        (lambda: RareBranch(lambda x: max(x[:, 0].tolist()) > 1), DEPEND_ON_DATA),
        (lambda: RareBranch(lambda x: x.detach().numpy().max() > 1), DEPEND_ON_DATA),
        (lambda: RareBranch(lambda x: np.max(np.asarray(x)) > 1), DEPEND_ON_DATA),
        (lambda: RareBranch(lambda x: random.random() > 2), "draws random numbers"),
        (lambda: RareBranch(lambda x: np.random.rand() > 2), "draws random numbers"),
        (lambda: RareBranch(counting()), CHANGED),
        (with_own_activation, CHANGED),
        (with_replaced_forward, CHANGED),
    ],
)
def test_python_that_rarely_acts_differently_stays_eager(make_layer, reason):
    def make():
        torch.manual_seed(0)
        layers = [nn.Linear(3, 5), Detached(), make_layer(), nn.Linear(5, 1)]
        return make_spec(nn.Sequential(*layers))

    step, reports = run_both(make, batches(12), is_watched=False)
    assert step.n_replayed == 0
    (report,) = reports
    assert reason in report


class Detached(nn.Module):
    def forward(self, x):
        return x.detach()  # NumPy takes no tensors with gradients


@pytest.mark.parametrize(
    ("make_loss", "reason"),
    [
        (lambda: loss_through_numpy, "'Tensor.numpy' makes Python depend on data"),
        (loss_of_iterator, CHANGED),
    ],
)
def test_numbers_from_elsewhere_are_noticed(make_loss, reason):
    def make():
        return make_spec(mlp(), loss=make_loss())

    step, reports = run_both(make, batches(6))
    assert step.n_replayed == 0
    (report,) = reports
    assert reason in report


class Unseen:
    """Stands for a clock: nothing of it changes where anybody looks."""

    def __init__(self):
        self.name = "SKEST_TEST_CLOCK"

    def __call__(self, labels, logits, features):
        now = int(os.environ.get(self.name, "1"))
        os.environ[self.name] = str(now + 1)
        return now * mean_square(labels, logits, features)


def test_what_differs_is_told(monkeypatch):
    monkeypatch.setenv("SKEST_TEST_CLOCK", "1")
    reports = []
    spec = make_spec(mlp(), loss=Unseen())
    step = GraphStep(spec, eager_steps=1, report=reports.append)
    for batch in batches(5):
        step(*batch)
    assert step.n_replayed == 0
    (report,) = reports
    assert re.fullmatch(
        r"Training steps are taken eagerly: a recorded step gave other numbers with "
        r"another batch, in the loss of shape \(\), by up to [0-9.e-]+\.",
        report,
    )


def test_a_loss_that_counts_steps_is_noticed():
    class Warming:
        n_steps = 0

        def __call__(self, labels, logits, features):
            self.n_steps += 1
            return mean_square(labels, logits, features) / self.n_steps

    step, reports = run_both(lambda: make_spec(mlp(), loss=Warming()), batches(6))
    assert (step.n_replayed, len(reports)) == (0, 1)


def test_batches_of_ever_new_shapes_stay_eager():
    step, reports = run_both(lambda: make_spec(mlp()), batches(70, sizes=range(1, 71)))
    assert step.n_replayed == 0
    (report,) = reports
    assert "the shapes of the batches keep changing" in report


def test_a_batch_with_more_than_tensors_stays_eager():
    class First(nn.Sequential):
        def forward(self, features):
            return super().forward(features["x"])

    def make():
        torch.manual_seed(0)
        return make_spec(First(nn.Linear(3, 1)))

    data = [({"x": x, "name": "a"}, y) for x, y in batches(5)]
    _, reports = run_both(make, data)
    assert reports == [
        "Training steps are taken eagerly: a batch has a str beside its tensors."
    ]


# What others change between steps


def change_dropout(spec):
    spec.network[2].p = 0.7


def change_mode(spec):
    spec.network[2].eval()


def freeze(spec):
    spec.network[0].weight.requires_grad_(False)


def replace_storage(spec):
    spec.network[0].weight.data = spec.network[0].weight.detach() * 2


def change_values(spec):
    with torch.no_grad():
        spec.network[0].weight.mul_(2)


def replace_layer(spec):
    spec.network[1] = nn.Tanh()


def add_hook(spec):
    spec.network[1].register_forward_hook(lambda module, inputs, output: 2 * output)


def change_rate(spec):
    spec.optimizers[0].param_groups[0]["lr"] = 0.01


def reload_optimizer(spec):
    (optimizer,) = spec.optimizers
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


def clear_slots(spec):
    spec.optimizers[0].state.clear()


def replace_slots(spec):
    for slots in spec.optimizers[0].state.values():
        for name, slot in slots.items():
            slots[name] = torch.full_like(slot, 2)


def move_slots(spec):
    for slots in spec.optimizers[0].state.values():
        for slot in slots.values():
            slot.data = torch.full_like(slot, 2)


def tensor_rate(spec):
    spec.optimizers[0].param_groups[0]["lr"] = torch.tensor(0.01)


class Weighted:
    def __init__(self):
        self.scale, self.scales, self.by_name = 1.0, [1.0], {"a": 1.0}
        self.module = nn.HuberLoss()

    def compute(self, labels, logits, features):
        scale = self.scale * self.scales[0] * self.by_name["a"]
        return scale * self.module(logits, labels)

    def __call__(self, labels, logits, features):
        return self.compute(labels, logits, features)


def change_scale(loss):
    loss.scale = 2.0


def change_in_list(loss):
    loss.scales[0] = 2.0


def change_in_dict(loss):
    loss.by_name["a"] = 2.0


def change_in_module(loss):
    loss.module.delta = 0.01


@pytest.mark.parametrize("kind", ["object", "method", "partial"])
@pytest.mark.parametrize(
    "change", [change_scale, change_in_list, change_in_dict, change_in_module]
)
def test_what_hooks_change_of_the_loss_counts(change, kind):
    def make():
        loss = Weighted()
        given = {
            "object": loss,
            "method": loss.compute,
            "partial": functools.partial(loss.compute),
        }
        return loss, make_spec(mlp(), loss=given[kind])

    (of_eager, eager), (of_graph, graph) = make(), make()
    assert_change_counts(change, eager, graph, [of_eager, of_graph])


SCALE = {"of all": 1.0}


@pytest.mark.parametrize("where", ["closure", "global", "default"])
def test_what_hooks_change_around_a_function_counts(where):
    def make():
        scale = SCALE if where == "global" else {"of all": 1.0}
        losses = {
            "closure": lambda y, z, x: scale["of all"] * mean_square(y, z, x),
            "global": lambda y, z, x: SCALE["of all"] * mean_square(y, z, x),
            "default": lambda y, z, x, s=scale: s["of all"] * mean_square(y, z, x),
        }
        return scale, make_spec(mlp(), loss=losses[where])

    (of_eager, eager), (of_graph, graph) = make(), make()
    step = GraphStep(graph, eager_steps=1, report=print)
    for i, (features, labels) in enumerate(batches(12)):
        of_eager["of all"] = of_graph["of all"] = 1.0 if i < 6 else 0.5
        assert torch.equal(step(features, labels), train_step(eager, features, labels))
    assert step.n_replayed == 12 - 3 - 2


def hook_gradient(spec):
    spec.network[0].weight.register_hook(lambda gradient: 2 * gradient)


def replace_forward(spec):
    spec.network[1].forward = torch.tanh


def move_buffer(spec):
    spec.network[2].running_mean.data = torch.full((5,), 0.5)


class Scaled(nn.BatchNorm1d):
    def __init__(self, n):
        super().__init__(n)
        self.scales = [1.0]

    def forward(self, x):
        return self.scales[0] * super().forward(x)


def change_in_list_of_module(spec):
    spec.network[2].scales[0] = 2.0


@pytest.mark.parametrize(
    "change", [hook_gradient, replace_forward, move_buffer, change_in_list_of_module]
)
def test_what_is_changed_beside_attributes_counts(change):
    def make():
        return make_spec(mlp(Scaled(5)))

    eager, graph = make(), make()
    assert_change_counts(change, eager, graph, [eager, graph])


@pytest.mark.parametrize("change", [clear_slots, replace_slots, move_slots])
@pytest.mark.parametrize("name", ["momentum", "adam", "rate"])
@pytest.mark.parametrize("at_step", [1, 2, 3, 6])
def test_what_hooks_change_of_optimizers_counts(change, name, at_step):
    def make():
        network = mlp()
        if name == "rate":
            rate = torch.tensor(0.1)
            optimizer = torch.optim.Adam(network.parameters(), lr=rate, fused=True)
        else:
            optimizer = named(name)(network)
        return make_spec(network, optimizer=optimizer)

    eager, graph = make(), make()
    step = GraphStep(graph, eager_steps=1, report=print)
    for i, (features, labels) in enumerate(batches(12)):
        if i == at_step:
            change(eager)
            change(graph)
        if i == 9 and name == "rate":
            tensor_rate(eager)
            tensor_rate(graph)
        assert torch.equal(step(features, labels), train_step(eager, features, labels))
        for ours, theirs in zip(state(graph), state(eager), strict=True):
            assert torch.equal(ours, theirs)
    assert step.n_replayed > 3


@pytest.mark.parametrize(
    "change",
    [
        change_dropout,
        change_mode,
        freeze,
        replace_storage,
        change_values,
        replace_layer,
        add_hook,
        change_rate,
        reload_optimizer,
    ],
)
def test_what_hooks_change_between_steps_counts(change):
    def make():
        network = mlp(nn.Dropout(0.3))
        return make_spec(network, optimizer=named("momentum")(network))

    eager, graph = make(), make()
    reports = []
    step = GraphStep(graph, eager_steps=1, report=reports.append)
    for i, (features, labels) in enumerate(batches(12)):
        if i == 6:
            change(eager)
            change(graph)
        torch.manual_seed(i)
        expected = train_step(eager, features, labels)
        torch.manual_seed(i)
        assert torch.equal(step(features, labels), expected)
    for ours, theirs in zip(state(graph), state(eager), strict=True):
        assert torch.equal(ours, theirs)
    assert step.n_replayed > 3
    assert reports == []


@pytest.mark.parametrize("at_step", [0, 6])
@pytest.mark.parametrize("kind", ["pre", "post", "inner", "all", "step"])
def test_hooks_of_updates_are_called_in_every_step(kind, at_step):
    called = []

    def note(*args):
        called.append(None)

    def register(optimizer):
        if kind == "pre":
            return optimizer.register_step_pre_hook(note)
        if kind == "post":
            return optimizer.register_step_post_hook(note)
        if kind == "inner":
            return optimizer.inner.register_step_post_hook(note)
        if kind == "all":
            return register_optimizer_step_post_hook(note)
        step = optimizer.step
        optimizer.step = lambda: (note(), step())
        return None

    def train(make_step):
        called.clear()
        network = mlp()
        optimizer = named("adam")(network)
        optimizer = RowSparse(optimizer) if kind == "inner" else optimizer
        spec, handle = make_spec(network, optimizer=optimizer), None
        step = make_step(spec)
        for i, batch in enumerate(batches(12)):
            if i == at_step:
                handle = register(optimizer)
            step(*batch)
        if handle is not None:
            handle.remove()
        return len(called), state(spec), step

    def graph(spec):
        return GraphStep(spec, eager_steps=1, report=print, is_watched=False)

    expected, of_eager, _ = train(lambda spec: functools.partial(train_step, spec))
    n_called, of_graph, step = train(graph)
    assert n_called == expected > 0
    assert step.n_replayed > 5
    for ours, theirs in zip(of_graph, of_eager, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "register", [register_module_forward_hook, register_module_forward_pre_hook]
)
def test_hooks_of_all_modules_are_called_in_every_step(register):
    called = []
    spec = make_spec(mlp())
    step = GraphStep(spec, eager_steps=1, report=print, is_watched=False)
    eager = make_spec(mlp())
    for i, (features, labels) in enumerate(batches(14)):
        if i == 6:
            handle = register(lambda *args: called.append(None))
        if i == 10:
            handle.remove()
        assert torch.equal(step(features, labels), train_step(eager, features, labels))
    assert len(called) == 2 * 4 * len(list(spec.network.modules()))
    assert step.n_replayed == 14 - 3 - 4


class Counting(nn.Linear):
    n_calls = 0

    def forward(self, x):
        self.n_calls += 1
        return super().forward(x)


class Averaging(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.register_buffer("average", torch.zeros(3))

    def forward(self, x):
        self.average = 0.9 * self.average + 0.1 * x.mean(dim=0)
        return super().forward(x)


@pytest.mark.parametrize("kind", [Counting, Averaging])
def test_a_model_that_changes_attributes_stays_eager(kind):
    def make():
        torch.manual_seed(0)
        return make_spec(kind(3, 1))

    step, reports = run_both(make, batches(8), is_watched=False)
    assert step.n_replayed == 0
    (report,) = reports
    assert "the model changes attributes of its modules in a step" in report


def test_a_model_that_hooks_keep_changing_stays_eager():
    reports = []
    spec = make_spec(mlp(nn.Dropout(0.0)))
    step = GraphStep(spec, eager_steps=1, report=reports.append)
    for i, batch in enumerate(batches(8)):
        spec.network[2].p = i / 10
        step(*batch)
    assert step.n_replayed == 0
    (report,) = reports
    assert "the model keeps changing between steps" in report


def test_an_optimizer_that_replaces_its_slots_updates_by_itself():
    class Replacing(torch.optim.SGD):
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    before = self.state[p].get("sum", torch.zeros_like(p))
                    self.state[p]["sum"] = before + p.grad
                    p.data.sub_(0.1 * self.state[p]["sum"])

    def make():
        network = mlp()
        return make_spec(network, optimizer=Replacing(network.parameters(), lr=0.1))

    step, reports = run_both(make, batches(8))
    assert (step.n_replayed, reports) == (5, [])


# Sequences


def sequence_spec(cell_type):
    columns = FeatureColumns([sequence_numeric_column("s")])
    rnn = RNN(
        SequenceFeatures(columns),
        None,
        (4,),
        1,
        cell_type=cell_type,
        generator=torch.Generator().manual_seed(0),
    )
    return columns, make_spec(rnn, optimizer=torch.optim.Adagrad(rnn.parameters()))


def sequence_batches(columns, lengths):
    """Return batches of a table whose longest sequences are as long as told."""
    cells = [
        np.arange(1.0, 1 + (n if i == 0 else 1)) / (i + k + 1)
        for k, n in enumerate(lengths)
        for i in range(4)
    ]
    encoded = columns.encode({"s": np.array([*cells, np.ones(9)], dtype=object)})
    for k in range(len(lengths)):
        rows = slice(4 * k, 4 * k + 4)
        batch = {name: values[rows] for name, values in encoded.items()}
        yield {"sequence": batch}, torch.full((4, 1), k / 10)


@pytest.mark.parametrize("cell_type", ["simple_rnn", "gru"])
def test_sequences_have_a_recording_for_each_length(cell_type):
    columns, _ = sequence_spec(cell_type)
    lengths = [5, 5, 5, 2, 5, 7] * 7  # 28 of five steps, of which 20 are eager
    step, reports = run_both(
        lambda: sequence_spec(cell_type)[1], [*sequence_batches(columns, lengths)]
    )
    assert (step.n_replayed, reports) == (28 - 20 - 2, [])


def test_layers_that_need_autograd_stay_eager():
    columns, _ = sequence_spec("lstm")
    step, reports = run_both(
        lambda: sequence_spec("lstm")[1], [*sequence_batches(columns, [5] * 24)]
    )
    assert step.n_replayed == 0
    assert reports == [
        "Training steps are taken eagerly: 'aten::mkldnn_rnn_layer' needs autograd."
    ]


def adds_what_is_rare(labels, logits, features):
    outliers = torch.tensor(0.0)
    outliers += (features > 2.8).sum()  # none in the steps that are compared
    return (1 + outliers) * mean_square(labels, logits, features)


def adds_up(labels, logits, features):
    total = torch.tensor([0.0, 0.0])
    total[0] += mean_square(labels, logits, features)
    total[1] += logits.abs().mean()
    return total.sum()


@pytest.mark.parametrize("loss", [adds_what_is_rare, adds_up])
def test_tensors_made_of_numbers_are_new_in_every_step(loss):
    data = batches(40)
    assert not any((x > 2.8).any() for x, _ in data[:3])
    assert sum((x > 2.8).any() for x, _ in data[3:]) > 1
    step, reports = run_both(lambda: make_spec(mlp(), loss=loss), data)
    assert (step.n_replayed, reports) == (37, [])


def test_zeros_of_both_signs_are_told_apart():
    def loss(labels, logits, features):
        zeros = torch.full((2,), 0.0), torch.full((2,), -0.0)
        signs = torch.stack([torch.copysign(logits.new_ones(2), z) for z in zeros])
        return mean_square(labels, logits + 0.1 * signs.cumsum(1).prod(), features)

    step, reports = run_both(lambda: make_spec(mlp(), loss=loss), batches(5))
    assert (step.n_replayed, reports) == (2, [])


def test_recorded_steps_are_not_kept_alive():
    spec = make_spec(mlp())
    step = GraphStep(spec, eager_steps=1, report=pytest.fail)
    for features, labels in batches(4):
        step(features, labels)
    (replay,) = step._replays.values()
    program = weakref.ref(replay._program._step)
    gc.disable()
    try:
        del step, replay
        assert program() is None
    finally:
        gc.enable()


def test_operations_of_others_may_draw_random_numbers():
    def make():
        network = mlp()

        def loss(labels, logits, features):
            noise = noisy(logits) - noisy(logits)
            return mean_square(labels, logits + noise, features)

        return make_spec(network, loss=loss)

    step, reports = run_both(make, batches(6))
    assert (step.n_replayed, reports) == (3, [])


@torch.library.custom_op("skest_tests::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn_like(x)


noisy.register_autograd(lambda context, gradient: gradient)


def test_a_model_may_read_the_tensors_of_a_batch_elsewhere():
    (probe, _), *data = batches(8)

    def make():
        network = mlp()

        def loss(labels, logits, features):
            return mean_square(labels, logits, features) + network(probe).mean()

        return make_spec(network, loss=loss)

    step, _ = run_both(make, [(probe, y) for _, y in data] + data)
    assert step.n_replayed == len(data) - 3


@pytest.mark.parametrize("is_other", ["is_conj", "is_neg"])
def test_batches_with_pending_changes_of_signs_are_a_kind_of_their_own(is_other):
    def make():
        return make_spec(nn.Sequential(Real(), *mlp()))

    def pending(x, i):
        z = torch.complex(x, x.flip(0))
        z = z.conj() if i % 2 else z.clone()
        return z if is_other == "is_conj" else z.imag

    data = [(pending(x, i), labels) for i, (x, labels) in enumerate(batches(60))]
    assert getattr(data[1][0], is_other)()
    run_both(make, data)


class Real(nn.Module):
    def forward(self, x):
        if x.is_conj():
            return torch.view_as_real(x.conj())[..., 0]
        return torch.view_as_real(x)[..., 1] if x.is_complex() else x
