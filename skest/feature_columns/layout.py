# SPDX-License-Identifier: Apache-2.0
"""Copies of matrices with their rows one behind the other."""

from typing import Any

import numpy as np

__all__ = ["copied_by_rows"]

_COLUMNS = 16  # a cache line of float32


def copied_by_rows(values: np.ndarray, dtype: Any) -> np.ndarray:
    """Return a copy whose rows are one behind the other: batches are made of rows.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_columns)
        Numbers; those of a frame come column behind column.
    dtype : data type
        Of the copy.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.layout import copied_by_rows
    >>> copied_by_rows(np.ones((3, 2), order="F"), "float32").flags.c_contiguous
    True
    """
    if values.flags.c_contiguous or not values.flags.f_contiguous:
        return values.astype(dtype, order="C")
    copy = np.empty(values.shape, dtype)
    # A few columns at a time, so that each line of the cache is written as a whole.
    for start in range(0, values.shape[1], _COLUMNS):
        columns = slice(start, start + _COLUMNS)
        copy[:, columns] = values[:, columns]
    return copy
