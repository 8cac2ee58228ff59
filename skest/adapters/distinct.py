# SPDX-License-Identifier: Apache-2.0
"""`distinct_rows`: equal rows of a table made one, their weights added up."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import issparse

from skest.adapters.rows import Rows
from skest.feature_columns.ragged import flatten, holds_lists
from skest.feature_columns.table import Table

__all__ = ["distinct_rows"]

_Words = NDArray[np.uint64]

# Two fingerprints of 64 bits: that 1e7 different rows hold two which agree in both has a
# probability of about 1e-25. Strings need keys of 16 bytes.
_SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
_KEYS = ("skest rows, key1", "skest rows, key2")
_MISSING = 0x5851F42D4C957F2D


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
    >>> from skest.adapters.rows import Rows
    >>> x, y = np.array(["a", "b", "a"], dtype=object), np.array([0, 1, 0])
    >>> few = distinct_rows(Rows({"x": x}, y, None))
    >>> sorted(zip(few.features["x"].tolist(), few.weight.tolist()))
    [('a', 2.0), ('b', 1.0)]
    """
    first, second = (_fingerprints(rows, stream) for stream in (0, 1))
    order = np.lexsort((second, first))
    first, second = first[order], second[order]
    differs = (first[1:] != first[:-1]) | (second[1:] != second[:-1])
    starts = np.flatnonzero(np.concatenate([[True], differs]))
    weight = np.ones(len(order)) if rows.weight is None else rows.weight[order]
    return rows.take(order[starts])._replace(weight=np.add.reduceat(weight, starts))


def _fingerprints(rows: Rows, stream: int) -> _Words:
    """Return a number for each row, equal for equal rows."""
    prints = np.zeros(rows.n_rows, dtype=np.uint64)
    for words in _columns(rows.features, rows.labels, stream):
        prints = _mix(prints * np.uint64(0x100000001B3) + words, stream)
    return prints


def _columns(features: Any, labels: Any, stream: int) -> Iterator[_Words]:
    table = Table(features)
    for key in table.keys:
        sparse = table.holds_sparse(key)
        cells = table.sparse(key) if sparse else table.cells(key)
        yield from _words(cells, key, stream)
    for key, values in _label_columns(labels):
        yield from _words(values, key, stream)


def _label_columns(labels: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(labels, Mapping):
        for values in labels.values():
            yield from _label_columns(values)
    elif hasattr(labels, "columns"):
        yield from ((name, labels[name].to_numpy()) for name in labels.columns)
    else:
        yield "y", labels.tocsr() if issparse(labels) else labels


def _words(cells: Any, key: Any, stream: int) -> Iterator[_Words]:
    """Yield numbers of 64 bits for the rows of a column, one array for each value."""
    if issparse(cells):
        canonical = cells.copy()
        canonical.sum_duplicates()
        canonical.eliminate_zeros()
        entries = _mix(canonical.indices.astype(np.uint64), stream) + _bits(
            canonical.data
        )
        yield _sums(_mix(entries, stream), np.diff(canonical.indptr))
    elif holds_lists(cells):
        values, lengths = flatten(cells, key)
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        entries = np.arange(len(starts), dtype=np.uint64) - starts.astype(np.uint64)
        for words in _words(values, key, stream):
            entries = _mix(entries, stream) + words
        yield _sums(_mix(entries, stream), lengths)
        yield lengths.astype(np.uint64)
    elif cells.ndim > 1:
        for column in np.asarray(cells).reshape(len(cells), -1).T:
            yield from _words(column, key, stream)
    elif isinstance(cells.dtype, np.dtype) and cells.dtype.kind in "biufmM":
        yield _bits(np.asarray(cells))
    else:
        codes, distinct = pd.factorize(_plain(cells))
        hashes = pd.util.hash_array(
            np.asarray(distinct, dtype=object), hash_key=_KEYS[stream]
        )
        yield np.append(hashes, np.uint64(_MISSING))[codes]


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
    total = np.concatenate(
        [np.zeros(1, np.uint64), np.cumsum(entries, dtype=np.uint64)]
    )
    ends = np.cumsum(lengths)
    return total[ends] - total[ends - lengths]


def _mix(words: _Words, stream: int) -> _Words:
    """Return a bijection of the numbers that spreads every bit (splitmix64)."""
    z = words + np.uint64(_SEEDS[stream])
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
