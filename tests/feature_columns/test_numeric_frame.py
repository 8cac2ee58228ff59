# SPDX-License-Identifier: Apache-2.0
"""A frame of numbers as one numeric column."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone

from skest import DNNClassifier, DNNLinearCombinedClassifier, LinearClassifier
from skest.feature_columns.encoding import with_feature_names
from skest.feature_columns.infer import infer_feature_columns, with_piecewise


def frame(second):
    """Return two columns of numbers, of which the first has a gap."""
    values = np.random.default_rng(0).normal(size=(20, 2))
    values[3, 0] = np.nan
    return pd.DataFrame(values, columns=["f", second])


@pytest.mark.parametrize(
    ("model", "attribute", "second"),
    [
        (DNNClassifier((2,), max_iter=1), "feature_columns_", "g"),
        (LinearClassifier(max_iter=1), "feature_columns_", "x"),
        (DNNLinearCombinedClassifier((2,), max_iter=1), "dnn_feature_columns_", "x0"),
    ],
)
def test_fitted_columns_of_an_estimator_take_its_frame(model, attribute, second):
    X = frame(second)
    fitted = clone(model).fit(X, np.arange(20) % 2)
    columns = getattr(pickle.loads(pickle.dumps(fitted)), attribute)
    inferred = infer_feature_columns(X.to_numpy())
    if not isinstance(model, LinearClassifier):
        inferred = with_piecewise(inferred)
    array = inferred.fit(X.to_numpy())
    expected = columns.transform(X.to_numpy())
    assert_allclose(expected, array.transform(X.to_numpy()))
    assert_array_equal(columns.transform(X), expected)
    assert_array_equal(columns.transform(X[X.columns[::-1]]), expected)
    assert_array_equal(columns.transform(pl.DataFrame(X.to_dict("list"))), expected)
    assert_array_equal(columns.transform(X.to_dict("list")), expected)
    names = ["f", second, "f_missing"]
    if not isinstance(model, LinearClassifier):
        names += [f"{name}_ple_{i}" for name in X for i in range(6)]
    assert columns.get_feature_names_out().tolist() == names
    with_names = clone(columns).set_output(transform="pandas").fit_transform(X)
    assert list(with_names) == names
    assert_allclose(with_names, expected)


def test_of_another_frame():
    X = frame("g")
    columns = with_feature_names(infer_feature_columns(X.to_numpy()), ["f", "g"])
    columns.fit(X)
    with pytest.raises(ValueError, match="Column 'g' is not in X, which has 'f', 'h'"):
        columns.transform(X.rename(columns={"g": "h"}))
    with pytest.raises(ValueError, match="X has 1 features, but FeatureColumns is exp"):
        columns.transform(X[["f"]].to_numpy())
