# SPDX-License-Identifier: Apache-2.0
"""Replayed steps are the eager ones, bit for bit; what cannot be recorded is eager."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import (
    _disable_current_modes,
    _get_current_dispatch_mode,
)

from skest.feature_columns import (
    FeatureColumns,
    SequenceFeatures,
    sequence_numeric_column,
)
from skest.feature_columns.lookup import combined_rows, row_lookup, row_table
from skest.hooks import Hook, LRScheduleHook
from skest.networks import RNN, BatchNorm, Dropout
from skest.optimizers import OPTIMIZERS, make_optimizer
from tests._control_flow import Branches
from tests.engine.recorded._steps import (
    batches,
    make_spec,
    mean_square,
    mlp,
    run_both,
    sgd,
)


def named(name, **options):
    return lambda network: make_optimizer(name, network.parameters(), 0.1, **options)


class OwnRule(torch.optim.SGD):
    """Counts in Python, and replaces its slots."""

    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                slots = self.state[p]
                slots["n"] = slots.get("n", 0) + 1
                slots["sum"] = slots.get("sum", torch.zeros_like(p)) + p.grad
                p.data.sub_(0.1 / slots["n"] * slots["sum"])


# Adam that is not fused reads its counters in Python, so that only the gradients are
# recorded; Rprop has branches, NAdam counts in tensors.
@pytest.mark.parametrize(
    "make_own",
    [
        lambda p: torch.optim.Adam(p, lr=0.1),
        lambda p: torch.optim.Adam(p, lr=0.1, fused=True, amsgrad=True),
        lambda p: torch.optim.AdamW(p, lr=0.1, foreach=True),
        lambda p: torch.optim.Rprop(p),
        lambda p: torch.optim.RMSprop(p, momentum=0.5, centered=True),
        lambda p: torch.optim.SGD(p, nesterov=True, momentum=0.9, weight_decay=0.1),
        OwnRule,
    ],
)
def test_other_optimizers(make_own):
    def make():
        return make_spec(mlp(), lambda network: make_own(network.parameters()))

    assert run_both(make, batches(8)) == (6, [])


@pytest.mark.parametrize(
    "middle",
    [
        lambda: [Dropout(0.3), nn.Dropout(0.3)],
        lambda: [BatchNorm(5), nn.BatchNorm1d(5)],
        lambda: [nn.LayerNorm(5), nn.GELU(), nn.Softmax(dim=1), nn.PReLU()],
        lambda: [nn.Linear(5, 5), nn.LeakyReLU(inplace=True), nn.Hardswish()],
        lambda: [
            nn.Unflatten(1, (1, 5)),
            nn.TransformerEncoderLayer(5, 1, 4, 0.1, batch_first=True),
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

    assert run_both(make, batches(6)) == (4, [])


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


@pytest.mark.parametrize(
    ("name", "clip_norm"),
    [("adagrad", None), *((name, 0.1) for name in sorted(OPTIMIZERS))],
)
def test_row_tables(name, clip_norm):
    def make():
        return make_spec(Tables(), named(name), clip_norm=clip_norm)

    assert run_both(make, list(id_batches(7))) == (5, [])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_row_tables_of_other_types(dtype):
    # Of few rows: their gradients are made dense.
    def make():
        return make_spec(Tables().to(dtype), named("adagrad"))

    def longer(values):
        return values.repeat_interleave(8, 0)

    data = [
        ({name: longer(ids) for name, ids in x.items()}, longer(y).to(dtype))
        for x, y in id_batches(7)
    ]
    assert run_both(make, data) == (5, [])


def test_a_table_that_is_looked_up_twice():
    class Twice(Tables):
        def forward(self, features):
            again = row_lookup(self.second, features["few"][:, 0])
            return super().forward(features) + again

    def make():
        return make_spec(Twice(), named("adagrad"))

    # The sum of two sparse gradients has a shape that depends on the ids.
    assert run_both(make, list(id_batches(4))) == (
        0,
        ["'aten::add.Tensor' joins sparse gradients of a table that is used twice."],
    )


class Bag(nn.Module):
    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.rows = nn.EmbeddingBag(9, 3, sparse=True, **options)
        self.layer = nn.Linear(3, 1)

    def forward(self, ids):
        return self.layer(self.rows(ids))


@pytest.mark.parametrize(
    ("options", "kind"),
    [({"mode": "sum"}, torch.optim.Adagrad), ({"padding_idx": 0}, torch.optim.SGD)],
)
def test_sparse_bags(options, kind):
    def make():
        return make_spec(Bag(**options), lambda bag: kind(bag.parameters(), lr=0.1))

    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(9, (8, 4), generator=generator) for _ in range(8)]
    n_replayed, reports = run_both(make, [(i, i[:, :1] / 9) for i in ids])
    # Without entries for one id, there are fewer of them in some batches.
    is_padded = "padding_idx" in options
    assert (n_replayed, len(reports)) == ((0, 1) if is_padded else (6, 0))


@pytest.mark.parametrize(
    # The rest of an epoch comes 20 times before, unless it is known to come 40 times.
    ("n_steps", "n_eager"),
    [(None, 21), (119, 21), (120, 2)],
)
def test_every_size_of_batch_has_a_recording_of_its_own(n_steps, n_eager):
    data = batches(90, sizes=(8, 8, 5))  # 2 of 3 are full
    found = run_both(lambda: make_spec(mlp()), data, n_steps=n_steps)
    assert found == (60 - 2 + 30 - n_eager, [])


def test_many_sizes_of_batches_have_to_come_often():
    data = batches(90, sizes=(8, 7, 6, 5, 4, 3))
    n_replayed, _ = run_both(lambda: make_spec(mlp()), data, n_steps=10_000)
    assert n_replayed == 2 * (15 - 2)


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(3, 4)
        self.tasks = nn.ModuleDict({name: nn.Linear(4, 1) for name in "ab"})

    def forward(self, features):
        ((name, x),) = features.items()
        return self.tasks[name](self.body(x).tanh())


@pytest.mark.parametrize(
    ("optimizer", "is_scheduled"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), True),
        (lambda p: torch.optim.Adam(p, lr=0.01, fused=True), False),
    ],
)
def test_kinds_of_batches_that_train_different_parameters(optimizer, is_scheduled):
    def make():
        network = TwoTasks()
        own = optimizer(network.parameters())
        later = torch.optim.lr_scheduler.StepLR(own, 20) if is_scheduled else None
        return make_spec(network, optimizer=own, lr_scheduler=later)

    data = [
        ({"a" if i < 10 or i % 2 else "b": x}, y)
        for i, (x, y) in enumerate(batches(60))
    ]
    n_replayed, reports = run_both(make, data)
    assert reports == []
    assert n_replayed > 20


# What changes from step to step all the same


def cyclic(optimizer):  # sets momenta, too
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=20)


def by_hand(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)


@pytest.mark.parametrize(
    ("schedule", "name"), [(cyclic, "momentum"), (by_hand, "ftrl"), (None, "adam")]
)
def test_rates_follow_their_schedule(schedule, name):
    def make():
        network = mlp()
        rate = 0.1 if schedule else lambda step: 0.1 * 0.9**step
        optimizer = make_optimizer(name, network.parameters(), rate)
        later = schedule(optimizer) if schedule else None
        return make_spec(network, optimizer=optimizer, lr_scheduler=later)

    assert run_both(make, batches(9)) == (7, [])


class Own(Hook):
    """A hook that skest does not know."""


@pytest.mark.parametrize("hook", [Own(), LRScheduleHook(lambda step: 0.1)])
def test_options_that_a_hook_may_change_are_read_in_every_step(hook):
    def make():
        return make_spec(mlp(), named("momentum"))

    def change(spec, i):
        (group,) = spec.optimizers[0].param_groups
        group["lr"], group["momentum"] = 0.1 / (i + 1), 0.5
        with torch.no_grad():
            spec.network[0].weight.mul_(0.99)

    assert run_both(make, batches(8), hooks=[hook], between=change) == (6, [])


@torch.library.custom_op("skest_tests::noisy", mutates_args=())
def noisy(x: torch.Tensor) -> torch.Tensor:
    return x + torch.randn_like(x)


noisy.register_autograd(lambda context, gradient: gradient)


def with_noise(labels, logits, features):
    return mean_square(labels, logits + noisy(logits) - noisy(logits), features)


def adds_what_is_rare(labels, logits, features):
    outliers = torch.tensor(0.0)
    outliers += (features > 1.5).sum()
    return (1 + outliers) * mean_square(labels, logits, features)


def adds_up(labels, logits, features):
    total = torch.tensor([0.0, 0.0])
    total[0] += mean_square(labels, logits, features)
    total[1] += logits.abs().mean()
    return total.sum()


def with_signs(labels, logits, features):
    zeros = torch.full((2,), 0.0), torch.full((2,), -0.0)
    signs = torch.stack([torch.copysign(logits.new_ones(2), z) for z in zeros])
    return mean_square(labels, logits + 0.1 * signs.cumsum(1).prod(), features)


def constant_gradient(labels, logits, features):
    return -logits.mean()


@pytest.mark.parametrize(
    "loss", [with_noise, adds_what_is_rare, adds_up, with_signs, constant_gradient]
)
def test_losses(loss):
    def make():
        return make_spec(mlp(), loss=loss, clip_norm=0.5)

    assert run_both(make, batches(12)) == (10, [])
    assert run_both(make, batches(12), hooks=[Own()]) == (10, [])


# What stays eager


def branching(labels, logits, features):
    loss = mean_square(labels, logits, features)
    return loss if loss > 0.3 else 2 * loss


def masked(labels, logits, features):
    return (logits - labels)[labels > 0].square().sum()


def resized(labels, logits, features):
    return (logits - labels).square().detach().resize_(4, 1).mean() + logits.mean()


def in_the_batch(labels, logits, features):
    return mean_square(labels.add_(0), logits, features)


@pytest.mark.parametrize(
    ("loss", "reason"),
    [
        (branching, "makes Python or the shape of a tensor depend on data"),
        (masked, "makes Python or the shape of a tensor depend on data"),
        (resized, "'aten::resize_' changes the shape of a tensor in place"),
        (in_the_batch, "'aten::add_.Tensor' changes the batch"),
    ],
)
def test_losses_that_cannot_be_recorded(loss, reason):
    found = run_both(lambda: make_spec(mlp(), loss=loss), batches(5))
    n_replayed, (report,) = found
    assert n_replayed == 0
    assert reason in report


class Fussy(nn.Module):
    """Fails where operations are recorded."""

    def forward(self, x):
        if _get_current_dispatch_mode() is not None:
            raise TypeError("no modes here")
        return x


def with_draws():
    own = Dropout(0.5)
    own.generator = torch.Generator().manual_seed(2)
    return mlp(nn.BatchNorm1d(5), nn.Dropout(0.5), own, Fussy())


def compiled_in_place():
    torch.manual_seed(0)
    layer = nn.Linear(5, 5)
    layer.compile(backend="aot_eager")
    return mlp(layer)


class Unseen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        with _disable_current_modes():  # as compiled code
            return x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Applied(nn.Module):
    def forward(self, x):
        return Unseen.apply(x)


class Observing(torch.optim.SGD):
    is_recordable = False

    def __init__(self, network):
        super().__init__(network.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("make_network", "optimizer", "reason"),
    [
        (with_draws, sgd, "it cannot be recorded: TypeError"),
        (lambda: mlp(Branches()), sgd, "it cannot be recorded: "),
        (compiled_in_place, sgd, "torch.compile was called for a module"),
        (lambda: mlp(Applied()), sgd, "a tensor comes from code that is not record"),
        (mlp, Observing, "Observing needs more than gradients"),
    ],
)
def test_models_that_cannot_be_recorded(make_network, optimizer, reason):
    def make():
        return make_spec(make_network(), optimizer)

    n_replayed, (report,) = run_both(make, batches(5))
    assert n_replayed == 0
    assert report.startswith(reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda x, i: x.requires_grad_(), "a tensor that requires gradient"),
        (lambda x, i: x.to_sparse(), "a batch has a tensor of layout torch.sparse_coo"),
        (lambda x, i: {"x": x, "name": "a"}, "a batch has a str beside its tensors"),
        (lambda x, i: x[: i + 1], "the shapes of the batches keep changing"),
    ],
)
def test_batches_that_cannot_be_recorded(change, reason):
    class Any(nn.Sequential):
        def forward(self, features):
            x = features["x"] if isinstance(features, dict) else features
            return super().forward(x.to_dense())

    data = batches(70, sizes=(70,)) if "shapes" in reason else batches(4)
    found = [change(x.clone(), i) for i, (x, _) in enumerate(data)]
    labels = [y[: len(x)] for x, (_, y) in zip(found, data, strict=True)]
    if isinstance(found[0], dict):
        labels = [y for _, y in data]
    n_replayed, (report,) = run_both(
        lambda: make_spec(Any(*mlp())), [*zip(found, labels, strict=True)]
    )
    assert n_replayed == 0
    assert reason in report


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


@pytest.mark.parametrize("cell_type", ["simple_rnn", "gru", "lstm"])
def test_sequences_have_a_recording_for_each_length(cell_type):
    columns, _ = sequence_spec(cell_type)
    lengths = [5, 5, 5, 2, 5, 7] * 7  # 28 of five steps, of which 20 are eager
    found = run_both(
        lambda: sequence_spec(cell_type)[1],
        [*sequence_batches(columns, lengths)],
        has_table=True,
    )
    if cell_type == "lstm":
        assert found == (0, ["'aten::mkldnn_rnn_layer' needs autograd."])
    else:
        assert found == (28 - 20 - 1, [])
