# SPDX-License-Identifier: Apache-2.0
"""A weight is a repetition, also where numbers are rounded or drawn.

scikit-learn's check asks for predictions that agree to seven digits, whatever is random.
Where `test_configurations.WITHOUT` spares a configuration this check, what holds for it
is tested here. With ``sampling="weighted"`` the check itself holds for all of them.
"""

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_diabetes, load_iris

from tests.conformance.test_configurations import RANDOM, ROUNDED

_RTOL_FLOAT32 = 1e-4  # that of scikit-learn's own comparisons in float32


def outputs(estimator, X):
    """Return what depends smoothly on what was learned."""
    is_smooth = hasattr(estimator, "decision_function")
    return estimator.decision_function(X) if is_smooth else estimator.predict(X)


@pytest.mark.parametrize("title", ROUNDED)
def test_weights_are_repetitions_up_to_rounding(title):
    estimator = clone(ROUNDED[title]).set_params(batch_size=1500, random_state=0)
    load = load_iris if is_classifier(estimator) else load_diabetes
    X, y = load(return_X_y=True)
    weight = np.random.default_rng(0).integers(0, 4, len(y))
    weighted = outputs(clone(estimator).fit(X, y, sample_weight=weight), X)
    estimator.fit(X.repeat(weight, axis=0), y.repeat(weight))
    repeated = outputs(estimator, X)
    assert weighted.dtype == np.float32
    atol = _RTOL_FLOAT32 * np.abs(repeated).mean()
    np.testing.assert_allclose(weighted, repeated, rtol=_RTOL_FLOAT32, atol=atol)


N_STEPS = 60
N_SEEDS = 16
# A bias of so much of the effect of the weights is tolerated: the statistics of batch
# normalisation do not weigh rows, and adaptive optimizers take smaller steps where
# gradients vary more, as they do between weighted mini-batches.
TOLERANCE = 0.1
# Twice the tolerance is found with a probability of 1 - 3e-5, and none at all is taken
# for one as rarely, where the tolerance is so many standard errors.
POWER = 4


def contradictory(is_class):
    """Return rows of two kinds that contradict each other; the weights decide."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(36, 2))
    is_light = np.arange(36) % 2 == 0
    light, heavy = rng.integers(0, 2, 36), rng.integers(1, 5, 36)
    y = np.where(is_light, 1, -1) * X[:, 0] + 0.5 * rng.normal(size=36)
    return X, (y > 0).astype(int) if is_class else y, np.where(is_light, light, heavy)


def fitted_outputs(estimator, at, X, y, weight=None):
    """Return the outputs at some points of the fits of all seeds."""
    fits = [
        clone(estimator)
        .set_params(random_state=seed, max_steps=N_STEPS, max_iter=N_STEPS)
        .fit(X, y, sample_weight=weight)
        for seed in range(N_SEEDS)
    ]
    return np.array([outputs(fit, at) for fit in fits])


@pytest.mark.slow
@pytest.mark.parametrize("title", RANDOM)
def test_weights_are_repetitions_in_the_mean(title):
    """The outputs move as far with weights as with repetitions, in the mean over seeds.

    The direction is that from the outputs without weights to those with repetitions, and
    this distance is the unit. Fits with the same seed begin with the same network, so
    that the two are compared in pairs.
    """
    estimator = clone(RANDOM[title]).set_params(n_iter_no_change=np.inf)
    X, y, weight = contradictory(is_classifier(estimator))
    at = np.random.default_rng(1).normal(size=(100, 2))
    plain = fitted_outputs(estimator, at, X, y)
    weighted = fitted_outputs(estimator, at, X, y, weight)
    repeated = fitted_outputs(estimator, at, X.repeat(weight, axis=0), y.repeat(weight))
    effect = (repeated - plain).mean(axis=0)
    bias = (weighted - repeated) @ effect / (effect @ effect)
    standard_error = bias.std(ddof=1) / np.sqrt(N_SEEDS)
    assert standard_error < TOLERANCE / POWER  # otherwise the next line says little
    assert abs(bias.mean()) < TOLERANCE
