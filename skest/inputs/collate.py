# SPDX-License-Identifier: Apache-2.0
"""Rows to a batch, and a batch to rows."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skest.feature_columns.cells import as_array
from skest.inputs.array_dataset import check_same_rows, count_rows

__all__ = ["count_batch", "stack", "unstack"]


def stack(rows: Sequence[Any]) -> Any:
    """Make one batch of rows.

    Parameters
    ----------
    rows : sequence
        Numbers, strings, arrays, tensors, or dictionaries and tuples of them, all alike.

    Returns
    -------
    ndarray, Tensor, dict or tuple
        The dictionaries and tuples of the rows, with arrays of all rows. Arrays or lists
        of different lengths become an array of objects.

    Raises
    ------
    ValueError
        If dictionaries have different keys or tuples different lengths.

    Examples
    --------
    >>> from skest.inputs.collate import stack
    >>> stack([({"x": 1.0}, 0), ({"x": 2.5}, 1)])
    ({'x': array([1. , 2.5])}, array([0, 1]))
    """
    first = rows[0]
    if isinstance(first, Mapping):
        for row in rows:
            if row.keys() != first.keys():
                raise ValueError(
                    f"The rows of a batch must have the same keys; got {list(first)} and "
                    f"{list(row)}. Give a missing value as None or NaN."
                )
        return {key: stack([row[key] for row in rows]) for key in first}
    if isinstance(first, tuple):
        for row in rows:
            check_pairing(first, row)
        return tuple(stack(parts) for parts in zip(*rows, strict=True))
    if isinstance(first, Tensor):
        return torch.stack(list(rows))
    try:
        return as_array(rows)
    except ValueError:  # NumPy refuses to stack cells of different lengths
        return np.fromiter(rows, dtype=object, count=len(rows))


def check_pairing(first: tuple[Any, ...], row: Any) -> None:
    """Raise ValueError unless `row` is a tuple as long as the first."""
    if not isinstance(row, tuple) or len(row) != len(first):
        raise ValueError(
            f"The rows of a batch must be tuples of the same length; got {first!r} and "
            f"{row!r}."
        )


def unstack(batch: Any, start: int = 0) -> Iterator[Any]:
    """Yield the rows of a batch from `start` on; the inverse of `stack`.

    Parameters
    ----------
    batch : ndarray, Tensor, Series, DataFrame, dict or tuple
        Rows along the first dimension. A row of a DataFrame is a dictionary.
    start : int, default=0
        The first row to yield.

    Examples
    --------
    >>> from skest.inputs.collate import unstack
    >>> list(unstack({"x": torch.tensor([1, 2]), "y": torch.tensor([3, 4])}, start=1))
    [{'x': tensor(2), 'y': tensor(4)}]
    """
    for i in range(start, count_batch(batch)):
        yield _row(batch, i)


def count_batch(batch: Any) -> int:
    """Return the number of rows of a batch, which all of its parts must have."""
    if not isinstance(batch, tuple):
        return count_rows(batch, "batch")
    counts = [count_batch(part) for part in batch]
    for n in counts[1:]:
        check_same_rows(counts[0], n)
    return counts[0]


def _row(data: Any, i: int) -> Any:
    if isinstance(data, Mapping):
        return {key: _row(value, i) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(_row(part, i) for part in data)
    if hasattr(data, "columns"):
        return {name: _row(data[name], i) for name in data.columns}
    return data.iloc[i] if hasattr(data, "iloc") else data[i]
