# SPDX-License-Identifier: Apache-2.0
"""What every column has in common."""

import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import issparse, isspmatrix
from sklearn import config_context
from sklearn.utils.estimator_checks import check_no_attributes_set_in_init

from skest import LinearRegressor
from skest import feature_columns as fc


def all_columns():
    number = fc.numeric_column("x", default_value="mean", normalizer="standard")
    vocabulary = fc.categorical_column_with_vocabulary_list("c")
    return {
        "numeric": number,
        "indicated": fc.numeric_column("x", default_value=0, indicate_missing="auto"),
        "bucketized": fc.bucketized_column(number, "quantiles:4"),
        "piecewise": fc.piecewise_linear_column(number, "distinct:4"),
        "periodic": fc.periodic_column(number, 3, 2),
        "identity": fc.categorical_column_with_identity("n", 9),
        "vocabulary": vocabulary,
        "hash bucket": fc.categorical_column_with_hash_bucket("c", 9),
        "crossed": fc.crossed_column([vocabulary, "n"], 9),
        "indicator": fc.indicator_column(vocabulary),
        "embedding": fc.embedding_column(vocabulary, dimension=2),
    }


COLUMNS = pytest.mark.parametrize("kind", all_columns())
X = pd.DataFrame(
    {
        "x": [1.0, np.nan, 3.0, 5.0, 8.0],
        "n": [1, -1, 3, 4, 8],
        "c": ["a", "b", None, "", "a"],
    }
)


def fitted(kind):
    column = all_columns()[kind].fit(X)
    if kind == "embedding":
        column.weights_ = np.arange(4.0).reshape(2, 2)
    elif kind == "periodic":
        shapes = {"frequencies": (1, 2), "phases": (1, 2)}
        shapes |= {"weights": (1, 2, 2), "bias": (1, 2)}
        column.weights_ = {name: np.ones(shape) for name, shape in shapes.items()}
    return column


def assert_same(a, b, rows=X):
    first, second = a.encode(rows), b.encode(rows)
    assert list(first) == list(second)
    for key, values in first.items():
        assert_array_equal(values, second[key])


@COLUMNS
def test_fit_learns_on_the_column_only(kind):
    column = all_columns()[kind]
    check_no_attributes_set_in_init(kind, column)
    before = joblib.hash(column.get_params())
    data_before = joblib.hash(X)
    assert column.fit(X) is column
    assert joblib.hash(column.get_params()) == before
    assert joblib.hash(X) == data_before
    column = fitted(kind)
    with pytest.raises(ValueError, match="not in X|has vectors that"):
        column.fit(pd.DataFrame({"other": [1]}))
    assert_same(column, fitted(kind))


@COLUMNS
def test_encode_changes_nothing_and_takes_rows_one_by_one(kind):
    column = fitted(kind)
    before = joblib.hash(column.__dict__)
    encoded = column.encode(X)[column.encoded_key]
    column.transform(X)
    assert joblib.hash(column.__dict__) == before
    assert_same(pickle.loads(pickle.dumps(column)), column)
    parts = [column.encode(part)[column.encoded_key] for part in (X[:2], X[2:])]
    assert_array_equal(np.concatenate(parts), encoded)
    if isinstance(column, fc.CategoricalColumn):
        assert encoded.dtype == np.int64
        assert encoded.min() >= -1
        assert encoded.max() < column.num_buckets


@COLUMNS
def test_reads_only_the_columns_it_names(kind):
    column = fitted(kind)
    assert_same(column, column, X[list(column.feature_keys)])
    for key in column.feature_keys:
        with pytest.raises(ValueError, match=f"Column {key!r} is not in X"):
            column.encode(X.drop(columns=key).assign(other=1))


@pytest.mark.parametrize("interface", ["spmatrix", "sparray"])
def test_categorical_columns_give_sparse_matrices(interface):
    column = fc.categorical_column_with_hash_bucket("c", 10**9)
    with config_context(sparse_interface=interface):
        matrix = column.transform({"c": ["a", "b", None]})
    assert issparse(matrix)
    assert isspmatrix(matrix) == (interface == "spmatrix")
    assert matrix.shape == (3, 10**9)
    assert matrix.nnz == 2


def test_a_dense_column_of_your_own():
    class Bits(fc.DenseColumn):
        size = 2

        def __init__(self, key):
            self.key = key

        def _matrix(self, table):
            numbers = table.numbers(self.key)
            return np.stack([numbers & 1, numbers >> 1 & 1], axis=1)

        def _output_names(self):
            return [f"{self.key}_{i}" for i in range(2)]

    columns = fc.FeatureColumns([Bits("k"), fc.numeric_column("x")])
    X = {"k": np.arange(4), "x": np.arange(4.0)}
    expected = [[0, 0, 0], [1, 0, 1], [0, 1, 2], [1, 1, 3]]
    assert fc.DenseFeatures(columns)(columns.encode(X)).tolist() == expected
    assert columns.fit(X).transform(X).tolist() == expected
    X = {"k": np.arange(200) % 4}
    model = LinearRegressor(feature_columns=[Bits("k")], random_state=0)
    assert model.fit(X, X["k"] >> 1).score(X, X["k"] >> 1) > 0.95
