# SPDX-License-Identifier: Apache-2.0
"""Dual coordinate ascent: optimality, its state, and what it refuses."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skest.optimizers.dual_ascent import DualAscent, Examples, _logistic_dual

LOSSES = ("logistic", "squared")


def problem(seed=0, n_rows=12, dtype=torch.float64, with_factors=False):
    """Examples with three dense elements, and a table of five with two ids a row."""
    rng = np.random.default_rng(seed)
    dense = torch.tensor(rng.normal(size=(n_rows, 3)), dtype=dtype)
    return Examples(
        # What float32 and float64 cannot hold.
        torch.arange(n_rows) + 2**62,
        torch.tensor(rng.integers(0, 2, n_rows)),
        torch.tensor(rng.uniform(0.5, 2, n_rows)),
        dense,
        [torch.tensor(rng.integers(-1, 5, (n_rows, 2)))],
        [torch.tensor(rng.normal(size=(n_rows, 2)), dtype=dtype)]
        if with_factors
        else [],
    )


def parameters(dtype=torch.float64):
    shapes = ((1,), (2, 1), (5, 1))
    return [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]


def run(optimizer, examples, n_steps):
    for _ in range(n_steps):
        optimizer.observe(examples)
        optimizer.step()


def matrix(examples):
    """The examples as rows of a plain matrix, in float64."""
    (ids,) = examples.looked_up
    (factors,) = examples.factors or [torch.ones(ids.shape)]
    counts = torch.zeros(len(ids), 6, dtype=torch.float64)
    counts.scatter_add_(1, ids.remainder(6), factors.double())
    return torch.cat([examples.dense.double(), counts[:, :5]], dim=1)


def flat(params):
    return torch.cat([p.detach().ravel() for p in params]).double()


def duals(optimizer):
    return optimizer.state[optimizer.param_groups[0]["params"][0]]["duals"]


def dual_objective(loss, examples, optimizer, l1, l2):
    """The concave function that every update must not decrease."""
    a, y, c = duals(optimizer), examples.labels.double(), examples.weights
    sums = matrix(examples).T @ (c * a)
    penalty = (sums.abs() - l1).clamp(min=0).square().sum() / (2 * l2)
    if loss == "squared":
        return ((a * y - a * a / 2) * c).sum() - penalty
    p = y - a
    entropy = -torch.special.xlogy(p, p) - torch.special.xlogy(1 - p, 1 - p)
    return (entropy * c).sum() - penalty


@settings(deadline=None, max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    loss=st.sampled_from(LOSSES),
    l1=st.floats(0, 2),
    l2=st.floats(0.01, 10),
    with_factors=st.booleans(),
)
def test_no_step_decreases_the_dual(seed, loss, l1, l2, with_factors):
    examples = problem(seed, with_factors=with_factors)
    optimizer = DualAscent(parameters(), loss, l1, l2)
    optimizer.observe(examples)
    optimizer.step()
    before = dual_objective(loss, examples, optimizer, l1, l2)
    for i in range(len(examples.ids)):
        optimizer.observe(rows(examples, slice(i, i + 1)))
        optimizer.step()
        after = dual_objective(loss, examples, optimizer, l1, l2)
        assert after >= before - 1e-10 * (1 + abs(before))
        before = after


def rows(examples, index):
    *whole, looked_up, factors = examples
    return Examples(
        *(part[index] for part in whole),
        [ids[index] for ids in looked_up],
        [factor[index] for factor in factors],
    )


@given(
    label=st.sampled_from([0.0, 0.3, 1.0]),
    score=st.floats(-1e3, 1e3),
    share=st.floats(0, 1),
    curvature=st.one_of(st.just(0.0), st.floats(1e-6, 1e8)),
)
def test_logistic_dual_is_the_root(label, score, share, curvature):
    dual = label - share
    new = _logistic_dual(label, score, dual, curvature)
    t = score + curvature * (new - dual)
    p = 1 / (1 + math.exp(-t)) if t > -700 else 0.0
    residual = new - (label - p)
    # How far the root is, by the slope there; rounding of t is amplified by it too.
    assert abs(residual) / (1 + curvature * p * (1 - p)) < 1e-9
    assert label - 1 <= new <= label


def test_a_weight_is_a_number_of_examples():
    examples = problem(n_rows=4)._replace(weights=torch.tensor([0.0, 1.0, 2.0, 3.0]))
    times = torch.tensor([0, 1, 2, 3])
    repeated = rows(examples, torch.arange(4).repeat_interleave(times))
    repeated = repeated._replace(ids=torch.arange(6), weights=None)
    weighted, plain = parameters(), parameters()
    run(DualAscent(weighted, "logistic"), examples, 500)
    run(DualAscent(plain, "logistic"), repeated, 500)
    torch.testing.assert_close(flat(weighted), flat(plain), rtol=0, atol=1e-10)


def test_an_id_of_two_examples_is_refused():
    examples = problem()._replace(ids=torch.tensor([5, 6, 7, 5, *range(8, 16)]))
    optimizer = DualAscent(parameters(), "logistic")
    optimizer.observe(examples)
    with pytest.raises(ValueError, match="Rows 0 and 3 .* same example id"):
        optimizer.step()


def test_negative_weights_are_refused():
    examples = problem()._replace(weights=torch.linspace(-0.5, 1, 12))
    with pytest.raises(ValueError, match=r"weights of examples >= 0, got -0\.5"):
        DualAscent(parameters(), "logistic").observe(examples)


def test_a_step_needs_examples():
    optimizer = DualAscent(parameters(), "logistic")
    run(optimizer, problem(), 1)
    with pytest.raises(RuntimeError, match="observe"):
        optimizer.step()


def test_weights_without_duals_are_refused():
    params = parameters()
    with torch.no_grad():
        params[1][0] = 1.0
    with pytest.raises(ValueError, match="starts from weights that are zero"):
        run(DualAscent(params, "logistic"), problem(), 1)
