# SPDX-License-Identifier: Apache-2.0
"""Rows that are equal: counted once with `sampling="weighted"`, held out together."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.util import hash_array, hash_pandas_object
from scipy.sparse import issparse

from skest.adapters.features import Rows, count_samples
from skest.feature_columns.cells import flatten, holds_lists
from skest.feature_columns.table import Table

_Words = np.ndarray

_FACTOR = np.uint64(0x100000001B3)  # of FNV, so that the order of the columns counts


def distinct_rows(rows: Rows) -> Rows:
    """Return the distinct rows of a table in an order that only their values decide.

    Whatever is computed from the result takes a weight of 2 for exactly what two equal
    rows are, and does not depend on the order of the rows.

    Parameters
    ----------
    rows : Rows
        Features and labels are compared; a row without a weight weighs 1.

    Returns
    -------
    Rows
        With the sums of the weights.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.adapters.features import Rows
    >>> from skest.adapters.repeated_rows import distinct_rows
    >>> from skest.feature_columns.table import TableColumns
    >>> x, y = np.array(["a", "b", "a"], dtype=object), np.array([0, 1, 0])
    >>> few = distinct_rows(Rows(TableColumns({"x": x}), y, None))
    >>> sorted(zip(few.features["x"].tolist(), few.weight.tolist()))
    [('a', 2.0), ('b', 1.0)]
    """
    prints = _with_labels(_fingerprints(rows.features), rows.labels)
    order = np.argsort(prints, kind="stable")
    differs = prints[order[1:]] != prints[order[:-1]]
    starts = np.flatnonzero(np.concatenate([[True], differs]))
    weight = np.ones(len(order)) if rows.weight is None else rows.weight[order]
    return rows.take(order[starts])._replace(weight=np.add.reduceat(weight, starts))


# Fewer distinct rows are no sample. A bootstrap has .63 of distinct rows; where fewer are
# equal, new rows may be copies, too (of wines, with which the loss would be .04 higher).
_FEWEST_UNITS, _MOST_DISTINCT = 60, 0.7
# Labels of a distinct row; some rows of the table may have been equal before.
_MOST_LABELS = 1.01
# How many combinations of the columns' levels there must be for each row.
_CELLS_OF_ROW = 10


class Units(NamedTuple):
    """What is held out as a whole: rows of a group, or that are copies of one.

    Attributes
    ----------
    first : ndarray of shape (n_units,)
        A row of each.
    of_rows : ndarray of shape (n_rows,)
        The unit of each row.
    strata : ndarray of shape (n_units,), or None
        Of which those held out should have their share.
    """

    first: np.ndarray
    of_rows: np.ndarray
    strata: np.ndarray | None = None

    @classmethod
    def alone(cls, n_rows: int) -> "Units":
        """Return units of one row each."""
        return cls(np.arange(n_rows), np.arange(n_rows))

    def rows_of(self, units: np.ndarray) -> np.ndarray:
        """Return the rows of some units, in their order."""
        place = np.full(len(self.first), -1)
        place[units] = np.arange(len(units))
        places = place[self.of_rows]
        order = np.argsort(places, kind="stable")
        return order[places[order] >= 0]


def units_of(rows: Rows) -> Units:
    """Return groups that are given, or the rows that others are copies of, or all rows.

    Samples with replacement and oversampled classes have copies. Held out beside others
    in training, they would reward what learns rows by heart. Copies have equal labels,
    too, and are in columns of so many values that hardly two rows are equal by chance.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.adapters.features import Rows
    >>> from skest.adapters.repeated_rows import units_of
    >>> from skest.feature_columns.table import TableColumns
    >>> x = np.tile(np.arange(100.0), 2)
    >>> units = units_of(Rows(TableColumns({"a": x, "b": -x}), x > 40, None))
    >>> units.rows_of(units.of_rows[[3, 1]])
    array([  3, 103,   1, 101])
    """
    if rows.groups is not None:
        return Units(
            *np.unique(rows.groups, return_index=True, return_inverse=True)[1:]
        )
    prints = _fingerprints(rows.features)
    _, first, unit = np.unique(prints, return_index=True, return_inverse=True)
    n_units = len(first)
    if _FEWEST_UNITS <= n_units <= _MOST_DISTINCT * rows.n_rows:
        labelled = len(np.unique(_with_labels(prints, rows.labels)))
        levels = [len(np.unique(words)) for words in _columns(rows.features)]
        by_chance = np.log(levels).sum() < np.log(_CELLS_OF_ROW * rows.n_rows)
        if labelled <= _MOST_LABELS * n_units and not by_chance:
            return Units(first, unit)
    return Units.alone(rows.n_rows)


def _fingerprints(features: Any) -> _Words:
    """Return a number for each row, equal for equal rows.

    Of 1e7 different rows, two agree by chance with a probability of about 3e-6.
    """
    # A hash in place of a comparison: cells may be strings, lists or rows of a sparse
    # matrix, which no sort of NumPy compares.
    prints = np.zeros(count_samples(features), dtype=np.uint64)
    for words in _columns(features):
        prints = hash_array(prints * _FACTOR + words)
    return prints


def _with_labels(prints: _Words, labels: Any) -> _Words:
    for key, values in _label_columns(labels):
        for words in _words(values, key):
            prints = hash_array(prints * _FACTOR + words)
    return prints


def _columns(features: Any) -> Iterator[_Words]:
    table = Table(features)
    for key in table.keys:
        sparse = table.holds_sparse(key)
        yield from _words(table.sparse(key) if sparse else table.cells(key), key)


def _label_columns(labels: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(labels, Mapping):
        for values in labels.values():
            yield from _label_columns(values)
    elif hasattr(labels, "columns"):
        yield from ((name, labels[name].to_numpy()) for name in labels.columns)
    else:
        yield "y", labels.tocsr() if issparse(labels) else labels


def _words(cells: Any, key: Any) -> Iterator[_Words]:
    """Yield hashes for the rows of a column, one array for each value."""
    if issparse(cells):
        canonical = cells.copy()
        # Equal rows may be stored in two ways: with zeros, and with an entry in two
        # parts.
        canonical.sum_duplicates()
        canonical.eliminate_zeros()
        # A sum of hashes does not ask in which order the entries of a row are stored.
        places = hash_array(canonical.indices)
        entries = hash_array(places + hash_array(canonical.data))
        yield _sums(entries, np.diff(canonical.indptr))
    elif holds_lists(cells):
        values, lengths = flatten(cells, key)
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        # The place in the list counts: [1, 2] is not [2, 1].
        entries = (np.arange(len(starts)) - starts).astype(np.uint64)
        for words in _words(values, key):
            entries = hash_array(entries) + words
        yield _sums(hash_array(entries), lengths)
        yield lengths.astype(np.uint64)
    elif cells.ndim > 1:
        for column in np.asarray(cells).reshape(len(cells), -1).T:
            yield from _words(column, key)
    else:
        try:
            hashes = hash_pandas_object(pd.Series(cells), index=False)
        except TypeError:
            return  # of sets, which columns will refuse by name
        yield np.asarray(hashes, dtype=np.uint64)


def _sums(entries: _Words, lengths: np.ndarray) -> _Words:
    """Return the sums of the entries of each row, modulo 2**64."""
    # One pass for all rows, however many entries each has; a difference modulo 2**64 is
    # right where the sum has gone round.
    total = np.concatenate([[np.uint64(0)], np.cumsum(entries, dtype=np.uint64)])
    ends = np.cumsum(lengths)
    return total[ends] - total[ends - lengths]
