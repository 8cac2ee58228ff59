# SPDX-License-Identifier: Apache-2.0
"""Only touched rows change, by the dense rule, at a cost without regard to the rest."""

import functools
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skest.optimizers.ftrl import Ftrl, ProximalAdagrad
from skest.optimizers.row_sparse import RowSparse, take_step

optim = torch.optim
ROWS, DIM = 7, 3

# Rules in which no step counter enters, so that rows are independent of each other.
ROWWISE = {
    "adagrad": functools.partial(optim.Adagrad, lr=0.1, initial_accumulator_value=0.1),
    "adagrad_fused": functools.partial(optim.Adagrad, lr=0.1, eps=1e-7, fused=True),
    "ftrl": functools.partial(Ftrl, lr=0.1, l1=0.05),
    "momentum": functools.partial(optim.SGD, lr=0.1, momentum=0.9, nesterov=True),
    "proximal_adagrad": functools.partial(ProximalAdagrad, lr=0.1, l1=0.05, l2=0.1),
    "rmsprop": functools.partial(
        optim.RMSprop, lr=0.1, momentum=0.5, centered=True, eps=1e-3
    ),
    "rmsprop_foreach": functools.partial(optim.RMSprop, lr=0.1, foreach=True),
    "sgd": functools.partial(optim.SGD, lr=0.1),
}
COUNTING = {
    "adadelta": functools.partial(optim.Adadelta, lr=0.1),
    "adam": functools.partial(optim.Adam, lr=0.1, amsgrad=True),
    "adam_foreach": functools.partial(optim.Adam, lr=0.1, foreach=True),
    "adamw": functools.partial(optim.AdamW, lr=0.1),
    "nadam": functools.partial(optim.NAdam, lr=0.1),
    "rprop": functools.partial(optim.Rprop, lr=0.1),
}
ALL = {**ROWWISE, **COUNTING}


