# SPDX-License-Identifier: Apache-2.0
"""Tables that are predicted in one piece."""

import numpy as np
import pytest

from skest import DNNClassifier, LinearRegressor
from skest.feature_columns import numeric_column

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 3))
Y = (X[:, 0] > 0).astype(int)
OPTIONS = {"max_iter": 2, "random_state": 0}


def by_batches(model, features, key, batch_size=7):
    """The same by the loop over batches."""
    return model.estimator_.predict_table(features, [key], batch_size=batch_size)[key]


@pytest.mark.parametrize(
    ("execution", "dtype", "given"),
    [
        ("eager", "float32", "float64"),
        ("eager", "float64", "int64"),
        ("graph", "float32", "float32"),
    ],
)
def test_one_piece_gives_the_numbers_of_batches(execution, dtype, given):
    table = (10 * X).astype(given)
    options = {"dtype": dtype, "execution": execution, **OPTIONS}
    model = DNNClassifier((4,), **options).fit(table, Y)
    for _ in range(4):
        found = model.predict_proba(table)
    encoded = model._check_features(table, reset=False)
    np.testing.assert_allclose(
        found, by_batches(model, encoded, "probabilities"), rtol=1e-5
    )


@pytest.mark.parametrize(
    ("normalizer", "dtype"),
    [
        (None, "int64"),
        ("standard", "float32"),
        ("auto", "float32"),
        ("quantile", "float32"),
    ],
)
def test_arithmetic_is_that_of_the_columns(normalizer, dtype):
    columns = [
        numeric_column("a", dtype=dtype, normalizer=normalizer, default_value=0),
        numeric_column("b", 2, default_value=1, indicate_missing=True),
    ]
    whole = dtype == "int64"
    table = {"a": np.round(X[:, 0]) if whole else X[:, 0].copy(), "b": X[:, 1:].copy()}
    model = LinearRegressor(feature_columns=columns, **OPTIONS).fit(table, X[:, 0])
    model.predict(table)
    kept = model.estimator_._kept
    is_plain = dtype != "int64" and normalizer in (None, "standard", "auto", "minmax")
    assert (kept._arithmetic is not None) == is_plain
    if is_plain:
        tensors = kept._arithmetic.tensors(table)
        encoded = kept._arithmetic(tensors)
        for key, expected in kept.spec.encode(table).items():
            np.testing.assert_array_equal(encoded[key], expected)
    with_gap = {**table, "b": np.where(table["b"] == table["b"][0], np.nan, table["b"])}
    assert not np.array_equal(model.predict(with_gap), model.predict(table))


def test_a_caller_owns_the_answer_and_the_rows():
    model = DNNClassifier((4,), dtype="float64", **OPTIONS).fit(X, Y)
    row = X[:1].copy()
    for _ in range(3):
        first = model.predict_proba(row)
        kept = first.copy()
        second = model.predict_proba(row)
        first[:] = -1
        np.testing.assert_array_equal(second, kept)
        np.testing.assert_array_equal(row, X[:1])
