# SPDX-License-Identifier: Apache-2.0
"""What regressors minimise."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.metrics import mean_absolute_error, mean_pinball_loss, r2_score

from skest import BaselineRegressor, DNNRegressor
from tests.adapters.conftest import make

LOSSES = ["squared_error", "absolute_error", "huber", "quantile", "poisson", "logistic"]


@pytest.fixture(name="shares")
def shares_in_the_unit_interval():
    """Rows, and a skewed target in [0, 1] that follows from them."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(201, 2))
    return X, 1 / (1 + np.exp(-2 * X[:, 0] + 1))


def huber_location(y):
    """The constant with the least Huber loss, found on a grid."""
    grid = np.linspace(y.min(), y.max(), 2001)
    difference = np.abs(y[:, None] - grid)
    loss = np.where(difference < 1, difference**2 / 2, difference - 0.5).sum(axis=0)
    return grid[loss.argmin()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "statistic", "scale"),
    [
        ({"loss": "squared_error"}, np.mean, 4),
        ({"loss": "absolute_error"}, np.median, 4),
        ({"loss": "huber"}, huber_location, 4),
        ({"loss": "quantile"}, np.median, 4),
        ({"loss": "quantile", "quantile": 0.9}, lambda y: np.quantile(y, 0.9), 4),
        ({"loss": "poisson"}, np.mean, 4),
        ({"loss": "logistic"}, np.mean, 1),
    ],
    ids=["mean", "median", "huber", "quantile", "quantile_90", "poisson", "logistic"],
)
def test_the_best_constant_is_the_statistic_of_the_loss(
    params, statistic, scale, shares
):
    X, y = shares[0], scale * shares[1]
    model = BaselineRegressor(
        **params, max_iter=1000, n_iter_no_change=1000, batch_size=201, random_state=0
    ).fit(X, y)
    assert model.predict(X)[0] == pytest.approx(statistic(y), abs=0.02 * scale)


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_is_learned_with(loss, shares):
    X, y = shares
    for several in (y, np.stack([y, 1 - y], axis=1)):
        model = make(DNNRegressor, loss=loss, max_iter=40, learning_rate=0.2).fit(
            X, several
        )
        assert model.score(X, several) > 0.5
        assert model.evaluate(X, several)["average_loss"] <= model.loss_curve_[0]
        assert model.predict(X).shape == several.shape


@pytest.mark.parametrize(
    ("params", "loss"),
    [
        ({"loss": "absolute_error"}, mean_absolute_error),
        (
            {"loss": "quantile", "quantile": 0.8},
            lambda *a, **k: mean_pinball_loss(*a, alpha=0.8, **k),
        ),
    ],
    ids=["absolute_error", "quantile"],
)
def test_early_stopping_goes_by_the_loss(params, loss, shares):
    X, y = shares
    weight = np.linspace(0.1, 2, 101)
    model = make(DNNRegressor, **params, early_stopping=True)
    model.fit(
        *(X[:100], y[:100]), X_val=X[100:], y_val=y[100:], sample_weight_val=weight
    )
    expected = -loss(y[100:], model.predict(X[100:]), sample_weight=weight)
    assert model.best_validation_score_ == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "wrong", "match"),
    [
        ("poisson", -1.0, r"needs y that is not negative; .* -1 in row 3\. Correct or"),
        ("logistic", -0.5, r"needs y in \[0, 1\]; got -0.5 in row 3"),
        ("logistic", 1.5, r"got 1.5 in row 3.*choose loss=\"squared_error\""),
    ],
)
def test_values_that_a_loss_is_not_made_for(loss, wrong, match, shares):
    X, y = shares
    bad = y.copy()
    bad[3] = wrong
    model = make(DNNRegressor, loss=loss, max_iter=2)
    with pytest.raises(ValueError, match=match):
        clone(model).fit(X, bad)
    model.fit(X, y)
    before = model.predict(X)
    for call in (model.fit, model.partial_fit, model.evaluate):
        with pytest.raises(ValueError, match=match):
            call(X, bad)
    np.testing.assert_array_equal(model.predict(X), before)


@pytest.mark.parametrize(
    ("params", "match"),
    [
        ({"quantile": 0.9}, "'quantile' needs loss=\"quantile\"; got quantile=0.9 and"),
        ({"loss": "quantile", "quantile": 1.0}, "'quantile' parameter of DNNRegressor"),
        ({"loss": "mean"}, "'loss' parameter of DNNRegressor"),
    ],
)
def test_wrong_parameters(params, match, shares):
    with pytest.raises(ValueError, match=match):
        DNNRegressor(**params).fit(*shares)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("equal", [False, True])
def test_the_score_of_rows_held_out_is_r2(weighted, equal):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(90, 3)), rng.normal(size=(90, 2))
    y_val = np.full((30, 2), 2.0) if equal else y[60:]
    weight = rng.random(30) if weighted else None
    model = DNNRegressor(
        (4,), optimizer="adam", learning_rate=0.01, max_iter=3, early_stopping=True
    )
    val = {"X_val": X[60:], "y_val": y_val, "sample_weight_val": weight}
    model.fit(X[:60], y[:60], **val)
    expected = r2_score(y_val, model.predict(X[60:]), sample_weight=weight)
    assert model.best_validation_score_ == pytest.approx(expected, rel=1e-6)


def test_targets_of_which_float32_keeps_nothing_are_told():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["a", "b"])
    model = DNNRegressor((2,), max_iter=1, dtype="float32")
    with pytest.warns(
        UserWarning, match=r"y is 1e\+08 in the mean, but varies by .* Sub"
    ):
        model.fit(X, X["a"] + 1e8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(X, X["a"] + 1e4)
        model.fit(X, X["a"] * 0 + 1e8)
