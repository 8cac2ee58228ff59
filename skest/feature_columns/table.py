# SPDX-License-Identifier: Apache-2.0
"""`Table`: one read-only view over every kind of input that has columns."""

import contextlib
import difflib
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import numpy as np
import pandas as pd
import scipy.sparse
from pandas.api.types import infer_dtype
from scipy.sparse import issparse

from skest.feature_columns.cells import (
    Cells,
    Factorized,
    Flat,
    as_array,
    factorize,
    flatten,
    holds_lists,
    holds_numbers,
    numbers,
    pad,
    split,
)
from skest.feature_columns.sources import (
    eager_frame,
    is_frame,
    is_key,
    plain_matrix,
    read_cells,
    read_column,
    refuse_sparse,
)

T = TypeVar("T")

Key = str | int

_NAMES_SHOWN = 12
_ODD = np.uint64(2**63 - 25)  # makes the order of columns count
_MOST_KEPT = 10_000  # rows of which a copy is kept


class Table:
    """Columns of an input by key, each distinct category looked at once.

    Parameters
    ----------
    X : DataFrame, dict of arrays, array-like of shape (n_rows, n_features), or Table
        A pandas DataFrame, or any other eager frame that narwhals knows (polars,
        pyarrow); positions 0, 1, … are keys of its columns, too, and if not all names
        are strings, all keys of an array are, and only these if a name is neither a
        string nor an integer, as in a MultiIndex. Values of a dict have one row per
        cell: shape (n_rows,) or (n_rows, ...). Cells of a frame or dict may be lists. A
        two-dimensional array has the keys 0, 1, … and "x0", "x1", … for its columns,
        and "x" for all of them together; a sparse matrix has "x" only. What a masked
        array masks is missing. A Table is itself; `TableColumns` always have the same.
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
    target, weight : object, ndarray of float64 of shape (n_rows,)
        What is to be predicted of the rows, and how much each counts, for columns that
        learn, see `with_target`; None of each if there is none.

    Raises
    ------
    ValueError
        If there are no rows or columns, columns differ in length, names of a frame are
        not unique, or an array has another number of dimensions than two.
    TypeError
        If a frame is lazy, a key of a dict is no name, or a value of it no column.

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
    target: Any
    weight: np.ndarray | None
    _source: dict[Any, Any]
    _aliases: dict[Key, Any]
    _nameless: Any
    _found: dict[Hashable, Any]

    def __new__(cls, X: Any, feature_names: Any = None) -> "Table":
        """Return `X` itself if it is a Table, else a view of it."""
        if isinstance(X, cls):
            return X
        # Kept with the columns, so that learning and encoding, which come later and
        # from elsewhere, find what was read.
        if isinstance(X, TableColumns):
            if X.table is None:
                X.table = cls(dict(X))
            return X.table
        # No __init__, which Python would call again for a Table that is given.
        table = super().__new__(cls)
        # In `_found`, what was read by key: several columns, and both parts of a wide
        # and deep model, read the same cells.
        table._aliases, table._found, table._nameless = {}, {}, None
        table.feature_names = table.whole_key = None
        table.target = table.weight = None
        if issparse(X):  # first, for one kind of them is a Mapping
            table._view_sparse(X)
        elif isinstance(X, Mapping):
            table._view_dict(X)
        elif is_frame(X):
            table._view_frame(X, feature_names)
        else:
            table._view_array(X, feature_names)
        if table.n_features == 0:
            raise ValueError(
                f"Found X with 0 feature(s) (shape=({table.n_rows}, 0)) while a minimum of "
                "1 is required."
            )
        if table.n_rows == 0:
            n_features = table.n_features or len(table._source)
            raise ValueError(
                f"Found X with 0 sample(s) (shape=(0, {n_features})) while a minimum of 1 "
                "is required."
            )
        return table

    def _view_dict(self, X: Mapping[Any, Any]) -> None:
        if not X.keys():  # the length of skorch's SliceDict is that of its columns
            raise ValueError("X is an empty dict; it must hold at least one column.")
        for key in X:
            if not is_key(key):
                raise TypeError(
                    "The keys of a dict X must be names (str) or positions (int) of "
                    f"columns; got {key!r}. Rename it."
                )
        self._source = {key: read_column(value, key) for key, value in X.items()}
        self.n_features = None
        self.n_rows = _common_length(self._source)

    def _view_frame(self, X: Any, by_position: Any) -> None:
        frame = eager_frame(X)
        names = np.asarray(frame.columns, dtype=object)
        self.n_rows, self.n_features = frame.shape
        # As scikit-learn: `feature_names_in_` is there if all names are strings, and
        # only then.
        if all(isinstance(name, str) for name in names):
            self._name(names, by_position)
        else:  # for scikit-learn, such a frame has no names
            self._nameless, numbered = frame, [f"x{i}" for i in range(len(names))]
            if all(map(is_key, names)):
                self._aliases = dict(zip(numbered, names, strict=True))
            else:
                frame = frame.set_axis(numbered, axis=1)
                self._aliases = dict(enumerate(numbered))
        # Each once, for a frame takes long to give away a column.
        is_pandas = isinstance(frame, pd.DataFrame)
        columns = (
            frame.items() if is_pandas else ((name, frame[name]) for name in names)
        )
        self._source = dict(columns)

    def _view_array(self, X: Any, feature_names: Any) -> None:
        X = plain_matrix(X)
        array = read_cells(as_array(X) if isinstance(X, list | tuple) else X, "X")
        if array.ndim != 2:
            raise ValueError(
                f"Expected 2D array, got {array.ndim}D array instead. Reshape your data "
                "with X.reshape(-1, 1) if it has a single feature, or X.reshape(1, -1) "
                "if it has a single row."
            )
        self.n_rows, self.n_features = array.shape
        columns = [array[:, i] for i in range(array.shape[1])]
        if feature_names is not None:
            self._name(feature_names)
            self._source = dict(zip(feature_names, columns, strict=True))
        else:
            named = {f"x{i}": column for i, column in enumerate(columns)}
            # Views of one array: a column has two keys, and all of them together a
            # third.
            self._source = {"x": array, **named, **dict(enumerate(columns))}
            self.whole_key = "x"

    def _name(self, names: Any, by_position: Any = None) -> None:
        self.feature_names = np.asarray(names, dtype=object)
        self._aliases = dict(enumerate(names if by_position is None else by_position))

    def _view_sparse(self, X: Any) -> None:
        # One column, never a hundred thousand: nothing is made dense.
        self._source = {"x": plain_matrix(X)}
        self.n_rows, self.n_features = X.shape

    def __len__(self) -> int:
        return self.n_rows

    def __contains__(self, key: object) -> bool:
        return key in self._source

    @property
    def keys(self) -> list[Key]:
        """Keys of the columns, each column once: "x0", "x1" and so on for an array."""
        keys = list(self._source)
        return keys if self.whole_key is None else keys[1 : 1 + (self.n_features or 0)]

    def by_key(self) -> dict[Any, Any]:
        """Return all columns, those of an array under each of their keys."""
        return dict(self._source)

    def cells(self, key: Key) -> Cells:
        """Return the raw cells: an array, or a Series where X is a frame.

        Raises
        ------
        ValueError
            If X has no such column.
        """
        value = self._source.get(key)
        # Arrays and Series are as they will be read; series of other libraries are read
        # once.
        if isinstance(value, Cells):
            return value
        return self._once(("cells", key), lambda: self._read(key))

    def _once(self, what: Hashable, find: Callable[[], T]) -> T:
        """Return what `find` returns, which is called once only."""
        if what not in self._found:
            self._found[what] = find()
        found: T = self._found[what]
        return found

    def _read(self, key: Key) -> Cells:
        if key not in self._source:
            if self.n_features is not None and self.holds_sparse("x"):
                refuse_sparse(key)
            if self._nameless is not None and key == "x":
                return np.asarray(self._nameless)
            key = self._aliases.get(key, key)
            if key not in self._source:
                self._refuse_unknown(key)
        value = self._source[key]
        return value if isinstance(value, Cells) else read_cells(value, key)

    def holds_sparse(self, key: Key) -> bool:
        """Tell whether a column is a sparse matrix."""
        return issparse(self._source.get(key))

    def sparse(self, key: Key) -> scipy.sparse.csr_array:
        """Return a sparse matrix, or numbers, without zeros that are stored.

        Raises
        ------
        ValueError
            If it is complex.
        """
        # Parts of it are taken one by one.
        if self.n_rows > _MOST_KEPT:
            return self._read_sparse(key)
        return self._once(("sparse", key), lambda: self._read_sparse(key))

    def _read_sparse(self, key: Key) -> scipy.sparse.csr_array:
        if not self.holds_sparse(key):
            matrix = scipy.sparse.csr_array(np.atleast_2d(self.numbers(key)))
        else:
            # Copied, because the user's matrix may be unsorted and is not ours to sort.
            matrix = scipy.sparse.csr_array(self._source[key], copy=True)
            matrix.data = numbers(matrix.data, key)
        matrix = matrix.astype(np.result_type(matrix.dtype, np.float32))
        # Zeros that are stored would be ids of the row, and longer rows make a wider
        # table.
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
            gaps = (flat.lengths == 0).sum()
            count = f", {gaps} of them empty or missing" if gaps else ""
            raise ValueError(
                f"Column {key!r} must hold numbers, or lists of the same length; got "
                f"lists of {shortest} to {longest} values{count}. Fill gaps, e.g. with "
                "vectors of zeros; for sequences, use sequence_numeric_column."
            )
        return numbers(self.column(key), key)

    def matrix(self, keys: Sequence[Key]) -> np.ndarray:
        """Return numbers of several columns, of shape (n_rows, n_keys)."""

        def stacked() -> np.ndarray:
            # Column behind column, as they are learned from and written.
            return np.stack([self._single_numbers(key) for key in keys]).T

        # To stack takes most of the time of a row, and a copy of a large table memory.
        if self.n_rows > _MOST_KEPT:
            return stacked()
        return self._once(("matrix", *keys), stacked)

    def _single_numbers(self, key: Key) -> np.ndarray:
        values = self.numbers(key)
        if values.size != self.n_rows:
            raise ValueError(
                f"Cells of column {key!r} must be single numbers, as in fit; got some of "
                f"shape {values.shape[1:]}."
            )
        return values.ravel()

    def flat(self, key: Key) -> Flat | None:
        """Return the values of cells that are lists, or None if they are not.

        They are taken apart once for each key; see
        `skest.feature_columns.cells.flatten`.
        """
        cells = self.cells(key)
        if cells.dtype.kind != "O":  # a short way for numbers
            return None
        return self._once(
            ("flat", key), lambda: flatten(cells, key) if holds_lists(cells) else None
        )

    def factorized(self, key: Key, delimiter: str | None = None) -> Factorized:
        """Return the cells as categories, computed once for each key.

        See `skest.feature_columns.cells.factorize`. The integer -1 is a value here; the
        columns decide what it means. Cells that are lists, or strings split at
        `delimiter`, make codes of shape (n_rows, n_values), with -1 behind the end of
        shorter ones.
        """
        if delimiter is None:
            return self._once(("categories", key), lambda: self._factorize(key))
        return self._once(
            ("categories", key, delimiter),
            lambda: split(self.factorized(key), delimiter, key),
        )

    def row_hashes(self) -> np.ndarray:
        """Return a number for each row, the same for rows that have the same cells.

        Types of numbers do not count, nor do lists in cells.
        """
        return self._once("row hashes", self._hash_rows)

    def _hash_rows(self) -> np.ndarray:
        hashes = np.zeros(self.n_rows, np.uint64)
        for key in self.keys:
            if not self.holds_sparse(key) and self.flat(key) is None:
                cells = np.asarray(self.cells(key))
                # What can't be hashed makes no rows differ; others will refuse it.
                with contextlib.suppress(TypeError, ValueError):
                    for column in cells.reshape(self.n_rows, -1).T:
                        if column.dtype.kind == "O" and infer_dtype(column) != "string":
                            column = pd.Series(column).infer_objects().to_numpy()
                        if column.dtype.kind in "biuf":
                            column = column.astype(np.float64)
                        hashes = hashes * _ODD + pd.util.hash_array(column)
        return hashes

    def learned(self, what: Hashable, learn: Callable[[], T]) -> T:
        """Return what `learn` returns, computed once for the same weights.

        Parameters
        ----------
        what : hashable
            The same only for functions that return the same.
        learn : callable
            Takes nothing.
        """
        # Wide & deep models have a column of the same cells in either part.
        weight, result = self._found.get(what, (None, None))
        if what not in self._found or not _are_equal(weight, self.weight):
            result = learn()
            self._found[what] = self.weight, result
        return result

    def with_target(self, y: Any, weight: np.ndarray | None = None) -> "Table":
        """Return the table to learn from, with labels and weights; what was read is shared.

        Labels are not checked here, for few columns look at them.
        """
        table = object.__new__(Table)
        # Only these are others: both tables fill one `_found`.
        vars(table).update(vars(self), target=y, weight=weight)
        return table

    def counted(self, cells: np.ndarray) -> np.ndarray:
        """Return which of some cells are in rows that count, those of positive weight.

        Parameters
        ----------
        cells : ndarray of bool, shape (n_rows, n)
            The cells.
        """
        # As scikit-learn has it, a weight of zero is a row that is not there.
        weight = self.weight
        return cells if weight is None else cells & (weight > 0)[:, np.newaxis]

    def beside(self, others: Mapping[Key, Any]) -> "Table":
        """Return the table with other columns, too; what was read is shared."""
        table = object.__new__(Table)
        vars(table).update(vars(self))
        read = {key: read_column(cells, key) for key, cells in others.items()}
        table._source = {**self._source, **read}
        _common_length(table._source)
        return table

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
        names = {repr(name): str(name) for name in self._source}
        # A wrong key is mostly a slip of the pen.
        close = difflib.get_close_matches(str(key), names.values(), n=1)
        meant = next((shown for shown, name in names.items() if [name] == close), "")
        hint = f" Did you mean {meant}?" if close else ""
        shown = ", ".join([*names][:_NAMES_SHOWN])
        more = ", …" if len(names) > _NAMES_SHOWN else ""
        raise ValueError(
            f"Column {key!r} is not in X, which has {shown}{more}.{hint} Add it to X, or "
            "remove the feature column that reads it."
        )


def _common_length(columns: Mapping[Any, Any]) -> int:
    lengths = {k: c.shape[0] if issparse(c) else len(c) for k, c in columns.items()}
    first, n_rows = next(iter(lengths.items()))
    for key, length in lengths.items():
        if length != n_rows:
            raise ValueError(
                "All columns must have the same number of rows; column "
                f"{first!r} has {n_rows} and column {key!r} has {length}."
            )
    return n_rows


def _are_equal(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    if a is None or b is None:
        return a is b
    return a is b or np.array_equal(a, b)


class TableColumns(dict[Any, Any]):
    """A dict of columns of which there is one `Table` only.

    What is learned from first and encoded then, by several parts, is read once that way.
    Nobody may change the columns.

    Parameters
    ----------
    columns : dict of arrays
        The columns, see `skest.feature_columns.table.Table`.

    Attributes
    ----------
    table : Table or None
        The table, with what was read, since somebody asked for it.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.table import Table
    >>> from skest.feature_columns.table import TableColumns
    >>> columns = TableColumns({"color": np.array(["red", "green"])})
    >>> Table(columns) is Table(columns)
    True
    """

    def __init__(self, columns: Mapping[Any, Any]) -> None:
        super().__init__(columns)
        self.table: Any = None

    def __or__(self, others: Any) -> Any:
        """Return these columns and others; what was read of these goes with them."""
        # Of the two, one holds what was read: it may take more memory than the columns.
        joined = TableColumns({**self, **others})
        if self.table is not None and self.keys().isdisjoint(others):
            joined.table = self.table.beside(others)
        self.let_go()
        return joined

    def let_go(self) -> None:
        """Forget what was read, which may take more memory than the columns."""
        self.table = None

    def __reduce__(self) -> Any:
        # A pickle, as for a worker process, has the columns alone.
        return type(self), (dict(self),)
