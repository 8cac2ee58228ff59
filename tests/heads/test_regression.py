# SPDX-License-Identifier: Apache-2.0
"""Heads for real numbers, probabilities and counts."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from skest.heads import LogisticRegressionHead, PoissonRegressionHead, RegressionHead


def test_inverse_link_gives_predictions_and_their_mean():
    head = RegressionHead(inverse_link_fn=torch.exp)
    logits = torch.tensor([[0.0], [1.0]])
    predictions = head.predictions(logits)
    assert_allclose(predictions["predictions"], np.exp([[0.0], [1.0]]), rtol=1e-6)
    assert predictions["logits"] is logits
    metrics = head.metrics()
    head.update_metrics(metrics, [1.0, 2.0], logits)
    assert metrics["prediction/mean"].compute() == pytest.approx((1 + np.e) / 2)
    assert metrics["label/mean"].compute() == 1.5


def test_labels_are_finite():
    for value in [np.nan, np.inf, -np.inf]:
        for head in [RegressionHead(), PoissonRegressionHead()]:
            with pytest.raises(ValueError, match=r"needs finite labels; got \S+ in"):
                head.encode_labels([0.0, value])


def test_label_dimension():
    for dimension, error in [(0, ValueError), (1.0, TypeError), (None, TypeError)]:
        with pytest.raises(error, match="'label_dimension' of RegressionHead .* int"):
            RegressionHead(dimension)


def test_range_of_logistic_labels():
    for label in [-0.1, 1.01]:
        with pytest.raises(ValueError, match=r"\[0, 1\], probabilities; got .* row 1"):
            LogisticRegressionHead().encode_labels([0.5, label])


def test_poisson_loss_with_and_without_the_term_of_the_label():
    logits = torch.ones(1, 1)
    full = PoissonRegressionHead().loss([3], logits).item()
    short = PoissonRegressionHead(compute_full_loss=False).loss([3], logits).item()
    stirling = 3 * np.log(3) - 3 + 0.5 * np.log(2 * np.pi * 3)
    assert full - short == pytest.approx(stirling, rel=1e-5)
