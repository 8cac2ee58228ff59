# SPDX-License-Identifier: Apache-2.0
"""`infer_feature_columns`: columns chosen by a look at the data."""

from collections.abc import Callable
from typing import Any, Literal, overload

import numpy as np

from skest._checks import check_choice
from skest._warnings import warn
from skest.feature_columns.base import FeatureColumn
from skest.feature_columns.categorical import (
    KeyedCategoricalColumn,
    categorical_column_with_hash_bucket,
)
from skest.feature_columns.cells import holds_numbers, numbers
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.dense import embedding_column, indicator_column
from skest.feature_columns.numeric import NumericColumn, numeric_column
from skest.feature_columns.sequence import (
    SequenceCategoricalColumn,
    sequence_numeric_column,
    steps_of,
)
from skest.feature_columns.sparse_matrix import SparseMatrixColumn
from skest.feature_columns.table import Key, Table
from skest.feature_columns.vocabulary import categorical_column_with_vocabulary_list

__all__ = [
    "HASH_BUCKET_SIZE",
    "MAX_INDICATOR_LEVELS",
    "MAX_VOCABULARY_LEVELS",
    "SPARSE_MATRIX_DIMENSION",
    "infer_feature_columns",
]

#: Categories with at most so many levels become an indicator, others an embedding.
MAX_INDICATOR_LEVELS = 10
#: Categories with more levels are hashed, in place of a vocabulary.
MAX_VOCABULARY_LEVELS = 50_000
#: Number of buckets for hashed categories.
HASH_BUCKET_SIZE = 100_000
#: Length of the vectors of the columns of a sparse matrix, if it has so many.
SPARSE_MATRIX_DIMENSION = 64


_KINDS = ("dense", "linear", "sequence", "context")


@overload
def infer_feature_columns(
    X: Any,
    kind: Literal["dense", "linear", "sequence"] = "dense",
    dtype: str | None = None,
) -> FeatureColumns: ...


@overload
def infer_feature_columns(
    X: Any, kind: str, dtype: str | None = None
) -> FeatureColumns | None: ...


def infer_feature_columns(
    X: Any, kind: str = "dense", dtype: str | None = None
) -> FeatureColumns | None:
    """Choose feature columns for X.

    Numbers are standardised; missing ones are replaced by the mean, and where the
    training data had gaps an indicator of missing numbers is added. An array of numbers
    becomes one column. Strings, booleans and pandas categories become categorical
    columns with a learned vocabulary, or hash buckets if there are very many levels.
    Lists of strings or integers are several categories, lists of floats of one length
    are numbers. A category that is the integer -1 counts as missing, with a warning. A
    sparse matrix becomes one column of numbers scaled to [-1, 1], for a deep model with
    a vector for each of its columns that is multiplied by the number, so that it is
    never made dense.

    Parameters
    ----------
    X : DataFrame, dict of arrays or array of shape (n_rows, n_features)
        Training data; see `skest.feature_columns.table.Table`.
    kind : {"dense", "linear", "sequence", "context"}, default="dense"
        "dense": columns for a deep model, where categories become an indicator (few
        levels) or an embedding. "linear": for a linear model, which takes categorical
        columns as they are. "sequence": for a model of sequences, only of what has
        several values in a cell, lists or arrays of two or more dimensions; there, lists
        of integers are numbers. "context": of all the rest, as "dense".
    dtype : {"float32", "float64"} or None, default=None
        Type in which numbers are scaled. None takes float32 for columns whose type it
        can hold exactly (up to float32 and int16), and float64 for others.

    Returns
    -------
    FeatureColumns or None
        Not fitted. None if there are no columns for the context.

    Raises
    ------
    ValueError
        If X has a column that is neither numbers nor categories, such as dates, or no
        sequences are found.
    TypeError
        If X has a sparse matrix, and sequences are wanted.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest.feature_columns import infer_feature_columns
    >>> X = pd.DataFrame({"size": [1.0, None], "color": ["red", "blue"]})
    >>> [column.name for column in infer_feature_columns(X).active]
    ['size', 'color_indicator']
    """
    check_choice(kind, "kind", "infer_feature_columns", _KINDS)
    table = Table(X)
    keys = table.keys
    if table.whole_key is not None and all(map(table.holds_numbers, keys)):
        keys = [table.whole_key]
    if kind in ("sequence", "context"):
        wanted = kind == "sequence"
        keys = [key for key in keys if _holds_sequences(table, key) is wanted]
    if keys:
        return FeatureColumns([_column(table, key, kind, dtype) for key in keys])
    if kind == "sequence":
        raise ValueError(
            "X has no column of sequences: no cells are lists, and no column is an array "
            "of two dimensions. Gather the values of a sequence into one cell, or use a "
            "model without sequences, such as DNNClassifier."
        )
    return None


def _sparse_matrix(table: Table, key: Key, kind: str) -> FeatureColumn:
    matrix = SparseMatrixColumn(key)
    if kind == "linear":
        return matrix
    dimension = min(table.sparse(key).shape[1], SPARSE_MATRIX_DIMENSION)
    return embedding_column(matrix, dimension, combiner="sum")


def _holds_sequences(table: Table, key: Key) -> bool:
    return table.cells(key).ndim > 1 or table.flat(key) is not None


def _holds_numbers(table: Table, key: Key, is_sequence: bool) -> bool:
    flat = table.flat(key)
    if flat is None:
        return table.holds_numbers(key)
    if is_sequence:
        return holds_numbers(flat.values)
    if flat.values.dtype.kind != "f":
        return False
    values = numbers(flat.values, key)
    gaps = np.isnan(values)  # which make floats of integers, and those are categories
    return not gaps.any() or bool((values[~gaps] % 1 != 0).any())


def _column(table: Table, key: Key, kind: str, dtype: str | None) -> FeatureColumn:
    if table.holds_sparse(key):
        return _sparse_matrix(table, key, kind)
    is_sequence = kind == "sequence"
    if _holds_numbers(table, key, is_sequence):
        if is_sequence:
            steps = numbers(steps_of(table, key).values, key)
            return _numeric(sequence_numeric_column, key, steps, dtype)
        return _numeric(numeric_column, key, table.numbers(key), dtype)
    codes, levels = table.factorized(key)
    if levels.dtype != object and -1 in levels:
        warn(
            f"Column {key!r} holds the integer -1 among its categories, where it means "
            "missing, as in TensorFlow. If it is a category, make strings of the column, "
            "e.g. with .astype(str)."
        )
    n_levels = int(np.count_nonzero(np.bincount(codes[codes >= 0])))
    keyed = _categorical(key, n_levels)
    if kind == "linear":
        return keyed
    categorical = SequenceCategoricalColumn(keyed) if is_sequence else keyed
    if n_levels <= MAX_INDICATOR_LEVELS:
        return indicator_column(categorical)
    return embedding_column(categorical, dimension="auto")


def _numeric(
    make: Callable[..., NumericColumn],
    key: Key,
    values: np.ndarray,
    dtype: str | None,
) -> NumericColumn:
    return make(
        key,
        shape=values.shape[1:] or (1,),
        default_value="mean",
        dtype=dtype or np.result_type(values.dtype, np.float32).name,
        normalizer="standard",
        indicate_missing="auto",
    )


def _categorical(key: Key, n_levels: int) -> KeyedCategoricalColumn:
    if n_levels > MAX_VOCABULARY_LEVELS:
        return categorical_column_with_hash_bucket(key, HASH_BUCKET_SIZE)
    return categorical_column_with_vocabulary_list(key)
