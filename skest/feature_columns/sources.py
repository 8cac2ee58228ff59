# SPDX-License-Identifier: Apache-2.0
"""What is given as X, or as a column of it, by whatever library it is made.

Frames are those of pandas, or viewed by narwhals. Columns become NumPy arrays, or pandas
Series where they may have gaps; see `skest.feature_columns.cells`.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pandas as pd
import scipy.sparse
from pandas.api.types import infer_dtype

from skest.feature_columns.cells import Cells, as_cells, flatten, holds_lists


def is_frame(X: Any) -> bool:
    """Tell whether X is a frame of any library, also a lazy one."""
    # The class is asked, because a lazy frame warns when it is asked for its columns.
    return hasattr(type(X), "columns")


def is_key(key: Any) -> bool:
    """Tell whether `key` can be the name or position of a column."""
    return isinstance(key, str | int) and not isinstance(key, bool)


def eager_frame(X: Any) -> Any:
    """Return a frame of pandas as it is, any other one as narwhals views it.

    Raises
    ------
    ValueError
        If two columns have the same name, or names are of several levels.
    TypeError
        If the frame is lazy, or of a library that narwhals does not know.
    """
    is_pandas = isinstance(X, pd.DataFrame)
    # Keys are names or positions; tuples would be neither.
    if is_pandas and isinstance(X.columns, pd.MultiIndex):
        raise ValueError(
            f"The columns of X have names of {X.columns.nlevels} levels (a MultiIndex), "
            f"such as {X.columns[0]!r}; one name is expected. Join them: "
            "X.columns = ['_'.join(map(str, name)) for name in X.columns]."
        )
    if is_pandas and X.columns.is_unique:
        return X
    # For pyarrow, `columns` are not the names; and narwhals takes no duplicates.
    names = X.columns if is_pandas else getattr(X, "column_names", ())
    name, count = next(iter(Counter(names).most_common(1)), (None, 0))
    if count > 1:
        raise ValueError(
            f"Column {name!r} occurs {count} times in X; names must be unique. Rename or "
            "drop columns."
        )
    import narwhals.stable.v2 as nw  # only for frames that are not pandas

    try:
        return nw.from_native(X, eager_only=True)
    except TypeError as error:
        calls = (name for name in ("collect", "compute") if hasattr(type(X), name))
        call = next(calls, None)
        mend = (
            "convert it to a DataFrame of pandas or polars first"
            if call is None
            else f"call its method {call}() first"
        )
        raise TypeError(f"X is a {type(X).__name__}; {mend}.") from error


def holds_floats(X: Any) -> bool:
    """Tell whether X is a frame of pandas with floats of one type of NumPy only.

    `DataFrame.to_numpy` reads such a frame at once, without a look at each column.
    """
    if not isinstance(X, pd.DataFrame) or X.empty:
        return False
    first, *others = X.dtypes.unique()
    return not others and first in (np.float64, np.float32)


def plain_array(array: np.ndarray, key: Hashable) -> np.ndarray:
    """Return an array without a mask: what is masked is missing.

    Parameters
    ----------
    array : ndarray
        Maybe a masked array.
    key : str or int
        Name of the column, for messages.

    Returns
    -------
    ndarray of the same shape
        The array itself if nothing is masked. A masked float becomes NaN, a date NaT, any
        other value None in an array of objects, which keeps large integers exact.

    Raises
    ------
    ValueError
        If the array has fields, each of which is a column of its own.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.sources import plain_array
    >>> plain_array(np.ma.masked_equal([3, -9, 5], -9), "x")
    array([3, None, 5], dtype=object)
    """
    if array.dtype.names is not None:
        raise ValueError(
            f"Column {key!r} must hold numbers, strings or booleans; got an array with the "
            f"fields {', '.join(map(repr, array.dtype.names))}. Make each field a column: "
            "pandas.DataFrame(array), or {name: array[name] for name in array.dtype.names}."
        )
    if not isinstance(array, np.ma.MaskedArray):
        return array
    values, mask = array.data, np.ma.getmaskarray(array)
    if not mask.any() or values.dtype.kind in "mcV":  # the latter are refused anyway
        return values
    # Floats and dates have a value for nothing; only others must become objects.
    if values.dtype.kind in "fM":
        nothing = "NaT" if values.dtype.kind == "M" else np.nan
        return np.where(mask, np.array(nothing, values.dtype), values)
    objects = values.astype(object)
    objects[mask] = None
    return objects


def plain_matrix(X: Any, key: Hashable = "X") -> Any:
    """Return what is no frame and no dict as it is, but an array without its mask.

    Raises
    ------
    ValueError
        If it is an array with fields, or a sparse array that has not two dimensions.
    TypeError
        If it is a list of dictionaries.
    """
    if isinstance(X, list | tuple) and len(X) and isinstance(X[0], Mapping):
        raise TypeError(
            f"{key!r} is a list of dictionaries, one for each row; a table is expected. "
            "Use pandas.DataFrame(X)."
        )
    if scipy.sparse.issparse(X) and X.ndim != 2:
        raise ValueError(
            f"{key!r} is a sparse array of shape {X.shape}; two dimensions are required. "
            "Use .toarray(), or .reshape(-1, 1)."
        )
    return plain_array(X, key) if isinstance(X, np.ndarray) else X


def read_column(value: Any, key: Hashable) -> Any:
    """Return the cells of an entry of a dict, or a sparse matrix.

    Raises
    ------
    ValueError, TypeError
        As `read_cells`; also if the cells of an array are empty, or a sparse array has
        not two dimensions.
    """
    if scipy.sparse.issparse(value):
        return plain_matrix(value, key)
    cells = read_cells(value, key)
    # A network would have an input of width 0, and fail far from here.
    if 0 in cells.shape[1:]:
        raise ValueError(
            f"Column {key!r} has no values in its cells: its shape is {cells.shape}. Leave "
            "it out."
        )
    return cells


def read_cells(value: Any, key: Hashable) -> Cells:
    """Return the cells of a column as an array, or a Series if they may have gaps.

    Parameters
    ----------
    value : array-like, or a series of pandas, polars or pyarrow
        The column.
    key : str or int
        Its name, for messages.

    Returns
    -------
    Series, or ndarray of shape (n_rows, ...)

    Raises
    ------
    ValueError
        If it is a scalar, or an array with fields.
    TypeError
        If it is a sparse matrix, a frame or a dict, or its cells are structs.

    Examples
    --------
    >>> from skest.feature_columns.sources import read_cells
    >>> read_cells(["a", None], "c")
    array(['a', None], dtype=object)
    """
    # Arrays first, in every request: they are as they will be read.
    cells = value if isinstance(value, np.ndarray) else _cells_of(value, key)
    if isinstance(cells, pd.Series):
        return cells
    array = np.asarray(plain_array(cells, key))  # no matrix: its rows are matrices
    if array.ndim == 0:
        is_scalar = isinstance(value, np.ndarray) or pd.api.types.is_scalar(value)
        found = f"the scalar {value!r}" if is_scalar else f"a {type(value).__name__}"
        raise ValueError(
            f"Column {key!r} must be an array; got {found}. A single row is "
            "pandas.DataFrame([row])."
        )
    return array


def _cells_of(value: Any, key: Hashable) -> Cells:
    """Return what is no array as a Series, or as an array of any dimensions."""
    if isinstance(value, pd.Series):
        return value
    if scipy.sparse.issparse(value):
        refuse_sparse(key)
    if isinstance(value, pd.api.extensions.ExtensionArray | pd.Index):
        return pd.Series(value)
    if isinstance(value, Mapping) or is_frame(value):
        raise TypeError(
            f"Column {key!r} must be one column; got a {type(value).__name__}. Give each "
            "column in it an entry of its own in X."
        )
    series = _viewed_series(value)
    if series is not None:
        return _cells_of_series(series, key)
    try:
        return as_cells(value)
    except (RuntimeError, TypeError) as error:  # of torch
        raise TypeError(
            f"Column {key!r} cannot be read as an array: {error}"
        ) from error


def _viewed_series(value: Any) -> Any:
    """View a series of another library than pandas by narwhals; None if it is none."""
    # Lists and tensors have no such method: for them, narwhals is not even loaded.
    if not hasattr(value, "to_numpy"):
        return None
    import narwhals.stable.v2 as nw

    if hasattr(value, "to_pylist") and not hasattr(value, "chunks"):
        import pyarrow

        value = pyarrow.chunked_array([value])  # narwhals knows no pyarrow.Array
    series = nw.from_native(value, series_only=True, pass_through=True)
    return series if isinstance(series, nw.Series) else None


def _cells_of_series(series: Any, key: Hashable) -> Cells:
    dtype = innermost = series.dtype
    while hasattr(innermost, "inner"):
        innermost = innermost.inner
    if str(innermost).startswith("Struct("):
        raise TypeError(
            f"Column {key!r} holds structs ({dtype}). Give each of their fields a "
            "column of its own, in polars with X.unnest."
        )
    native = series.to_native()
    is_pyarrow = series.implementation.is_pyarrow()
    if is_pyarrow and type(native.type).__name__ == "DictionaryType":
        # Of pyarrow 26, to_numpy puts other values in place of missing ones.
        return pd.Series(native.to_pandas())
    values = _values_of(series, dtype)
    if isinstance(values, np.ndarray) and (
        values.ndim > 1 or values.dtype.kind in "mM"
    ):
        return values
    # With its type: of objects that are strings, pandas 3 would make its own.
    return pd.Series(values, dtype=values.dtype)


def _values_of(series: Any, dtype: Any) -> Any:
    """Return the values of a series of narwhals, none of them changed."""
    if str(dtype) in ("Int128", "UInt128"):
        return np.array(series.to_list(), dtype=object)  # NumPy has no such type
    if dtype.is_integer() and series.null_count():
        # Not as floats, which cannot hold every large integer.
        kind = "uint64" if dtype.is_unsigned_integer() else "int64"
        whole = np.asarray(series.fill_null(0).to_numpy()).astype(kind)
        missing = np.asarray(series.is_null().to_numpy()).astype(bool)
        return pd.arrays.IntegerArray(whole, missing)
    if hasattr(dtype, "inner") and dtype.inner.is_integer():
        return as_cells(series.to_list())  # which gaps do not make floats
    # Of polars, narwhals asks for strings of one width, and without NUL at the end.
    is_polars = series.implementation.is_polars()
    return (series.to_native() if is_polars else series).to_numpy()


def refuse_sparse(key: Any) -> NoReturn:
    """Raise TypeError: a sparse matrix where cells are expected."""
    raise TypeError(
        f"Column {key!r} is a sparse matrix, or part of one; a dense array is required. "
        "Use .toarray(), or a SparseMatrixColumn of all of it."
    )


class Form(NamedTuple):
    """What the cells of a raw column are, as far as an exported graph must know.

    Attributes
    ----------
    kind : {"string", "int64", "number"}
        Strings (booleans are read as such), integers, or other numbers; these may be
        integers with gaps.
    width : int or None
        How many values a cell has; None is any number of them.
    names : tuple of str or None
        Columns of the frame of which the raw column, a matrix, was made.
    """

    kind: str
    width: int | None
    names: tuple[str, ...] | None = None


def forms_of(
    features: Mapping[Any, Any], names: Iterable[str] | None = None
) -> dict[Any, Form]:
    """Return the forms of raw columns; those that hold nothing are left out.

    Parameters
    ----------
    features : dict of arrays, or of Series
        Raw columns by key.
    names : iterable of str, default=None
        Columns of the frame, if the only raw column is a matrix that was made of one.

    Examples
    --------
    >>> from skest.feature_columns.sources import forms_of
    >>> found = forms_of({"city": ["a", None], "tags": [[1, 2], []]})
    >>> list(found)
    ['city', 'tags']
    >>> found["tags"]
    Form(kind='int64', width=None, names=None)
    """
    found = {key: _form_of(cells, key) for key, cells in features.items()}
    known = {key: form for key, form in found.items() if form is not None}
    if names is None:
        return known
    columns = tuple(map(str, names))
    return {key: Form(form.kind, len(columns), columns) for key, form in known.items()}


def _form_of(values: Any, key: Any) -> Form | None:
    if scipy.sparse.issparse(values):
        return Form("number", values.shape[1])
    cells = read_cells(values, key)
    has_lists = holds_lists(cells)
    flat = flatten(cells, key).values if has_lists else cells
    if isinstance(flat.dtype, pd.CategoricalDtype):
        # Codes are integers, whatever the categories are.
        flat = flat.dtype.categories.to_numpy()
    found = infer_dtype(np.ravel(flat), skipna=True)
    if found == "empty":
        return None
    kind = _KINDS.get(found, "number")
    if has_lists or cells.ndim > 1:
        return Form(kind, cells.shape[1] if cells.shape[1:] == (1,) else None)
    return Form(kind, 1)


# Of what pandas calls it; all else are numbers, or are read as such.
_TEXTS = ("string", "bytes", "boolean", "interval")
_KINDS = {**dict.fromkeys(_TEXTS, "string"), "integer": "int64"}
