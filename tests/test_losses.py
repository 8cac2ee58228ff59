# SPDX-License-Identifier: Apache-2.0
"""Losses against their formulas."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose

from skest import losses

numbers = arrays(np.float64, 5, elements=st.floats(-20, 20))
shares = arrays(np.float64, 5, elements=st.floats(0, 1))


def log_sigmoid(z):
    return -np.logaddexp(0, -z)


@given(labels=shares, logits=numbers)
def test_sigmoid_cross_entropy(labels, logits):
    expected = -labels * log_sigmoid(logits) - (1 - labels) * log_sigmoid(-logits)
    actual = losses.sigmoid_cross_entropy(torch.tensor(labels), torch.tensor(logits))
    assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


def test_softmax_cross_entropy():
    for shape in [(4,), (2, 3), ()]:
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(*shape, 3, dtype=torch.float64, generator=generator)
        labels = torch.randint(3, (*shape, 1), generator=generator)
        expected = logits.logsumexp(-1, keepdim=True) - logits.gather(-1, labels)
        actual = losses.softmax_cross_entropy(labels, logits)
        torch.testing.assert_close(actual, expected)


@given(labels=numbers, logits=numbers, quantile=st.floats(0.01, 0.99))
def test_errors_of_regression(labels, logits, quantile):
    y, z = torch.tensor(labels), torch.tensor(logits)
    e = labels - logits
    assert_allclose(losses.squared_error(y, z), e**2)
    assert_allclose(losses.absolute_error(y, z), np.abs(e))
    pinball = np.where(e >= 0, quantile * e, (quantile - 1) * e)
    assert_allclose(losses.quantile_error(y, z, quantile), pinball)
    huber = np.where(np.abs(e) <= 2, e**2 / 2, 2 * (np.abs(e) - 1))
    assert_allclose(losses.huber_error(y, z, delta=2.0), huber, atol=1e-12)


def test_poisson_loss():
    for label, logit, full, expected in [
        (3.0, 1.0, True, 1.4824),
        (3.0, 1.0, False, -0.2817),
        (1.0, 1.0, True, 1.7183),
        (0.0, 1.0, True, 2.7183),
        (-1.0, 1.0, False, 3.7183),
        (-1.0, 1.0, True, math.nan),
    ]:
        logits = torch.tensor([logit], requires_grad=True)
        loss = losses.poisson_loss(torch.tensor([label]), logits, full)
        assert_allclose(loss.detach(), [expected], atol=1e-4)
        loss.sum().backward()
        assert_allclose(logits.grad, [math.exp(logit) - label], rtol=1e-6)


def test_weights_broadcast_and_elements_are_counted():
    per_example = torch.ones(2, 3, dtype=torch.float64)
    weights = torch.tensor([[2.0], [0.0]])
    loss = losses.reduce_loss(per_example, weights)
    assert loss.item() == 1.0
    assert loss.dtype == torch.float64


def test_unknown_reduction():
    with pytest.raises(ValueError, match=r"'reduction' of .* must be one of.*'median'"):
        losses.reduce_loss(torch.ones(1), None, "median")
