# SPDX-License-Identifier: Apache-2.0
"""Cells that hold several values: taken apart to be read, padded to a rectangle."""

from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from skest.feature_columns.cells import Cells, Factorized, as_array, factorize

_LISTS = (list, tuple, np.ndarray, pd.Series, pd.Index)
_NEVER_LISTS = pd.CategoricalDtype | pd.StringDtype


class Flat(NamedTuple):
    """The values of all cells, one after the other.

    Attributes
    ----------
    values : Series, or ndarray of shape (n_values, ...)
        Values of the first cell, of the second and so on.
    lengths : ndarray of int64, shape (n_rows,)
        How many of them each cell has.
    """

    values: Cells
    lengths: np.ndarray


def as_cells(values: Any) -> np.ndarray:
    """Turn the values of a column, such as a list, into an array; lists stay lists.

    Examples
    --------
    >>> from skest.feature_columns.ragged import as_cells
    >>> as_cells([["a", "b"], ["c", "d"]])
    array([list(['a', 'b']), list(['c', 'd'])], dtype=object)
    """
    if isinstance(values, list | tuple):
        if any(issubclass(kind, _LISTS) for kind in set(map(type, values))):
            return np.fromiter(values, dtype=object, count=len(values))
    return as_array(values)


def holds_lists(cells: Cells) -> bool:
    """Tell whether cells are lists, tuples or arrays, by the first one not missing."""
    if (
        cells.ndim != 1
        or cells.dtype.kind != "O"
        or isinstance(cells.dtype, _NEVER_LISTS)
    ):
        return False
    present = (cell for cell in cells if _is_list(cell) or not pd.isna(cell))
    return _is_list(next(present, None))


def flatten(cells: Cells, key: Hashable) -> Flat:
    """Take cells that are lists apart; a missing cell is an empty list.

    Parameters
    ----------
    cells : ndarray of shape (n_rows,), or Series
        Lists, tuples or arrays. Their elements may be arrays or lists again, all of one
        shape.
    key : str or int
        Name of the column, for messages.

    Returns
    -------
    Flat
        The values are a Series, whatever `cells` is: a gap in a list of integers makes
        floats of them, as in a DataFrame.

    Raises
    ------
    ValueError
        If a cell is no list, or elements that are lists differ in shape.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.ragged import flatten
    >>> values, lengths = flatten(np.array([["a", "b"], None, ["c"]], dtype=object), "c")
    >>> values.tolist(), lengths.tolist()
    (['a', 'b', 'c'], [2, 0, 1])
    """
    objects = np.asarray(cells, dtype=object)
    present = np.flatnonzero(~pd.isna(objects))
    lists = objects[present].tolist()
    if not all(issubclass(kind, _LISTS) for kind in set(map(type, lists))):
        single = next(cell for cell in lists if not _is_list(cell))
        raise ValueError(
            f"Column {key!r} holds lists, but also {single!r}, which is none. Make every "
            f"cell a list, here [{single!r}]."
        )
    lengths = np.zeros(len(objects), dtype=np.int64)
    lengths[present] = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    return Flat(_joined([cell for cell in lists if len(cell)], key), lengths)


def _joined(lists: Sequence[Any], key: Hashable) -> Cells:
    try:
        # Arrays keep their types; numbers taken out of them one by one would be
        # objects.
        if set(map(type, lists)) == {np.ndarray}:
            values: Any = np.concatenate([_as_objects(cell) for cell in lists])
            if values.ndim > 1:
                return values
        else:
            values = list(chain.from_iterable(lists))
        series = pd.Series(values, dtype=None if len(values) else object)
        return np.array(series.tolist()) if holds_lists(series) else series
    except UnicodeEncodeError:  # pandas cannot hold it; `factorize` says what it is
        return pd.Series(values, dtype=object)
    except ValueError as error:
        raise ValueError(
            f"Column {key!r} holds lists of lists, or of arrays, that differ in shape. "
            "Every step of a sequence must have the same number of values."
        ) from error


def _as_objects(cell: np.ndarray) -> np.ndarray:
    # NumPy joins strings and numbers to strings without a word, objects it leaves alone.
    return cell.astype(object) if cell.dtype.kind in "SUT" else cell


def pad(values: np.ndarray, lengths: np.ndarray, fill: float) -> np.ndarray:
    """Return values cell by cell in an array of shape (n_rows, n_steps, ...).

    Parameters
    ----------
    values : ndarray of shape (n_values, ...)
        Values of all cells, one after the other.
    lengths : ndarray of int64, shape (n_rows,)
        How many of them each cell has. The longest is `n_steps`, which is at least 1.
    fill : float
        What stands behind the end of shorter cells.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.ragged import pad
    >>> pad(np.array([5, 6, 7]), np.array([2, 0, 1]), -1)
    array([[ 5,  6],
           [-1, -1],
           [ 7, -1]])
    """
    n_steps = max(1, lengths.max())
    shape = (len(lengths), n_steps, *values.shape[1:])
    padded = np.full(shape, fill, dtype=values.dtype)
    padded[np.arange(n_steps) < lengths[:, np.newaxis]] = values
    return padded


def lengths_of(present: np.ndarray) -> np.ndarray:
    """Return the length of each row up to its last value.

    Parameters
    ----------
    present : ndarray of bool, shape (n_rows, n_values)
        Whether there is a value.

    Returns
    -------
    ndarray of int64, shape (n_rows,)

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.ragged import lengths_of
    >>> lengths_of(np.array([[True, False, True, False], [False] * 4]))
    array([3, 0])
    """
    positions = np.arange(1, present.shape[1] + 1)
    return np.where(present, positions, 0).max(axis=1)


def split(cells: Factorized, delimiter: str, key: Hashable) -> Factorized:
    """Split cells that are strings into several values, each distinct cell once.

    Parameters
    ----------
    cells : Factorized
        One string in each cell; codes of shape (n_rows,) or (n_rows, 1).
    delimiter : str
        What stands between two values.
    key : str or int
        Name of the column, for messages.

    Returns
    -------
    Factorized
        Codes of shape (n_rows, n_values), with -1 for empty values and behind the end
        of shorter cells.

    Raises
    ------
    ValueError
        If the cells are integers, or hold several values already.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.cells import factorize
    >>> from skest.feature_columns.ragged import split
    >>> cells = factorize(np.array(["a|b", "", "b"]), "c")
    >>> split(cells, "|", "c").codes
    array([[ 0,  1],
           [-1, -1],
           [ 1, -1]])
    """
    if cells.are_integers or cells.codes.size > len(cells.codes):
        found = "integers" if cells.are_integers else "several values in a cell"
        raise ValueError(
            f"Column {key!r} must hold one string in each cell, because its feature "
            f"column has delimiter={delimiter!r}; got {found}. Leave 'delimiter' out, or "
            "convert the column with .astype(str)."
        )
    if len(cells.distinct) == 0:
        return cells
    lists = [text.split(delimiter) for text in cells.distinct]
    values = np.array(list(chain.from_iterable(lists)), dtype=object)
    lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    codes, distinct = factorize(values, key)
    rows = pad(codes, lengths, -1)
    missing = np.full((1, rows.shape[1]), -1)
    return Factorized(np.concatenate([rows, missing])[cells.codes.ravel()], distinct)


def _is_list(cell: Any) -> bool:
    return isinstance(cell, _LISTS)
