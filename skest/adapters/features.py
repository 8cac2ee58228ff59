# SPDX-License-Identifier: Apache-2.0
"""Reads ``X`` as columns by key; with ``y`` they are `Rows`."""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import get_tags
from sklearn.utils.validation import check_array, validate_data

from skest.feature_columns.cells import as_array, warn_of_merged
from skest.feature_columns.choice import are_row_numbers
from skest.feature_columns.matrix_parts import MAX_INDICATOR_LEVELS, parts_of
from skest.feature_columns.sources import (
    holds_floats,
    is_frame,
    plain_array,
    plain_matrix,
)
from skest.feature_columns.statistics import is_finite
from skest.feature_columns.table import Table, TableColumns
from skest.inputs.array_dataset import take_rows

#: Key of an array as a whole.
ARRAY_KEY = "x"
#: Key of the sample weights beside the features.
WEIGHT_KEY = "__sample_weight__"
_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))
# What pandas calls objects that are all of one type, or integers among floats.
_NUMBERS = ("boolean", "integer", "floating", "mixed-integer-float")


class Rows(NamedTuple):
    """A table with its labels and weights.

    Attributes
    ----------
    features, labels
        The table, and encoded labels.
    weight : ndarray of shape (n_rows,), or None
        Weights of the losses.
    sample_weight : ndarray of shape (n_rows,), default=None
        Those that were given: `weight` without class weights. Columns learn with them.
    groups : ndarray of int, shape (n_rows,), default=None
        Rows of one number are held out together.
    """

    features: TableColumns
    labels: Any
    weight: np.ndarray | None
    sample_weight: np.ndarray | None = None
    groups: np.ndarray | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return count_samples(self.features)

    def take(self, rows: np.ndarray) -> "Rows":
        """Return some of the rows."""
        features = TableColumns(take_rows(self.features, rows))
        beside = (
            values if values is None else values[rows]
            for values in (self.weight, self.sample_weight, self.groups)
        )
        return Rows(features, take_rows(self.labels, rows), *beside)

    def with_normalised_weight(self) -> TableColumns:
        """Return the features with the weights, scaled to a mean of one over the table.

        A head divides the weighted loss of a batch by its rows. With weights of mean
        one, that is the unbiased estimate of the weighted mean over all rows; dividing
        each batch by its own weights would be biased.
        """
        if self.weight is None:
            return self.features
        return self.features | {WEIGHT_KEY: self.weight / self.weight.mean()}


def count_samples(features: Mapping[Any, Any]) -> int:
    """Return the number of rows of columns by key."""
    column = next(iter(features.values()))
    return int(column.shape[0]) if issparse(column) else len(column)


def as_rows(y: Any) -> Any:
    """Return `y` as something whose rows can be taken; lists become arrays.

    Masked values are missing, and objects that are numbers become such.
    """
    if isinstance(y, Mapping):
        return {key: as_rows(values) for key, values in y.items()}
    # Of the sparse forms, rows can be taken of CSR; frames and arrays are taken as they
    # are, so that answers can have the form of `y`.
    if issparse(y):
        return y.tocsr()
    if isinstance(y, np.ndarray):
        y = plain_array(y, "y")
        y = y.astype(y.dtype.newbyteorder("="), copy=False)  # which pandas wants
    if isinstance(y, np.ndarray | pd.Series) and y.dtype == object:
        # As `.values` of a mixed frame has them.
        cells = np.ravel(y)
        if pd.api.types.infer_dtype(cells, skipna=False) in _NUMBERS:
            return np.array(cells.tolist()).reshape(y.shape)
    if hasattr(y, "shape"):
        return y
    try:
        return as_array(y)
    except ValueError:  # lists of different lengths
        return np.fromiter(y, dtype=object, count=len(y))