def table(rows=ROWS, dtype=torch.float32, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return torch.nn.Parameter(torch.randn(rows, DIM, generator=gen, dtype=dtype))


def gradient(param, ids, seed=0):
    """Sparse gradient with one random value row for every id, duplicates included."""
    gen = torch.Generator().manual_seed(seed)
    values = torch.randn(len(ids), *param.shape[1:], generator=gen, dtype=param.dtype)
    index = torch.tensor(ids, dtype=torch.int64)[None]
    return torch.sparse_coo_tensor(index, values, param.shape, check_invariants=True)


def train(optimizer, param, batches):
    for step, ids in enumerate(batches):
        param.grad = gradient(param, ids, seed=step)
        optimizer.step()


# Of which one has more rows than the table, and does not touch all.
BATCHES = [[0, 2], [2, 2, 4, 2], [1], [0, 3, 3, 3], [4, 0], [4, 4, 2] * 3, [2, 1]]


def test_every_row_follows_the_dense_rule():
    for name in ROWWISE:
        param = table()
        rows = [torch.nn.Parameter(row.clone()) for row in param.detach().split(1)]
        each = [ROWWISE[name]([row]) for row in rows]
        for step, ids in enumerate(BATCHES):
            dense = gradient(param, ids, seed=step).to_dense()
            for i in set(ids):
                rows[i].grad = dense[i : i + 1].clone()
                each[i].step()
        train(RowSparse(ROWWISE[name]([param])), param, BATCHES)
        # Sums of duplicates may be rounded in another order.
        torch.testing.assert_close(
            param.detach(), torch.cat([r.detach() for r in rows])
        )


@pytest.mark.parametrize("name", ALL)
def test_all_rows_touched_is_the_dense_optimizer(name):
    for dtype in [torch.float32, torch.float64]:
        sparse, dense = table(dtype=dtype), table(dtype=dtype)
        optimizer, plain = RowSparse(ALL[name]([sparse])), ALL[name]([dense])
        for step in range(4):
            sparse.grad = gradient(sparse, list(range(ROWS)), seed=step)
            dense.grad = sparse.grad.to_dense()
            optimizer.step()
            plain.step()
        assert torch.equal(sparse, dense)
        ours, theirs = optimizer.state_dict()["state"], plain.state_dict()["state"]
        assert ours.keys() == theirs.keys()
        for position, slots in theirs.items():
            assert ours[position].keys() == slots.keys()
            for slot, value in slots.items():
                torch.testing.assert_close(ours[position][slot], value, rtol=0, atol=0)


def test_a_table_of_one_dimension():
    for ids in ([1, 3], [1, 3, 3] * 3):
        table = torch.nn.Parameter(torch.ones(5))
        table.grad = gradient(table, ids)
        RowSparse(optim.Adam([table], lr=0.1)).step()
        assert (table.detach() != 1).tolist() == [False, True, False, True, False]


def test_adam_is_lazy():
    lr, beta1, beta2, eps = 0.1, 0.9, 0.999, 1e-8
    param = table(dtype=torch.float64)
    weight = param.detach().numpy().copy()
    first, second = np.zeros_like(weight), np.zeros_like(weight)
    for step, ids in enumerate(BATCHES):
        grad = gradient(param, ids, seed=step).to_dense().numpy()
        t, i = step + 1, sorted(set(ids))
        first[i] = beta1 * first[i] + (1 - beta1) * grad[i]
        second[i] = beta2 * second[i] + (1 - beta2) * grad[i] ** 2
        root = np.sqrt(second[i] / (1 - beta2**t)) + eps
        weight[i] -= lr * first[i] / (1 - beta1**t) / root
    optimizer = RowSparse(optim.Adam([param], lr=lr))
    train(optimizer, param, BATCHES)
    np.testing.assert_allclose(param.detach(), weight, rtol=1e-12)
    slots = optimizer.state[param]
    assert slots["step"].item() == len(BATCHES)
    np.testing.assert_allclose(slots["exp_avg"], first, rtol=1e-12)
    np.testing.assert_allclose(slots["exp_avg_sq"], second, rtol=1e-12)


@settings(deadline=None, max_examples=25)
@given(
    ids=st.lists(st.integers(0, 20), min_size=1, max_size=15, unique=True),
    data=st.data(),
)
@pytest.mark.parametrize("name", ["adagrad_fused", "adam_foreach", "ftrl", "momentum"])
def test_update_of_a_row_does_not_depend_on_the_other_rows(name, ids, data):
    """Bit for bit: so tables may be split among parameter servers."""
    subset = data.draw(st.lists(st.sampled_from(ids), min_size=1, unique=True))
    everything, part = table(21), table(21)
    both = [(everything, ids), (part, subset)]
    grads = gradient(everything, list(range(21))).to_dense()
    for param, chosen in both:
        optimizer = RowSparse(ALL[name]([param]))
        for _ in range(3):
            param.grad = torch.sparse_coo_tensor(
                [chosen], grads[chosen], (21, DIM), check_invariants=True
            )
            optimizer.step()
    assert torch.equal(everything[subset], part[subset])


@pytest.mark.parametrize(
    ("is_recorded", "together"), [(False, 0), (False, 20), (True, 20), (True, 2**20)]
)
def test_tables_together_follow_the_rule_of_each(is_recorded, together, monkeypatch):
    for name in ALL:
        monkeypatch.setattr("skest.optimizers.row_sparse._ROWS_TOGETHER", together)
        sizes = (5, 9, 7, 8)
        whole, single = ([table(rows) for rows in sizes] for _ in range(2))
        wide = torch.nn.Parameter(torch.ones(6, 1))
        optimizers = [
            RowSparse(ALL[name]([*whole, wide])),
            *(RowSparse(ALL[name]([param])) for param in single),
        ]
        optimizers[0].is_recorded = is_recorded
        for step, ids in enumerate(BATCHES):
            for i, pair in enumerate(zip(whole, single, strict=True)):
                # One of the tables is not touched now and then.
                rows = [(row + i) % sizes[i] for row in ids] if step != i else []
                for param in pair:
                    param.grad = gradient(param, rows, seed=step + i)
            wide.grad = gradient(wide, ids)
            for optimizer in optimizers:
                optimizer.step()
        for first, second in zip(whole, single, strict=True):
            assert torch.equal(first, second)


def test_slot_that_cannot_be_cut_into_rows_is_refused():
    param = table()
    weight = param.detach().clone()
    optimizer = RowSparse(optim.Adafactor([param]))
    param.grad = gradient(param, [1, 3])
    with pytest.raises(ValueError, match=r"Adafactor cannot update.*'row_var'"):
        optimizer.step()
    assert torch.equal(param, weight)


def test_gradient_sparse_in_two_dimensions_is_refused():
    param = table()
    param.grad = (
        torch.zeros(ROWS, DIM).index_fill(0, torch.tensor([1]), 1.0).to_sparse()
    )
    with pytest.raises(ValueError, match="sparse in 2 dimensions"):
        RowSparse(optim.SGD([param], lr=0.1)).step()


def test_what_cannot_be_wrapped():
    for inner, match in [
        (lambda: optim.Adagrad, "got type; write"),
        (lambda: RowSparse(optim.Adagrad([table()])), "not wrapped yet, got RowSparse"),
    ]:
        with pytest.raises(TypeError, match=match):
            RowSparse(inner())


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
