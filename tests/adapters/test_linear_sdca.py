# SPDX-License-Identifier: Apache-2.0
"""Linear estimators with dual coordinate ascent, against scikit-learn's solvers."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import LogisticRegression, Ridge

from skest import LinearClassifier, LinearRegressor
from skest import feature_columns as fc
from skest.canned.sdca import LinearSDCA

CONVERGED = {"max_iter": 300, "n_iter_no_change": np.inf, "random_state": 0}


@pytest.fixture
def weight():
    return np.random.default_rng(3).uniform(0.2, 3, 200)


def design(model, X):
    """The columns whose weights are the bias and the coefficients."""
    return np.column_stack([np.ones(len(X)), model.feature_columns_.transform(X)])


def all_weights(model):
    return np.append(model.intercept_, model.coef_)


@pytest.mark.slow
@pytest.mark.parametrize(("l2", "weighted"), [(0.5, False), (5.0, True)])
def test_classifier_is_logistic_regression(table, weight, l2, weighted):
    X, y = table
    sample_weight = weight if weighted else None
    model = LinearClassifier(
        optimizer=LinearSDCA(l2=l2), dtype="float64", batch_size=64, **CONVERGED
    ).fit(X, y, sample_weight)
    other = LogisticRegression(C=1 / l2, fit_intercept=False, tol=1e-10, max_iter=1000)
    other.fit(design(model, X), y, sample_weight)
    np.testing.assert_allclose(all_weights(model), other.coef_[0], atol=1e-6)


def test_regressor_is_ridge_in_standard_units(table, weight):
    X, weight = table[0][:80], weight[:80]
    y = 100 + 10 * X["age"] + 50 * (X["city"] == "Rome")
    model = LinearRegressor(
        optimizer=LinearSDCA(l2=20.0), dtype="float64", **CONVERGED
    ).fit(X, y, weight)
    mean = np.average(y, weights=weight)
    scale = np.sqrt(np.average((y - mean) ** 2, weights=weight))
    other = Ridge(alpha=20.0, fit_intercept=False)
    other.fit(design(model, X), (y - mean) / scale, weight)
    predicted = other.predict(design(model, X)) * scale + mean
    np.testing.assert_allclose(model.predict(X), predicted, rtol=1e-7)


@pytest.mark.parametrize(("l2", "seed"), [(1e-3, 0), (0.1, 1)])
def test_a_weak_penalty_takes_no_more_epochs(l2, seed):
    X, y = load_diabetes(return_X_y=True)
    model = LinearRegressor(optimizer=LinearSDCA(l2=l2), random_state=seed).fit(X, y)
    assert model.score(X, y) == pytest.approx(0.5177, abs=1e-4)  # of Ridge
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(400, 2))
    label = X[:, 0] + 2 * rng.normal(size=400) > 0
    model = LinearClassifier(optimizer=LinearSDCA(l2=l2), random_state=seed)
    other = LogisticRegression(C=1 / l2, fit_intercept=False)
    other.fit(design(model.fit(X, label), X), label)
    np.testing.assert_allclose(all_weights(model), other.coef_[0], atol=0.01)


def test_weak_penalties_of_categories_weights_and_l1(table, weight):
    X, y, weight = table[0][:80], table[1][:80], weight[:80]
    settings = LinearSDCA(l1=0.5, l2=0.05)
    model = LinearClassifier(optimizer=settings, dtype="float64", **CONVERGED)
    model.fit(X, y, weight)
    A, v = design(model, X), all_weights(model)
    slope = A.T @ (weight * (model.predict_proba(X)[:, 1] - (y == model.classes_[1])))
    is_zero = v == 0
    assert is_zero.any()
    assert not is_zero.all()
    # What the subgradient of a minimum has to be.
    assert (np.abs(slope[is_zero]) < 0.5 + 1e-6).all()
    at_rest = slope + 0.05 * v + 0.5 * np.sign(v)
    np.testing.assert_allclose(at_rest[~is_zero], 0, atol=1e-5)


def test_class_weight_and_early_stopping(table):
    X, y = table
    model = LinearClassifier(
        optimizer="sdca", class_weight="balanced", early_stopping=True, random_state=0
    ).fit(X, y)
    assert len(model.validation_scores_) == model.n_iter_
    assert model.score(X, y) > 0.7
    assert model.evaluate(X, y)["accuracy"] == pytest.approx(model.score(X, y))


def test_partial_fit_is_there_only_with_ids():
    model = LinearClassifier(optimizer="sdca")
    assert not hasattr(model, "partial_fit")
    with pytest.raises(AttributeError) as error:
        _ = model.partial_fit
    assert "they may stand for other rows" in str(error.value.__cause__)
    assert hasattr(LinearRegressor(optimizer="adam"), "partial_fit")


def with_ids(X):
    return X.assign(key=[f"k{i}" for i in range(len(X))])


@pytest.mark.parametrize("way", ["partial_fit", "warm_start"])
def test_rows_with_ids_come_again(table, way):
    """Whatever the order of the rows, another call goes on with their duals."""
    X, y = with_ids(table[0])[:40], table[1][:40]
    columns = [fc.numeric_column("age", normalizer="standard")]
    model = LinearClassifier(
        feature_columns=columns, optimizer=LinearSDCA("key"), **CONVERGED
    )
    exact = clone(model).fit(X, y)
    model.set_params(max_iter=5, warm_start=way == "warm_start")
    for seed in range(12):
        order = np.random.default_rng(seed).permutation(len(X))
        fit = getattr(model, "fit" if way == "warm_start" else way)
        fit(X.iloc[order], y.iloc[order])
    np.testing.assert_allclose(model.coef_, exact.coef_, atol=1e-4)
    assert len(model.estimator_.get_variable_value("bias/duals")) == len(X)


def test_warm_start_needs_ids(table):
    model = LinearClassifier(optimizer="sdca", warm_start=True)
    with pytest.raises(ValueError, match=r"warm_start=True .*example_id_column=\.\.\."):
        model.fit(*table)


def test_targets_of_a_regression(blobs):
    X, y = blobs
    model = LinearRegressor(optimizer="sdca", max_iter=3)
    with pytest.warns(DataConversionWarning, match="column-vector"):
        assert model.fit(X, y[:, None]).predict(X).shape == y.shape
    with pytest.raises(ValueError, match="label_dimension=2"):
        model.fit(X, np.column_stack([y, y]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataConversionWarning)
        model.set_params(optimizer="ftrl").fit(X, np.column_stack([y, y]))