def is_table(X: Any) -> bool:
    """Tell whether X has columns by name: a frame, or a dictionary of arrays.

    A frame of numbers that are called 0, 1, … has nothing that an array has not.
    """
    if is_frame(X):
        return not _is_nameless_array(X)
    # Some sparse matrices of SciPy are dictionaries.
    return isinstance(X, Mapping) and not issparse(X)


def holds_only_numbers(X: Any) -> bool:
    """Tell whether X is a frame with one number in each cell."""
    if not is_frame(X):
        return False
    if holds_floats(X):
        return True
    table = Table(X)
    return all(table.holds_numbers(k) and table.cells(k).ndim == 1 for k in table.keys)


def holds_dummies(X: Any) -> bool:
    """Tell whether a frame of numbers has categories, as `pandas.get_dummies` makes them.

    Each is some booleans, of which one is True in each row.
    """
    if not is_frame(X):
        return False
    table = Table(X)
    flags: list[Any] = []
    others: list[Any] = []
    for key in table.keys:
        dtype = table.cells(key).dtype
        is_flag = is_bool_dtype(dtype) and not isinstance(dtype, pd.CategoricalDtype)
        (flags if is_flag else others).append(key)
    if len(flags) <= MAX_INDICATOR_LEVELS:
        return False
    # Of such numbers, some may be left out.
    if not all(map(table.holds_numbers, others)) or any(
        are_row_numbers(table.numbers(key)) for key in others
    ):
        return False
    return bool(parts_of(table.matrix(flags)).blocks)


def has_empty_column(X: Any) -> bool:
    """Tell whether a frame of numbers has a column without any."""
    table = Table(X)
    # The first cell first: mostly it is a number, and the rest of the column is not
    # read.
    columns = map(table.numbers, table.keys)
    return any(np.isnan(c[0]) and np.isnan(c).all() for c in columns if len(c))


def without_columns(X: Any, keys: Sequence[str]) -> tuple[Any, dict[str, Any]]:
    """Take columns out of a table, those of them that it has.

    Parameters
    ----------
    X : frame, dict of arrays or array-like
        An array has no columns by name and is returned as it is.
    keys : sequence of str
        Names of columns.

    Returns
    -------
    X : as given
        Without the columns.
    columns : dict
        The columns.
    """
    if not keys or not is_table(X):
        return X, {}
    if isinstance(X, Mapping):
        columns = {key: X[key] for key in keys if key in X}
        return {key: X[key] for key in X if key not in columns}, columns
    # Frames of all libraries are asked in one way, and the answer is one of their own.
    import narwhals.stable.v2 as nw

    table = Table(X)
    found = [key for key in keys if key in table.keys]
    columns = {key: table.cells(key) for key in found}
    frame = nw.from_native(X, eager_only=True)
    return frame.drop(found).to_native(), columns


