# SPDX-License-Identifier: Apache-2.0
"""`Table`: one read-only view over every kind of input that has columns."""

import difflib
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import scipy.sparse

from skest.feature_columns.cells import (
    Cells,
    Factorized,
    as_array,
    factorize,
    holds_numbers,
    numbers,
)
from skest.feature_columns.ragged import (
    Flat,
    as_cells,
    flatten,
    holds_lists,
    pad,
    split,
)

__all__ = ["Key", "Table"]

Key = str | int

_NAMES_SHOWN = 12


class Table:
    """Columns of an input by key, each distinct category looked at once.

    Parameters
    ----------
    X : DataFrame, dict of arrays, array-like of shape (n_rows, n_features), or Table
        A pandas DataFrame, or any other eager frame that narwhals knows (polars,
        pyarrow); positions 0, 1, … are keys of its columns, too, and if not all names
        are strings, all keys of an array are. Values of a dict have one row per cell:
        shape (n_rows,) or (n_rows, ...). Cells of a frame or dict may be lists. A
        two-dimensional array has the keys 0, 1, … and "x0", "x1", … for its columns,
        and "x" for all of them together; a sparse matrix has "x" only. A Table is
        itself.
    feature_names : sequence of str, default=None
        Names for the columns of an array, in place of its own keys; what is at the
        positions of a frame, in place of its own order.

    Attributes
    ----------
    n_rows : int
        Number of rows.
    n_features : int or None
        Number of columns of a frame or array, None for a dict.
    feature_names : ndarray of str or None
        Names of the columns of a frame whose names are all strings.
    whole_key : str or None
        Key of all columns of an array together.

    Raises
    ------
    ValueError
        If there are no rows or columns, columns differ in length, or an array has
        another number of dimensions than two.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.table import Table
    >>> table = Table({"color": np.array(["red", "green", "red"])})
    >>> table.factorized("color").codes
    array([0, 1, 0])
    """

    n_rows: int
    n_features: int | None
    feature_names: np.ndarray | None
    whole_key: str | None
    _source: Mapping[Any, Any] | pd.DataFrame
    _cells: dict[Key, Cells]
    _factorized: dict[tuple[Key, str | None], Factorized]
    _flat: dict[Key, Flat | None]
    _aliases: dict[Key, Any]

    def __new__(cls, X: Any, feature_names: Any = None) -> "Table":
        """Return `X` itself if it is a Table, else a view of it."""
        if isinstance(X, cls):
            return X
        table = super().__new__(cls)
        table._cells, table._factorized = {}, {}
        table._flat, table._aliases = {}, {}
        table.feature_names = table.whole_key = None
        if scipy.sparse.issparse(X):  # first, for one kind of them is a Mapping
            table._view_sparse(X)
        elif isinstance(X, Mapping):
            table._view_dict(X)
        elif isinstance(X, pd.DataFrame):
            table._view_frame(X, X, X.columns, feature_names)
        elif _is_other_frame(X):
            frame = _narwhals(X)
            series = {name: frame[name] for name in frame.columns}
            table._view_frame(frame, series, frame.columns, feature_names)
        else:
            table._view_array(X, feature_names)
        if table.n_rows == 0:
            raise ValueError(
                f"Found X with 0 sample(s) (shape=(0, {len(list(table._source))})) while "
                "a minimum of 1 is required."
            )
        return table

    def _view_dict(self, X: Mapping[Any, Any]) -> None:
        if not X:
            raise ValueError("X is an empty dict; it must hold at least one column.")
        self._source = {
            key: value if scipy.sparse.issparse(value) else _cells(value, key)
            for key, value in X.items()
        }
        self.n_features = None
        lengths = {key: cells.shape[0] for key, cells in self._source.items()}
        first, self.n_rows = next(iter(lengths.items()))
        for key, length in lengths.items():
            if length != self.n_rows:
                raise ValueError(
                    "All columns must have the same number of rows; column "
                    f"{first!r} has {self.n_rows} and column {key!r} has {length}."
                )

    def _view_frame(
        self, frame: Any, source: Any, names: Any, by_position: Any
    ) -> None:
        self._source = source
        self.n_rows, self.n_features = frame.shape
        _check_has_features(frame.shape)
        names = np.asarray(names, dtype=object)
        if all(isinstance(name, str) for name in names):
            self._name(names, by_position)
        else:  # for scikit-learn, such a frame has no names
            self._aliases = {f"x{i}": name for i, name in enumerate(names)}

    def _view_array(self, X: Any, feature_names: Any) -> None:
        array = _cells(as_array(X) if isinstance(X, list | tuple) else X, "X")
        if array.ndim != 2:
            raise ValueError(
                f"Expected 2D array, got {array.ndim}D array instead. Reshape your data "
                "with X.reshape(-1, 1) if it has a single feature, or X.reshape(1, -1) "
                "if it has a single row."
            )
        self.n_rows, self.n_features = array.shape
        _check_has_features(array.shape)
        columns = [array[:, i] for i in range(array.shape[1])]
        if feature_names is not None:
            self._name(feature_names)
            self._source = dict(zip(feature_names, columns, strict=True))
        else:
            named = {f"x{i}": column for i, column in enumerate(columns)}
            self._source = {"x": array, **named, **dict(enumerate(columns))}
            self.whole_key = "x"

    def _name(self, names: Any, by_position: Any = None) -> None:
        self.feature_names = np.asarray(names, dtype=object)
        self._aliases = dict(enumerate(names if by_position is None else by_position))

    def _view_sparse(self, X: Any) -> None:
        self._source = {"x": X}
        self.n_rows, self.n_features = X.shape
        _check_has_features(X.shape)

    def __len__(self) -> int:
        return self.n_rows

    @property
    def keys(self) -> list[Key]:
        """Keys of the columns, each column once: "x0", "x1" and so on for an array."""
        keys = list(self._source)
        return keys if self.whole_key is None else keys[1 : 1 + (self.n_features or 0)]

    def cells(self, key: Key) -> Cells:
        """Return the raw cells: an array, or a Series where X is a frame.

        Raises
        ------
        ValueError
            If X has no such column, or more than one.
        """
        if key not in self._cells:
            self._cells[key] = self._read(key)
        return self._cells[key]

    def _read(self, key: Key) -> Cells:
        if key not in self._source:
            if self.n_features is not None and self.holds_sparse("x"):
                _refuse_sparse(key)
            if self._aliases and self.feature_names is None and key == "x":
                return np.asarray(self._source)
            key = self._aliases.get(key, key)
            if key not in self._source:
                self._refuse_unknown(key)
        value = self._source[key]
        if isinstance(value, pd.DataFrame):
            raise ValueError(
                f"Column {key!r} occurs {value.shape[1]} times in X; names must be unique."
            )
        return _cells(value, key)

    def holds_sparse(self, key: Key) -> bool:
        """Tell whether a column is a sparse matrix."""
        return scipy.sparse.issparse(self._source.get(key))

    def sparse(self, key: Key) -> scipy.sparse.csr_array:
        """Return a sparse matrix, or numbers, without zeros that are stored.

        Raises
        ------
        ValueError
            If it is complex.
        """
        if not self.holds_sparse(key):
            matrix = scipy.sparse.csr_array(np.atleast_2d(self.numbers(key)))
        else:
            matrix = scipy.sparse.csr_array(self._source[key], copy=True)
        matrix = matrix.astype(np.result_type(matrix.dtype, np.float32))
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        return matrix

    def column(self, key: Key) -> np.ndarray:
        """Return the raw cells as an array of shape (n_rows,) or (n_rows, ...).

        Lists of one length make an array of two dimensions or more.
        """
        flat = self.flat(key)
        if flat is None or flat.lengths.min() < flat.lengths.max():
            return np.asarray(self.cells(key))
        values = np.asarray(flat.values)
        return values.reshape(self.n_rows, flat.lengths[0], *values.shape[1:])

    def numbers(self, key: Key) -> np.ndarray:
        """Return the cells as real numbers, see `skest.feature_columns.cells.numbers`.

        Raises
        ------
        ValueError
            Also if they are lists that differ in length.
        """
        flat = self.flat(key)
        if flat is None:
            return numbers(self.cells(key), key)
        shortest, longest = flat.lengths.min(), flat.lengths.max()
        if shortest < longest:
            raise ValueError(
                f"Column {key!r} must hold numbers, or lists of the same length; got "
                f"lists of {shortest} to {longest} values. For sequences, use "
                "sequence_numeric_column."
            )
        return numbers(self.column(key), key)

    def flat(self, key: Key) -> Flat | None:
        """Return the values of cells that are lists, or None if they are not.

        They are taken apart once for each key; see
        `skest.feature_columns.ragged.flatten`.
        """
        if key not in self._flat:
            cells = self.cells(key)
            self._flat[key] = flatten(cells, key) if holds_lists(cells) else None
        return self._flat[key]

    def factorized(self, key: Key, delimiter: str | None = None) -> Factorized:
        """Return the cells as categories, computed once for each key.

        See `skest.feature_columns.cells.factorize`. The integer -1 is a value here; the
        columns decide what it means. Cells that are lists, or strings split at
        `delimiter`, make codes of shape (n_rows, n_values), with -1 behind the end of
        shorter ones.
        """
        entry = (key, delimiter)
        if entry not in self._factorized:
            self._factorized[entry] = (
                self._factorize(key)
                if delimiter is None
                else split(self.factorized(key), delimiter, key)
            )
        return self._factorized[entry]

    def _factorize(self, key: Key) -> Factorized:
        flat = self.flat(key)
        if flat is None:
            return factorize(self.cells(key), key)
        if flat.values.ndim > 1:
            raise ValueError(
                f"Column {key!r} holds lists of lists, where lists of strings or integers "
                "are expected."
            )
        codes, distinct = factorize(flat.values, key)
        return Factorized(pad(codes, flat.lengths, -1), distinct)

    def holds_numbers(self, key: Key) -> bool:
        """Tell whether the cells are numbers rather than categories."""
        return holds_numbers(self.cells(key))

    def _refuse_unknown(self, key: Key) -> NoReturn:
        names = [str(name) for name in self._source]
        close = difflib.get_close_matches(str(key), names, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        shown = ", ".join(map(repr, names[:_NAMES_SHOWN]))
        more = ", …" if len(names) > _NAMES_SHOWN else ""
        raise ValueError(
            f"Column {key!r} is not in X, which has {shown}{more}.{hint} Add it to X, or "
            "remove the feature column that reads it."
        )


def _check_has_features(shape: tuple[int, ...]) -> None:
    if shape[1] == 0:
        raise ValueError(
            f"Found X with 0 feature(s) (shape={shape}) while a minimum of 1 is required."
        )


def _is_other_frame(X: Any) -> bool:
    return hasattr(X, "columns") and hasattr(X, "schema") and hasattr(X, "shape")


def _narwhals(X: Any, **kinds: bool) -> Any:
    import narwhals.stable.v2 as nw  # only for frames that are not pandas

    return nw.from_native(X, **(kinds or {"eager_only": True}))


def _refuse_sparse(key: Any) -> NoReturn:
    raise TypeError(
        f"Column {key!r} is a sparse matrix, or part of one; a dense array is required. "
        "Use .toarray(), or a SparseMatrixColumn of all of it."
    )


def _is_arrow_dictionary(series: Any) -> bool:
    implementation = getattr(series, "implementation", None)
    is_arrow = implementation is not None and implementation.is_pyarrow()
    return is_arrow and type(series.to_native().type).__name__ == "DictionaryType"


def _values_of(series: Any) -> Any:
    """Return the values of a series of narwhals, none of them changed."""
    if series.dtype.is_integer() and series.null_count():
        # Not as floats, which cannot hold every large integer.
        kind = "uint64" if series.dtype.is_unsigned_integer() else "int64"
        whole = np.asarray(series.fill_null(0).to_numpy()).astype(kind)
        missing = np.asarray(series.is_null().to_numpy()).astype(bool)
        return pd.arrays.IntegerArray(whole, missing)
    if series.implementation.is_polars():
        # narwhals asks for strings of one width: the longest, and without NUL at the end.
        return series.to_native().to_numpy()
    return series.to_numpy()


def _is_time(values: np.ndarray) -> bool:
    return values.dtype.kind in "mM"


def _cells(value: Any, key: Any) -> Cells:
    """Give the cells of a column as an array, or a Series if they are of a frame."""
    if isinstance(value, pd.Series):
        return value
    if isinstance(value, np.ma.MaskedArray):
        objects = value.data.astype(object)
        objects[np.ma.getmaskarray(value)] = None
        return objects
    if isinstance(value, np.ndarray):
        return np.asarray(value)  # no matrix, for its rows are matrices
    if scipy.sparse.issparse(value):
        _refuse_sparse(key)
    if isinstance(value, pd.api.extensions.ExtensionArray | pd.Index):
        return pd.Series(value)
    if hasattr(value, "to_numpy"):
        series = _narwhals(value, series_only=True, pass_through=True)
        if not hasattr(
            series, "implementation"
        ):  # an array of pyarrow; integers stay exact beside gaps
            return value.to_pandas(integer_object_nulls=True)
        if _is_arrow_dictionary(series):
            # Of pyarrow 26, to_numpy puts other values in place of missing ones.
            return series.to_native().to_pandas()
        values = _values_of(series)
        if isinstance(values, np.ndarray) and (values.ndim > 1 or _is_time(values)):
            return values
        return pd.Series(values, dtype=values.dtype)
    array = as_cells(value)
    if array.ndim == 0:
        raise ValueError(f"Column {key!r} must be an array; got the scalar {value!r}.")
    return array
