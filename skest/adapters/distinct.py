# SPDX-License-Identifier: Apache-2.0
"""The distinct rows of a table, in an order that only their values decide."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import issparse

from skest.adapters.features import Rows
from skest.feature_columns.ragged import flatten, holds_lists
from skest.feature_columns.table import Table

_Words = NDArray[np.uint64]

# Every row gets two fingerprints of 64 bits, one above the other in arrays of two rows:
# that 1e7 different rows hold two which agree in both has a probability of about 1e-25.
# Strings are hashed with keys of 16 bytes.
_SEEDS = np.array([[0x9E3779B97F4A7C15], [0xD1B54A32D192ED03]], dtype=np.uint64)
_KEYS = ("skest rows, key1", "skest rows, key2")
_MISSING = np.array([[0x5851F42D4C957F2D]] * 2, dtype=np.uint64)
_FACTOR = np.uint64(0x100000001B3)


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
    >>> from skest.adapters.distinct import distinct_rows
    >>> from skest.adapters.features import Rows
    >>> from skest.feature_columns.table import TableColumns
    >>> x, y = np.array(["a", "b", "a"], dtype=object), np.array([0, 1, 0])
    >>> few = distinct_rows(Rows(TableColumns({"x": x}), y, None))
    >>> sorted(zip(few.features["x"].tolist(), few.weight.tolist()))
    [('a', 2.0), ('b', 1.0)]
    """
    prints = _fingerprints(rows)
    order = np.lexsort(prints[::-1])
    prints = prints[:, order]
    differs = (prints[:, 1:] != prints[:, :-1]).any(axis=0)
    starts = np.flatnonzero(np.concatenate([[True], differs]))
    weight = np.ones(len(order)) if rows.weight is None else rows.weight[order]
    return rows.take(order[starts])._replace(weight=np.add.reduceat(weight, starts))


def _fingerprints(rows: Rows) -> _Words:
    """Return two numbers for each row, equal for equal rows, of shape (2, n_rows)."""
    prints = np.zeros((2, rows.n_rows), dtype=np.uint64)
    for words in _columns(rows.features, rows.labels):
        prints = _mix(prints * _FACTOR + words)
    return prints


def _columns(features: Any, labels: Any) -> Iterator[_Words]:
    table = Table(features)
    for key in table.keys:
        sparse = table.holds_sparse(key)
        yield from _words(table.sparse(key) if sparse else table.cells(key), key)
    for key, values in _label_columns(labels):
        yield from _words(values, key)


def _label_columns(labels: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(labels, Mapping):
        for values in labels.values():
            yield from _label_columns(values)
    elif hasattr(labels, "columns"):
        yield from ((name, labels[name].to_numpy()) for name in labels.columns)
    else:
        yield "y", labels.tocsr() if issparse(labels) else labels


def _words(cells: Any, key: Any) -> Iterator[_Words]:
    """Yield numbers of 64 bits for the rows of a column, one array for each value.

    Their shape is (n_rows,), or (2, n_rows) if they differ in the two fingerprints.
    """
    if issparse(cells):
        canonical = cells.copy()
        canonical.sum_duplicates()
        canonical.eliminate_zeros()
        places = _mix(canonical.indices.astype(np.uint64))
        entries = _mix(places + _bits(canonical.data))
        yield _sums(entries, np.diff(canonical.indptr))
    elif holds_lists(cells):
        values, lengths = flatten(cells, key)
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        entries = np.arange(len(starts), dtype=np.uint64) - starts.astype(np.uint64)
        for words in _words(values, key):
            entries = _mix(entries) + words
        yield _sums(_mix(entries), lengths)
        yield lengths.astype(np.uint64)
    elif cells.ndim > 1:
        for column in np.asarray(cells).reshape(len(cells), -1).T:
            yield from _words(column, key)
    elif isinstance(cells.dtype, np.dtype) and cells.dtype.kind in "biufmM":
        yield _bits(np.asarray(cells))
    else:
        codes, distinct = pd.factorize(_plain(cells))
        values = np.asarray(distinct, dtype=object)
        hashes = np.stack([pd.util.hash_array(values, hash_key=k) for k in _KEYS])
        yield np.hstack([hashes, _MISSING])[:, codes]


def _plain(cells: Any) -> Any:
    """Return what `pandas.factorize` takes."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "SUT":
        return cells.astype(object)
    return cells


def _bits(values: NDArray[Any]) -> _Words:
    if values.dtype.kind in "mM":
        values = values.view(np.int64)
    wide = np.float64 if values.dtype.kind == "f" else np.int64
    if values.dtype == np.uint64:
        return values
    return np.ascontiguousarray(values, dtype=wide).view(np.uint64)


def _sums(entries: _Words, lengths: NDArray[Any]) -> _Words:
    """Return the sums of the entries of each row, modulo 2**64."""
    zeros = np.zeros((2, 1), dtype=np.uint64)
    total = np.hstack([zeros, np.cumsum(entries, axis=1, dtype=np.uint64)])
    ends = np.cumsum(lengths)
    return total[:, ends] - total[:, ends - lengths]


def _mix(words: _Words) -> _Words:
    """Return a bijection of the numbers that spreads every bit (splitmix64), twice."""
    z = words + _SEEDS
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