def read_array(estimator: BaseEstimator, X: Any, *, reset: bool) -> TableColumns:
    """Return X as one column of real numbers, of shape (n_rows, n_features).

    Parameters
    ----------
    estimator : BaseEstimator
        Learns or checks the number and names of features.
    X : array-like, sparse matrix or frame of numbers
        NaN is allowed, infinity is not. A sparse matrix is for estimators whose tags
        say so.
    reset : bool
        Learn rather than check.

    Returns
    -------
    TableColumns
        X under `ARRAY_KEY`, as float64 or float32; a sparse matrix in CSR form.

    Raises
    ------
    ValueError, TypeError
        If a value is no finite number; of a frame, its column is named.
    """
    as_in_fit = None if reset else _array_as_in_fit(estimator, X)
    if as_in_fit is not None:
        return TableColumns({ARRAY_KEY: as_in_fit})
    names = vars(estimator).get("feature_names_in_")
    if isinstance(X, Mapping) and not issparse(X) and names is not None:
        # By position: frames of Series would be joined by their index.
        table = Table({name: X[name] for name in names if name in X})
        X = pd.DataFrame({key: np.asarray(table.cells(key)) for key in table.keys})
    elif isinstance(X, Mapping) and not issparse(X):
        raise TypeError(
            f"This {type(estimator).__name__} was fitted on an array; got a dictionary. "
            "Pass an array or a DataFrame with the same columns."
        )
    # float32 stays: scikit-learn's MLP computes in it as well.
    accepted = {
        "dtype": [np.float64, np.float32],
        "accept_sparse": issparse(X) and _accepted(estimator),
        # Feature columns fill gaps, or refuse them by name.
        "ensure_all_finite": "allow-nan",
    }
    # Read by columns first: check_array would say that something is wrong, but not
    # where.
    if is_frame(X):
        matrix = _matrix_of_frame(X, reset)
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        # What `validate_data` adds, names and their number, is learned from the frame
        # above: the matrix has none any more.
        X = check_array(matrix, **accepted, estimator=estimator)
        return TableColumns({ARRAY_KEY: X})
    if isinstance(X, str | os.PathLike):
        raise TypeError(
            f"'X' must be a table; got the path {os.fspath(X)!r}. Read it first, e.g. with "
            "pandas.read_csv."
        )
    # A masked array would lose its mask in `validate_data`, and what it masks would
    # count.
    X = plain_matrix(X)
    if getattr(getattr(X, "dtype", None), "kind", "") in ("m", "M"):
        # As numbers they would be in whatever unit they are stored in.
        raise TypeError(
            f"An array without 'feature_columns' must hold numbers; got dtype {X.dtype}. "
            "For dates, pass a DataFrame or a dictionary of arrays; of durations, make "
            "numbers in a unit of your choice first."
        )
    if reset and isinstance(X, np.ndarray) and X.ndim == 2:
        for i, values in enumerate(X.T):
            warn_of_merged(values, np.float64, i)
    try:
        X = validate_data(estimator, X, reset=reset, **accepted)
    except ValueError as error:
        # scikit-learn knows no feature columns: its message tells neither what to do
        # with strings and sequences nor that skest takes them.
        if "could not convert string to float" in str(error):
            raise ValueError(
                f"An array without 'feature_columns' must hold numbers; {error}. For "
                "strings, pass a DataFrame or a dictionary of arrays, or describe the "
                "columns. The transformers of a pipeline give a DataFrame after "
                "set_output(transform='pandas')."
            ) from error
        if "Found array with dim" in str(error):
            raise ValueError(
                f"{error} An array of more dimensions is one column, to which you give a "
                "name: {'x': array}."
            ) from error
        raise
    except OverflowError as error:
        raise ValueError(
            f"X holds an integer that is too large for a float ({error}). Scale it, for "
            "example by taking logarithms."
        ) from error
    return TableColumns({ARRAY_KEY: X})


def _array_as_in_fit(estimator: BaseEstimator, X: Any) -> np.ndarray | None:
    """Return the numbers of X if `validate_data` would take them as they are, or None.

    To see that takes a twentieth of the time, which counts where X is a single row.
    """
    names = vars(estimator).get("feature_names_in_")
    if names is not None and holds_floats(X) and np.array_equal(X.columns, names):
        X, names = X.to_numpy(), None
    is_as_in_fit = (
        type(X) is np.ndarray
        and X.ndim == 2
        and X.dtype in _FLOATS
        and len(X) > 0
        and X.shape[1] == vars(estimator).get("n_features_in_")
        # Names in fit, which X has not, are a warning of validate_data.
        and names is None
        and is_finite(X)
    )
    return X if is_as_in_fit else None


