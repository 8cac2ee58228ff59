# SPDX-License-Identifier: Apache-2.0
"""The output layer that samples classes: distribution, estimates, gradients."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from skest.heads.sampled_softmax import ClassTable, class_shares, sampled_logits

N_CLASSES, WIDTH = 30, 4
GIVEN = np.random.default_rng(0).integers(1, 50, N_CLASSES)
each_distribution = pytest.mark.parametrize(
    "distribution", ["log_uniform", GIVEN], ids=["log_uniform", "given"]
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def table(num_sampled, distribution="log_uniform"):
    made = ClassTable(
        WIDTH,
        N_CLASSES,
        num_sampled,
        distribution,
        dtype=torch.float64,
        generator=generator(),
    )
    with torch.no_grad():
        made.weight.mul_(3)
        made.bias.normal_(generator=generator(1))
    made.generator = generator(2)
    return made


def batch(n_rows=3):
    hidden = torch.randn(n_rows, WIDTH, dtype=torch.float64, generator=generator(3))
    return hidden, torch.tensor([[0], [7], [N_CLASSES - 1]])[:n_rows]


def others(labels, logits):
    """Sums of exp over all classes but the label."""
    return logits.exp().scatter(1, labels, 0.0).sum(1)


def assert_mean_is(draws, expected):
    """Draws along dimension 0 have the mean `expected`, within five standard errors."""
    error = draws.std(0) / len(draws) ** 0.5
    assert bool(((draws.mean(0) - expected).abs() <= 5 * error).all())


# Distribution


@each_distribution
def test_classes_are_drawn_as_often_as_said(distribution):
    n = 20_000
    made = table(n, distribution)
    sample = made(batch()[0])
    shares = torch.from_numpy(class_shares(distribution, N_CLASSES, "x"))
    counts = sample["sampled"].bincount(minlength=N_CLASSES)
    deviations = (counts - n * shares) / (n * shares * (1 - shares)).sqrt()
    assert deviations.abs().max() < 5
    expected = (n * shares).log()[sample["sampled"]]
    assert_close(sample["log_expected_count"], expected, rtol=1e-12, atol=1e-12)


@given(
    st.lists(st.floats(1e-6, 1e6) | st.integers(1, 9), min_size=1, max_size=40),
    st.integers(1, 30),
)
def test_every_class_has_its_own_interval(weights, n):
    made = ClassTable(1, len(weights), n, weights)
    edges = made.edges
    assert edges[0] == 0 and edges[-1] == 2**53
    widths = edges.diff().numpy() / 2**53
    np.testing.assert_allclose(widths, class_shares(weights, len(weights), "x"), 1e-2)
    sampled = made(torch.ones(1, 1))["sampled"]
    assert sampled.shape == (n,) and 0 <= sampled.min() <= sampled.max() < len(weights)


def test_wrong_distributions():
    for distribution, error, match in [
        ("zipf", ValueError, "must be one of 'log_uniform', 'uniform'; got 'zipf'"),
        ([1.0, 2.0], ValueError, r"each of the 3 classes; .* an array of shape \(2,\)"),
        ([1, 0, 3], ValueError, "above 1e-15 of their sum; got 0 for class 1"),
        ([1, 1e-17, 1], ValueError, "got 1e-17 for class 1.*a small count, such as 1"),
        (["a", "b", "c"], TypeError, "frequencies of the classes as numbers; got"),
        (None, TypeError, "'log_uniform' or 'uniform', or the frequencies"),
    ]:
        with pytest.raises(
            error, match=rf"'class_distribution' of ClassTable .*{match}"
        ):
            ClassTable(2, 3, 5, distribution)


# Estimates


@each_distribution
def test_the_partition_function_is_estimated_without_bias(distribution):
    made, (hidden, labels) = table(20, distribution), batch()
    expected = others(labels, made.eval()(hidden))
    made.train()
    draws = [sampled_logits(labels, made(hidden))[:, 1:] for _ in range(300)]
    assert_mean_is(torch.stack(draws).exp().sum(2), expected)


def test_logits_of_labels_are_exact_and_hits_are_left_out():
    made, (hidden, labels) = table(200, "uniform"), batch()
    sample = made(hidden)
    logits = sampled_logits(labels, sample)
    full = made.eval()(hidden)
    assert_close(logits[:, :1], full.gather(1, labels))
    hits = labels == sample["sampled"]
    assert hits.any(1).all()
    assert torch.equal(logits[:, 1:].isneginf(), hits)
    corrected = full[:, sample["sampled"]] - math.log(200 / N_CLASSES)
    assert_close(logits[:, 1:][~hits], corrected[~hits])


# Gradients and training


def test_gradients_have_the_rows_of_labels_and_draws_only():
    made, (hidden, labels) = table(5), batch()
    sample = made(hidden)
    sampled_logits(labels, sample).logsumexp(1).sum().backward()
    touched = {*labels.flatten().tolist(), *sample["sampled"].tolist()}
    for parameter in (made.weight, made.bias):
        assert parameter.is_row_table
        assert parameter.grad is not None and parameter.grad.is_sparse
        rows = parameter.grad.coalesce().indices()[0]
        assert set(rows.tolist()) == touched
