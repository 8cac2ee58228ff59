# SPDX-License-Identifier: Apache-2.0
"""The least and the greatest number of each column of a matrix."""

import numpy as np

__all__ = ["extremes"]

_ROWS = 64  # that are reduced as one


def extremes(values: np.ndarray) -> np.ndarray:
    """Return the least and the greatest number of each column.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_columns)
        Numbers, of one row at least.

    Returns
    -------
    ndarray of shape (2, n_columns)

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.extremes import extremes
    >>> extremes(np.array([[1.0, 5.0], [3.0, 4.0], [2.0, 6.0]]))
    array([[1., 4.],
           [3., 6.]])
    """
    return np.stack([_reduced(np.minimum, values), _reduced(np.maximum, values)])


def _reduced(function: np.ufunc, values: np.ndarray) -> np.ndarray:
    """Reduce the rows, many of them side by side: a row by itself is short."""
    n_rows, n_columns = values.shape
    whole = n_rows - n_rows % _ROWS
    if whole and values.flags.c_contiguous:
        wide = function.reduce(values[:whole].reshape(-1, _ROWS * n_columns), axis=0)
        values = np.concatenate([wide.reshape(_ROWS, n_columns), values[whole:]])
    reduced: np.ndarray = function.reduce(values, axis=0)
    return reduced
