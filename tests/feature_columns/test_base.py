# SPDX-License-Identifier: Apache-2.0
"""What every column has in common."""

import pickle
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal
from scipy.sparse import csr_matrix, issparse, isspmatrix
from sklearn import config_context
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.utils.estimator_checks import check_no_attributes_set_in_init

from skest.feature_columns import (
    CategoricalColumn,
    DenseColumn,
    bucketized_column,
    categorical_column_with_hash_bucket,
    categorical_column_with_identity,
    categorical_column_with_vocabulary_list,
    crossed_column,
    embedding_column,
    indicator_column,
    numeric_column,
    periodic_column,
    piecewise_linear_column,
)
from skest.feature_columns.base import as_dense


def all_columns() -> dict[str, Any]:
    number = numeric_column("x", default_value="mean", normalizer="standard")
    vocabulary = categorical_column_with_vocabulary_list("c")
    return {
        "numeric": number,
        "indicated": numeric_column("x", default_value=0, indicate_missing="auto"),
        "bucketized": bucketized_column(number, "quantiles:4"),
        "piecewise": piecewise_linear_column(number, "distinct:4"),
        "periodic": periodic_column(number, 3, 2),
        "identity": categorical_column_with_identity("n", 9),
        "vocabulary": vocabulary,
        "hash bucket": categorical_column_with_hash_bucket("c", 9),
        "crossed": crossed_column([vocabulary, "n"], 9),
        "indicator": indicator_column(vocabulary),
        "embedding": embedding_column(vocabulary, dimension=2),
    }


TRAINED = {"embedding", "periodic"}  # `transform` needs what a network has learned
COLUMNS = pytest.mark.parametrize("kind", all_columns())
X = pd.DataFrame(
    {
        "x": [1.0, np.nan, 3.0, 5.0, 8.0],
        "n": [1, -1, 3, 4, 8],
        "c": ["a", "b", None, "", "a"],
    }
)


def fitted(kind: str) -> Any:
    column = all_columns()[kind].fit(X)
    if kind == "embedding":
        column.weights_ = np.arange(4.0).reshape(2, 2)
    elif kind == "periodic":
        shapes = {"frequencies": (1, 2), "phases": (1, 2)}
        shapes |= {"weights": (1, 2, 2), "bias": (1, 2)}
        column.weights_ = {name: np.ones(shape) for name, shape in shapes.items()}
    return column


def assert_same(a: Any, b: Any, rows: Any = X) -> None:
    first, second = a.encode(rows), b.encode(rows)
    assert list(first) == list(second)
    for key, values in first.items():
        assert_array_equal(values, second[key])


@COLUMNS
def test_fit_learns_on_the_column_only(kind: str) -> None:
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
def test_encode_changes_nothing_and_takes_rows_one_by_one(kind: str) -> None:
    column = fitted(kind)
    before = joblib.hash(column.__dict__)
    encoded = column.encode(X)[column.encoded_key]
    column.transform(X)
    assert joblib.hash(column.__dict__) == before
    assert_same(pickle.loads(pickle.dumps(column)), column)
    parts = [column.encode(part)[column.encoded_key] for part in (X[:2], X[2:])]
    assert_array_equal(np.concatenate(parts), encoded)
    if isinstance(column, CategoricalColumn):
        assert encoded.dtype == np.int64
        assert encoded.min() >= -1
        assert encoded.max() < column.num_buckets


@COLUMNS
def test_clone_forgets_and_learns_the_same(kind: str) -> None:
    column = fitted(kind)
    copy = clone(column)
    assert all(not name.endswith("_") for name in vars(copy))
    assert_same(copy.fit(X), column)


@COLUMNS
def test_transform_has_the_names_it_says(kind: str) -> None:
    column = fitted(kind)
    names = column.get_feature_names_out()
    matrix = column.transform(X)
    only_categorical = not isinstance(column, DenseColumn)
    assert isinstance(matrix, csr_matrix if only_categorical else np.ndarray)
    assert matrix.shape == (len(X), len(names))
    assert names.dtype == object
    assert len(set(names)) == len(names)
    frame = column.set_output(transform="pandas").transform(X)
    assert list(frame.columns) == list(names)
    assert_array_equal(frame.to_numpy(), as_dense(matrix))


@COLUMNS
def test_reads_only_the_columns_it_names(kind: str) -> None:
    column = fitted(kind)
    assert_same(column, column, X[list(column.feature_keys)])
    for key in column.feature_keys:
        with pytest.raises(ValueError, match=f"Column {key!r} is not in X"):
            column.encode(X.drop(columns=key).assign(other=1))


@pytest.mark.parametrize("kind", sorted(all_columns().keys() - TRAINED))
def test_works_in_a_column_transformer(kind: str) -> None:
    column = all_columns()[kind]
    transformer = ColumnTransformer([("c", column, list(column.feature_keys))])
    actual, expected = transformer.fit_transform(X), fitted(kind).transform(X)
    assert_array_equal(as_dense(actual), as_dense(expected))


def test_parameters_of_nested_columns_are_reached() -> None:
    column = all_columns()["embedding"]
    column.set_params(categorical_column__max_categories=1, dimension=3)
    assert list(column.fit(X).categorical_column_.vocabulary_) == ["a"]
    assert column.size == 3


def test_missing_values_and_tags() -> None:
    allowed = {
        kind: column.__sklearn_tags__().input_tags.allow_nan
        for kind, column in all_columns().items()
    }
    assert all(allowed.values())
    assert not numeric_column("x").__sklearn_tags__().input_tags.allow_nan


def test_features_in() -> None:
    array = np.arange(6.0).reshape(3, 2)
    column = numeric_column("x1")
    assert not hasattr(column.fit({"x1": [1.0]}), "n_features_in_")
    assert column.fit(array).n_features_in_ == 2
    assert not hasattr(column, "feature_names_in_")
    with pytest.raises(ValueError, match="X has 3 features, but NumericColumn is exp"):
        column.transform(np.ones((1, 3)))
    column.set_params(key="b").fit(pd.DataFrame(array, columns=["a", "b"]))
    assert column.feature_names_in_.tolist() == ["a", "b"]
    assert_array_equal(column.transform(array), array[:, 1:])


def test_needs_fit() -> None:
    needing = {
        kind: c.__sklearn_tags__().requires_fit for kind, c in all_columns().items()
    }
    without = {kind for kind, needs in needing.items() if not needs}
    assert without == {"identity", "hash bucket"}
    closed = numeric_column("x")
    for column in (
        closed,
        bucketized_column(closed, [0]),
        crossed_column(["a", "b"], 9),
    ):
        assert not column.needs_fit


@pytest.mark.parametrize("interface", ["spmatrix", "sparray"])
def test_categorical_columns_give_sparse_matrices(interface: str) -> None:
    column = categorical_column_with_hash_bucket("c", 10**9)
    with config_context(sparse_interface=interface):
        matrix = column.transform({"c": ["a", "b", None]})
    assert issparse(matrix)
    assert isspmatrix(matrix) == (interface == "spmatrix")
    assert matrix.shape == (3, 10**9)
    assert matrix.nnz == 2
