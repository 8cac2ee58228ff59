# SPDX-License-Identifier: Apache-2.0
"""Fitted attributes have the names, types and shapes that scikit-learn gives them."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from skest import LinearClassifier, LinearEstimator, LinearRegressor
from tests.adapters._families import rows_for, small

N, N_FEATURES = 60, 3
X = rows_for(LinearRegressor())[0]


def targets():
    """Targets by name, with the scikit-learn model that says the shapes."""
    rng = np.random.default_rng(0)
    return {
        "two classes": (np.where(X[:, 0] > 3, "b", "a"), LogisticRegression()),
        "three classes": (rng.integers(0, 3, N), LogisticRegression()),
        "numbers": (X[:, 0], LinearRegression()),
        "a column of numbers": (X[:, :1], LinearRegression()),
        "two columns of numbers": (X[:, :2], LinearRegression()),
    }


@pytest.mark.parametrize("name", targets())
def test_coefficients(name):
    y, other = targets()[name]
    cls = LinearClassifier if "classes" in name else LinearRegressor
    model = small(cls, max_iter=100).fit(X, y)
    other.fit(X, y)
    assert np.shape(model.coef_) == np.shape(other.coef_)
    assert np.shape(model.intercept_) == np.shape(other.intercept_)
    encoded = model.feature_columns_.transform(X)
    output = encoded @ model.coef_.T + model.intercept_
    expected = model.decision_function(X) if "classes" in name else model.predict(X)
    np.testing.assert_allclose(output.reshape(expected.shape), expected, rtol=1e-9)


@pytest.mark.parametrize("cls", [LinearClassifier, LinearRegressor, LinearEstimator])
def test_coefficients_of_inferred_columns(cls):
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame.loc[::5, "b"] = np.nan
    frame["city"] = np.resize(["Rome", "Oslo", None], N)
    model = small(cls).fit(frame, (X[:, 0] > 3).astype(int))
    columns = model.feature_columns_
    names = columns.get_feature_names_out()
    assert np.shape(model.coef_)[-1] == len(names) == 3 + 1 + 2
    output = np.asarray(columns.transform(frame) @ np.atleast_2d(model.coef_).T)
    output = (output + model.intercept_)[:, 0]
    if cls is LinearRegressor:
        expected = model.predict(frame)
    elif cls is LinearClassifier:
        expected = model.decision_function(frame)
    else:
        p = model.predict_proba(frame)[:, 1]
        expected = np.log(p / (1 - p))
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
