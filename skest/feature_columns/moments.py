# SPDX-License-Identifier: Apache-2.0
"""Mean and standard deviation of the columns of a matrix, in pieces that a cache holds."""

from collections.abc import Iterator

import numpy as np
from sklearn.preprocessing import StandardScaler

__all__ = ["mean_and_scale"]

_BLOCK = 2**16  # numbers of a piece
_SMALL = 2**18  # of a matrix that is taken as a whole


def mean_and_scale(
    values: np.ndarray, missing: np.ndarray, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `sklearn.preprocessing.StandardScaler` learns.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_columns)
        Numbers; those that are missing have no meaning.
    missing : ndarray of bool, shape (n_rows, n_columns)
        Which are missing. Each column has one that is not.
    weight : ndarray of shape (n_rows,), or None
        Weights of the rows.

    Returns
    -------
    mean, scale : ndarray of float64, shape (n_columns,)
        Means, and standard deviations: 1 of a column whose numbers are all the same. NaN
        or infinite where the numbers are too large.

    Notes
    -----
    A large matrix without gaps is gone through in pieces, whose sums are joined as by
    Chan, Golub and LeVeque (1982), instead of making copies of it.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.moments import mean_and_scale
    >>> values = np.array([[1.0, 5.0], [3.0, 5.0]])
    >>> mean_and_scale(values, np.zeros((2, 2), bool), None)
    (array([2., 5.]), array([1., 1.]))
    """
    # Equal weights say nothing, but a mean with them is rounded in another way.
    if weight is not None and np.ptp(weight) == 0:
        weight = None
    has_gaps = missing.any()
    with np.errstate(over="ignore", invalid="ignore"):
        if weight is None and not has_gaps and values.size > _SMALL:
            return _by_pieces(values)
        known = np.where(missing, np.nan, values) if has_gaps else values
        known = known.astype(np.float64, copy=False)
        scaler = StandardScaler().fit(known, sample_weight=weight)
    return scaler.mean_, scaler.scale_


def _by_pieces(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n_rows, n_columns = values.shape
    mean, squares = np.zeros(n_columns), np.zeros(n_columns)
    for first, columns, piece in _pieces(values):
        n = len(piece)
        own = np.add.reduce(piece, axis=0, dtype=np.float64) / n
        deviation = piece - own
        np.multiply(deviation, deviation, out=deviation)
        shift = own - mean[columns]
        mean[columns] += shift * (n / (first + n))
        squares[columns] += np.add.reduce(deviation, axis=0)
        squares[columns] += shift * shift * (first * n / (first + n))
    variance = squares / n_rows
    # What rounding alone may leave of equal numbers, as StandardScaler has it.
    eps = np.finfo(np.float64).eps
    is_constant = variance <= n_rows * eps * variance + (n_rows * mean * eps) ** 2
    return mean, np.where(is_constant, 1, np.sqrt(variance))


def _pieces(values: np.ndarray) -> Iterator[tuple[int, slice, np.ndarray]]:
    """Yield pieces as they are in memory: the first row, the columns, the numbers."""
    n_rows, n_columns = values.shape
    if values.flags.c_contiguous or not values.flags.f_contiguous:
        step = max(1, _BLOCK // n_columns)
        for row in range(0, n_rows, step):
            yield row, slice(None), values[row : row + step]
        return
    step = max(1, _BLOCK // n_rows)
    for column in range(0, n_columns, step):
        columns = slice(column, column + step)
        yield 0, columns, values[:, columns]
