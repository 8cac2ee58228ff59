# SPDX-License-Identifier: Apache-2.0
"""Reads ``X`` of scikit-learn's methods as columns by key."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import get_tags
from sklearn.utils.validation import validate_data

from skest.feature_columns.ragged import as_cells
from skest.feature_columns.table import Table

__all__ = [
    "ARRAY_KEY",
    "WEIGHT_KEY",
    "is_table",
    "read_array",
    "read_table",
    "without_columns",
]

#: Key of an array as a whole.
ARRAY_KEY = "x"
#: Key of the sample weights beside the features.
WEIGHT_KEY = "__sample_weight__"


def is_table(X: Any) -> bool:
    """Tell whether X has columns by name: a frame, or a dictionary of arrays.

    A frame of numbers that are called 0, 1, … has nothing that an array has not.
    """
    # Some sparse matrices of SciPy are dictionaries. The class is asked, because a lazy
    # frame warns when it is asked for its columns.
    if not hasattr(type(X), "columns"):
        return isinstance(X, Mapping) and not issparse(X)
    is_nameless = hasattr(X, "shape") and _names_of(X) == list(range(X.shape[1]))
    return not (is_nameless and holds_only_numbers(X))


def holds_only_numbers(X: Any) -> bool:
    """Tell whether all columns of a frame are numbers; of a dictionary, nothing is said."""
    if isinstance(X, Mapping) or not hasattr(X, "shape"):
        return False
    table = Table(X)
    return all(map(table.holds_numbers, table.keys))


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
    names = list(X) if isinstance(X, Mapping) else _names_of(X)
    found = [key for key in keys if key in names]
    columns = {key: X[key] for key in found}
    if isinstance(X, Mapping):
        return {name: X[name] for name in names if name not in found}, columns
    import narwhals.stable.v2 as nw

    frame = nw.from_native(X, eager_only=True)
    return frame.drop(found).to_native(), columns


def read_array(estimator: BaseEstimator, X: Any, *, reset: bool) -> dict[Any, Any]:
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
    dict
        X under `ARRAY_KEY`, as float64 or float32; a sparse matrix in CSR form.

    Raises
    ------
    ValueError, TypeError
        If a value is no finite number; of a frame, its column is named.
    """
    if isinstance(X, Mapping) and not issparse(X):
        raise TypeError(
            f"This {type(estimator).__name__} was fitted on an array; got a dictionary. "
            "Pass an array or a DataFrame with the same columns."
        )
    if hasattr(X, "columns"):
        _check_numbers(X)
    try:
        X = validate_data(
            estimator,
            X,
            reset=reset,
            accept_sparse=_accepted(estimator),
            dtype=[np.float64, np.float32],
            ensure_all_finite="allow-nan",
        )
    except ValueError as error:
        if "could not convert string to float" not in str(error):
            raise
        raise ValueError(
            f"An array without 'feature_columns' must hold numbers; {error}. For strings, "
            "pass a DataFrame or a dictionary of arrays, or describe the columns."
        ) from error
    return {ARRAY_KEY: X}


def read_table(
    estimator: BaseEstimator, X: Any, *, reset: bool, positions: Collection[int] = ()
) -> dict[Any, Any]:
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
    dict
        Arrays, or columns of the frame.

    Raises
    ------
    ValueError, TypeError
        If there are no rows or columns, lengths differ, or names are not unique.
    """
    if hasattr(X, "collect") and not hasattr(X, "shape"):
        raise TypeError(f"X is a {type(X).__name__}; call its method collect() first.")
    if isinstance(X, Mapping) and not issparse(X):
        features = _read_dict(estimator, X, reset=reset)
    elif is_table(X):
        names = _names_of(X)
        twice = sorted(str(name) for name, n in Counter(names).items() if n > 1)
        if twice:
            raise ValueError(
                f"Column names of X must be unique; {', '.join(map(repr, twice))} occurs "
                "more than once. Rename or drop columns."
            )
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        features = {name: X[name] for name in names}
    else:
        features = _read_columns_of_array(estimator, X, reset=reset)
    if WEIGHT_KEY in features:
        raise ValueError(
            f"A column of X is called {WEIGHT_KEY!r}, a name that skest needs for the "
            "sample weights. Rename it."
        )
    named = dict(enumerate(getattr(estimator, "feature_names_in_", ())))
    features |= {i: features[named[i]] for i in positions if named.get(i) in features}
    Table(features)  # refuses what has no rows, or columns of different lengths
    return features


def _names_of(X: Any) -> list[Any]:
    """Return the names of the columns of a frame; pyarrow has another word for them."""
    return list(X.column_names if hasattr(X, "column_names") else X.columns)


def _read_dict(
    estimator: BaseEstimator, X: Mapping[Any, Any], *, reset: bool
) -> dict[Any, Any]:
    if reset:
        names = np.asarray(list(X), dtype=object)
        estimator.feature_names_in_, estimator.n_features_in_ = names, len(names)
    return {key: _as_array(values) for key, values in X.items()}


def _as_array(values: Any) -> Any:
    """Turn lists into arrays; what is no column at all is left for `Table` to refuse."""
    if issparse(values):
        return values.tocsr()
    if hasattr(values, "shape"):
        return values
    array = as_cells(values)
    return array if array.ndim else values


def _read_columns_of_array(
    estimator: BaseEstimator, X: Any, *, reset: bool
) -> dict[Any, Any]:
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
    columns = [X[:, i] for i in range(X.shape[1])]
    names = getattr(estimator, "feature_names_in_", None)
    if names is not None:
        return dict(zip(names, columns, strict=True))
    named = {f"x{i}": column for i, column in enumerate(columns)}
    return {ARRAY_KEY: X, **named, **dict(enumerate(columns))}


def _accepted(estimator: BaseEstimator) -> Any:
    """Return the form of sparse matrices that an estimator takes, or False."""
    return "csr" if get_tags(estimator).input_tags.sparse else False


def _check_numbers(X: Any) -> None:
    """Refuse columns of a frame that hold anything but numbers, by name."""
    names = _names_of(X)
    if len(set(names)) < len(names) or 0 in X.shape:
        return  # scikit-learn has the right words for these
    table = Table(X)
    for key in table.keys:
        values = table.numbers(key)
        if values.dtype.kind == "f" and np.isinf(values).any():
            raise ValueError(
                f"Column {key!r} holds infinity (inf), which is never allowed. Replace it "
                "by a number or by NaN."
            )
