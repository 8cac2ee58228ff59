# SPDX-License-Identifier: Apache-2.0
"""Proximal Adagrad against its formula, for dense gradients and for rows of tables."""

import numpy as np
import pytest
import torch

from skest.optimizers import make_optimizer
from skest.optimizers.ftrl import ProximalAdagrad


def reference(weight, gradients, lr, l1=0.0, l2=0.0, start=0.1):
    accumulator = np.full_like(weight, start)
    for g in gradients:
        accumulator = accumulator + g * g
        rate = lr / np.sqrt(accumulator)
        moved = weight - rate * g
        shrunk = np.sign(moved) * np.maximum(np.abs(moved) - rate * l1, 0)
        weight = shrunk / (1 + rate * l2)
    return weight, accumulator


PENALTIES = pytest.mark.parametrize(
    "penalties",
    [{}, {"l1": 1.0}, {"l2": 0.5}, {"l1": 0.9, "l2": 0.1}],
    ids=["none", "l1", "l2", "both"],
)


@PENALTIES
def test_rows_of_tables(penalties):
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=(5, 3)), rng.normal(size=(6, 2, 3))
    table = torch.nn.Parameter(torch.tensor(start))
    table.is_row_table = True
    optimizer = make_optimizer("proximaladagrad", [table], 0.2, **penalties)
    touched = [[0, 3], [3, 3], [4, 0], [1, 3], [0, 0], [4, 1]]  # a row may come twice
    of_rows = [[] for _ in start]
    for ids, values in zip(touched, gradients, strict=True):
        table.grad = torch.sparse_coo_tensor(
            [ids], values, (5, 3), check_invariants=True
        )
        for row, gradient in enumerate(table.grad.to_dense().numpy()):
            if row in ids:
                of_rows[row].append(gradient)
        optimizer.step()
    expected = [
        reference(row, of_row, 0.2, **penalties)[0]
        for row, of_row in zip(start, of_rows, strict=True)
    ]
    np.testing.assert_allclose(table.detach(), expected, rtol=1e-12, atol=1e-15)


def test_wrong_arguments():
    for options, error, message in [
        ({"lr": -1.0}, ValueError, "'lr' of ProximalAdagrad .* at least 0; got -1.0"),
        ({"l1": -1.0}, ValueError, "'l1' of ProximalAdagrad .* at least 0; got -1.0"),
        ({"l2": "much"}, TypeError, "'l2' of ProximalAdagrad .* got 'much'"),
        (
            {"initial_accumulator_value": 0.0},
            ValueError,
            "'initial_accumulator_value' of ProximalAdagrad .* greater than 0; got 0.0",
        ),
    ]:
        with pytest.raises(error, match=message):
            ProximalAdagrad([torch.nn.Parameter(torch.zeros(2))], **options)


def test_a_sparse_gradient_needs_the_wrapper():
    table = torch.nn.Parameter(torch.zeros(3, 2))
    table.grad = torch.zeros(3, 2).to_sparse(1)
    with pytest.raises(ValueError, match=r"RowSparse\(ProximalAdagrad"):
        ProximalAdagrad([table]).step()
