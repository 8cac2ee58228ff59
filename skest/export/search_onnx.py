# SPDX-License-Identifier: Apache-2.0
"""The search in sorted numbers, in an ONNX graph."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.export.graph import Value

__all__ = ["n_reached"]

# With how many a number is compared at once, and one more. Few are cheap in one step;
# many in several, where all at once would take time and memory for each of them.
_MOST_AT_ONCE = 32


def n_reached(values: Value, ends: NDArray[Any]) -> Value:
    """Return how many of some sorted numbers are not greater than each value.

    All of them, if the value is NaN: as ``numpy.searchsorted(ends, values, "right")``.

    Parameters
    ----------
    values : Value
        Numbers.
    ends : ndarray of shape (n_ends,), or (n, n_ends) for n values along the last axis
        Sorted. They become a tree of constants in the type of the values, of which each
        level divides what the one before has left into equal parts.

    Returns
    -------
    Value
        int64 of the shape of `values`.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.export.graph import Graph
    >>> from skest.export.search_onnx import n_reached
    >>> graph = Graph("search")
    >>> found = n_reached(graph.input("x", np.float32, (None,)), np.arange(5))
    >>> [node.op for node in graph.added], found.dtype
    (['Unsqueeze', 'Less', 'Not', 'Cast', 'ReduceSum'], dtype('int64'))
    """
    n_ends = ends.shape[-1]
    n_levels, n_parts = _shape_of_tree(n_ends)
    compared = n_parts - 1
    each = values.unsqueeze(-1)
    found: Any = None
    for level in range(n_levels):
        n_below = n_parts ** (n_levels - level - 1)
        starts = n_parts * n_below * np.arange(n_parts**level)[:, np.newaxis]
        places = starts + n_below * np.arange(1, n_parts) - 1
        # Behind the last end it is repeated: whoever reaches it reaches these, too.
        table = ends[..., np.minimum(places, n_ends - 1)]
        near: Any
        if found is None:
            near = table[..., 0, :]
        else:
            own = found
            if ends.ndim > 1:
                own = found + n_parts**level * np.arange(len(ends))
            near = values.constant(table.reshape(-1, compared)).take(own)
        # Not `each >= near`, which NaN would fail.
        part = (~(each < near)).cast(np.int64).sum(axis=-1)
        found = part if found is None else found * n_parts + part
    if n_parts**n_levels - 1 > n_ends:
        found = found.graph.add("Min", found, found.constant(n_ends))
    return found


def _shape_of_tree(n_ends: int) -> tuple[int, int]:
    """Return how many levels a tree has, and into how many parts each divides."""
    n_levels = 1
    while _MOST_AT_ONCE**n_levels <= n_ends:
        n_levels += 1
    n_parts = 1
    while n_parts**n_levels <= n_ends:
        n_parts += 1
    return n_levels, n_parts
