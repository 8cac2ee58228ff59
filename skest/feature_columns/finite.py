# SPDX-License-Identifier: Apache-2.0
"""Whether numbers are finite, by their sum."""

import math

import numpy as np

__all__ = ["is_finite"]


def is_finite(cells: np.ndarray) -> bool:
    """Tell whether all numbers are finite; at times the answer no is wrong.

    Parameters
    ----------
    cells : ndarray
        Numbers of any shape.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.finite import is_finite
    >>> is_finite(np.array([1.0, 2.0])), is_finite(np.array([1.0, np.nan]))
    (True, False)
    """
    if cells.dtype.kind != "f":
        return True
    # The sum is finite only if all are; it is one pass that writes nothing.
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(np.add.reduce(cells, axis=None))
