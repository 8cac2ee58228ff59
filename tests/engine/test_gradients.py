# SPDX-License-Identifier: Apache-2.0
"""Clipping by the norm of all gradients, sparse ones among them."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils import clip_grad_norm_

from skest.engine.loop import clip_gradients

ROWS, DIM = 5, 2


def dense(values):
    parameter = torch.nn.Parameter(torch.zeros(len(values), dtype=torch.float64))
    parameter.grad = torch.tensor(values, dtype=torch.float64)
    return parameter


def table(ids, values):
    """A row table with a gradient of one row per id, duplicates included."""
    parameter = torch.nn.Parameter(torch.zeros(ROWS, DIM, dtype=torch.float64))
    parameter.grad = torch.sparse_coo_tensor(
        torch.tensor([ids], dtype=torch.int64),
        torch.tensor(values, dtype=torch.float64).reshape(len(ids), DIM),
        (ROWS, DIM),
        check_invariants=True,
    )
    return parameter


FLOATS = st.floats(-1e3, 1e3)
DENSE = st.lists(FLOATS, min_size=1, max_size=4).map(dense)
TABLE = st.lists(st.integers(0, ROWS - 1), max_size=6).flatmap(
    lambda ids: st.lists(FLOATS, min_size=len(ids) * DIM, max_size=len(ids) * DIM).map(
        lambda values: table(ids, values)
    )
)


@given(st.lists(DENSE | TABLE, min_size=1, max_size=4), st.floats(1e-2, 1e4))
def test_equals_clipping_the_dense_gradients(parameters, max_norm):
    twins = [torch.nn.Parameter(torch.zeros_like(p)) for p in parameters]
    for twin, parameter in zip(twins, parameters, strict=True):
        twin.grad = parameter.grad.to_dense().clone()
    expected = clip_grad_norm_(twins, max_norm)
    torch.testing.assert_close(clip_gradients(parameters, max_norm), expected)
    for twin, parameter in zip(twins, parameters, strict=True):
        torch.testing.assert_close(parameter.grad.to_dense(), twin.grad)


def test_a_broken_gradient_is_not_hidden():
    for broken in [math.nan, math.inf]:
        for make in [dense, lambda values: table([2], values)]:
            parameter = make([broken, 1.0])
            norm = clip_gradients([dense([1.0]), parameter], 1.0)
            assert not norm.isfinite()
            assert parameter.grad.to_dense().isnan().any()
