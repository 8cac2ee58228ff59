# SPDX-License-Identifier: Apache-2.0
"""How large raw values become once lists in cells are filled up, before they are."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["cell_lengths", "values_in_item"]


def cell_lengths(
    cells: Sequence[Any] | NDArray[Any], feature: Mapping[str, Any]
) -> NDArray[np.int64]:
    """Return how many items each row has; all become as long as the longest.

    Parameters
    ----------
    cells : sequence
        One cell for each row.
    feature : dict
        The feature's entry in the manifest, of which the second size is free.

    Examples
    --------
    >>> from skest.export.padded_sizes import cell_lengths
    >>> cell_lengths(["a|b", ["a|b", "c"], None], {"delimiter": "|"})
    array([2, 3, 1])
    """
    delimiter = feature.get("delimiter")
    return np.fromiter((_items(cell, delimiter) for cell in cells), np.int64)


def values_in_item(feature: Mapping[str, Any]) -> int:
    """Return of how many values an item of a list consists: one, unless it is a vector.

    Parameters
    ----------
    feature : dict
        The feature's entry in the manifest.

    Examples
    --------
    >>> from skest.export.padded_sizes import values_in_item
    >>> values_in_item({"shape": [None, None, 64]})
    64
    """
    return math.prod(size or 1 for size in feature["shape"][2:])


def _items(cell: Any, delimiter: str | None) -> int:
    """Return how many items a cell has, of which texts may be split."""
    items = cell if isinstance(cell, list | tuple | np.ndarray) else [cell]
    if not delimiter:
        return len(items)
    return sum(
        item.count(delimiter) + 1 if isinstance(item, str) else 1 for item in items
    )
