# SPDX-License-Identifier: Apache-2.0
"""Estimators that ignore the features."""

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor

from skest import BaselineClassifier, BaselineRegressor, Estimator, RunConfig
from skest.canned.linear import baseline_model_fn
from skest.heads import RegressionHead


@pytest.fixture(name="X")
def features():
    return pd.DataFrame({"x": [1.0, np.nan, 3.0, 4.0, 5.0, 6.0], "k": list("abcabc")})


def test_probabilities_are_class_priors(X):
    y = ["no", "yes", "yes", "maybe", "yes", "no"]
    model = BaselineClassifier(random_state=0, tol=0, n_iter_no_change=200).fit(X, y)
    dummy = DummyClassifier(strategy="prior").fit(X, y)
    np.testing.assert_allclose(
        model.predict_proba(X), dummy.predict_proba(X), atol=1e-2
    )
    np.testing.assert_array_equal(model.predict(X), dummy.predict(X))


def test_prediction_is_the_weighted_mean(X):
    rng = np.random.default_rng(0)
    y = rng.normal(size=(6, 2))
    weight = rng.random(6)
    model = BaselineRegressor(random_state=0).fit(X, y, sample_weight=weight)
    dummy = DummyRegressor().fit(X, y, sample_weight=weight)
    assert model.predict(X).shape == y.shape
    np.testing.assert_allclose(model.predict(X), dummy.predict(X), atol=1e-2)


def test_features_need_rows():
    def model_fn(features, labels, mode):
        return baseline_model_fn(features, labels, mode, head=RegressionHead())

    estimator = Estimator(model_fn, config=RunConfig(random_seed=0))
    with pytest.raises(ValueError, match="'features' is an empty dictionary"):
        estimator.train(lambda: [({}, np.zeros(2))])