def read_table(
    estimator: BaseEstimator, X: Any, *, reset: bool, positions: Collection[int] = ()
) -> TableColumns:
    """Return X as columns by key, unchanged; what they hold is for feature columns.

    Parameters
    ----------
    estimator : BaseEstimator
        Learns or checks the number and names of features.
    X : frame, dict of arrays or array-like
        Columns of an array are found as 0, 1, …, as "x0", "x1", …, and all together
        as `ARRAY_KEY`; if `estimator` was fitted on a frame, by its names. A frame of
        numbers whose names are 0, 1, … counts as an array.
    reset : bool
        Learn rather than check.
    positions : collection of int, default=()
        Columns that have names, but are to be found by position, too.

    Returns
    -------
    TableColumns
        Arrays, or columns of the frame.

    Raises
    ------
    ValueError, TypeError
        If there are no rows or columns, lengths differ, or names are not unique.
    """
    if is_table(X):
        table = Table(X)
        if not isinstance(X, Mapping):
            if reset or not _has_names_of_fit(estimator, table):
                validate_data(estimator, X, reset=reset, skip_check_array=True)
        # scikit-learn has no names for a dictionary. With these, an array is found by
        # the order of its entries, and a column that nobody reads is named.
        elif reset:
            estimator.feature_names_in_ = np.asarray(table.keys, dtype=object)
            estimator.n_features_in_ = len(table.keys)
        features = {
            key: X[key].tocsr() if table.holds_sparse(key) else table.cells(key)
            for key in table.keys
        }
    else:
        features = _read_columns_of_array(estimator, X, reset=reset)
    # Beside the features is where heads look for weights, as tf.estimator's
    # weight_column.
    if WEIGHT_KEY in features:
        raise ValueError(
            f"A column of X is called {WEIGHT_KEY!r}, a name that skest needs for the "
            "sample weights. Rename it."
        )
    # None in a copy that shap has made.
    names = getattr(estimator, "feature_names_in_", None)
    named = {} if names is None else dict(enumerate(names))
    # Only those asked for: two keys for each column would be two columns to whoever
    # goes through all of them.
    placed = {i: features[named[i]] for i in positions if named.get(i) in features}
    return TableColumns({**features, **placed})


def _has_names_of_fit(estimator: BaseEstimator, table: Table) -> bool:
    """Tell whether `validate_data` would find the names that it expects, much later."""
    known = vars(estimator).get("feature_names_in_")
    names = table.feature_names
    return known is not None and names is not None and [*known] == [*names]


def _is_nameless_array(X: Any) -> bool:
    """Tell whether a frame has nothing that an array has not."""
    return (
        isinstance(X, pd.DataFrame)
        and all(i == name for i, name in enumerate(X.columns))
        and holds_only_numbers(X)
    )


def _read_columns_of_array(
    estimator: BaseEstimator, X: Any, *, reset: bool
) -> dict[Any, Any]:
    X = plain_matrix(X)
    # NumPy would make strings of the numbers, and of NaN, that stand beside strings.
    if isinstance(X, list | tuple) and np.asarray(X).dtype.kind == "U":
        X = np.asarray(X, dtype=object)
    # Neither cast nor looked through: cells may be strings, and columns fill gaps.
    X = validate_data(
        estimator,
        X,
        reset=reset,
        accept_sparse=_accepted(estimator),
        dtype=None,
        ensure_all_finite=False,
    )
    if issparse(X):
        return {ARRAY_KEY: X}
    return Table(X, getattr(estimator, "feature_names_in_", None)).by_key()


def _accepted(estimator: BaseEstimator) -> Any:
    """Return the form of sparse matrices that an estimator takes, or False."""
    return "csr" if get_tags(estimator).input_tags.sparse else False


def _matrix_of_frame(X: Any, reset: bool) -> np.ndarray:
    """Return the numbers of a frame; whatever is wrong is named by its column."""
    table = Table(X)
    if holds_floats(X):
        matrix = X.to_numpy()
        if is_finite(matrix) or not np.isinf(matrix).any():
            return matrix
    columns = {key: table.numbers(key) for key in table.keys}
    for key, values in columns.items():
        if reset:
            warn_of_merged(values, np.float64, key)
        if values.dtype.kind == "f" and np.isinf(values).any():
            raise ValueError(
                f"Column {key!r} holds infinity (inf), which is never allowed. Replace it "
                "by a number or by NaN."
            )
    return np.column_stack(list(columns.values()))
