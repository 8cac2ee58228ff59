# SPDX-License-Identifier: Apache-2.0
"""Estimators that ignore the features."""

import numpy as np
import pandas as pd
import pytest
from sklearn.dummy import DummyClassifier, DummyRegressor

from skest import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
    Estimator,
    LinearClassifier,
    RunConfig,
)
from skest.canned.linear import baseline_model_fn
from skest.heads import MultiLabelHead, RegressionHead


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


@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "quantile"])
def test_prediction_is_that_of_a_dummy(loss):
    y = np.random.default_rng(0).lognormal(3, 1, 2001)
    X = np.zeros((len(y), 1))
    strategy = {"squared_error": "mean", "absolute_error": "median"}.get(loss, loss)
    q = {"quantile": 0.9} if loss == "quantile" else {}
    dummy = DummyRegressor(strategy=strategy, **q).fit(X, y)
    model = BaselineRegressor(loss=loss, random_state=0, **q).fit(X, y)
    assert model.predict(X[:1]) == pytest.approx(dummy.predict(X[:1]), rel=0.01)


def test_rare_classes():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(9000, 2))
    y = rng.random(9000) < 1 / (1 + np.exp(6 - A[:, 0]))
    rate = pytest.approx(y.mean(), rel=1e-6)
    assert BaselineClassifier(random_state=0).fit(A, y).predict_proba(A)[0, 1] == rate
    labels = np.column_stack([y, rng.random(9000) < 0.2]).astype(int)
    head = MultiLabelHead(2)
    several = BaselineEstimator(head, random_state=0).fit(A, labels)
    assert several.predict_proba(A)[0] == pytest.approx(labels.mean(axis=0), rel=1e-6)
    linear = LinearClassifier(random_state=0).fit(A, y).predict_proba(A)[:, 1]
    assert linear.mean() == pytest.approx(y.mean(), rel=0.1)


def test_a_class_that_is_new_leaves_the_others_as_they_were():
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.array(["a", "b", "b", "b", "c", "c"] * 10)
    old = LinearClassifier(random_state=0).fit(X, y)
    still = {"max_iter": 1, "max_steps": 1, "learning_rate": 1e-9}
    new = LinearClassifier(warm_start_from=old, **still)
    new.fit(np.vstack([X, X[:2]]), [*y, "d", "d"])
    np.testing.assert_allclose(new.intercept_[:3], old.intercept_, atol=1e-6)


def test_features_need_rows():
    def model_fn(features, labels, mode):
        return baseline_model_fn(features, labels, mode, head=RegressionHead())

    estimator = Estimator(model_fn, config=RunConfig(random_seed=0))
    with pytest.raises(ValueError, match="'features' is an empty dictionary"):
        estimator.train(lambda: [({}, np.zeros(2))])
