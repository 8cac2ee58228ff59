# SPDX-License-Identifier: Apache-2.0
"""What linear estimators as constructed do with tables of many columns."""

import numpy as np
import pytest
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, root_mean_squared_error

from skest import LinearClassifier, LinearRegressor

N_ROWS = 1_000


@pytest.fixture(scope="module")
def wide():
    """Two thousand rows of 200 columns, and what they add up to."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2 * N_ROWS, 200))
    return X, X @ rng.normal(size=200) / 10 + rng.normal(size=len(X))


def test_classes_of_few_rows_a_column_are_not_learned_by_heart(wide):
    X, y = wide
    y = y > 0
    losses = [
        log_loss(
            y[N_ROWS:], model.fit(X[:N_ROWS], y[:N_ROWS]).predict_proba(X[N_ROWS:])
        )
        for model in (
            LinearClassifier(random_state=0),
            LinearClassifier(random_state=0, early_stopping=False),
            LogisticRegression(max_iter=1_000),
        )
    ]
    assert losses[0] < 0.9 * min(losses[1:])


def test_numbers_of_an_array_are_learned_as_well_as_by_ridge(wide):
    X, y = wide
    losses = [
        root_mean_squared_error(
            y[N_ROWS:], model.fit(X[:N_ROWS], y[:N_ROWS]).predict(X[N_ROWS:])
        )
        for model in (LinearRegressor(random_state=0), Ridge())
    ]
    assert losses[0] < 1.01 * losses[1]


@pytest.mark.parametrize(
    ("parameters", "n_rows", "n_columns", "holds_out"),
    [
        ({}, 1_000, 51, True),
        ({}, 1_000, 50, False),
        ({}, 999, 51, False),
        ({"validation_fraction": 0.2}, 500, 51, True),
        ({"l2": 1.0}, 1_000, 51, False),
        ({"optimizer": "sdca"}, 1_000, 51, False),
    ],
)
def test_when_rows_are_held_out(parameters, n_rows, n_columns, holds_out):
    X, y = np.eye(n_rows, n_columns), np.arange(n_rows) % 2
    model = LinearClassifier(max_iter=1, random_state=0, **parameters).fit(X, y)
    assert model.auto_params_["early_stopping"] is holds_out
    if not parameters:
        model.fit(csr_array(X), y)
        assert model.auto_params_["early_stopping"] is holds_out
