# SPDX-License-Identifier: Apache-2.0
"""Statistics of the columns of a matrix, weighted, in pieces that a cache holds."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler

_BLOCK = 2**16  # numbers of a piece


def mean_and_scale(
    values: np.ndarray, missing: np.ndarray | None, weight: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `sklearn.preprocessing.StandardScaler` learns.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_columns)
        Numbers; those that are missing have no meaning.
    missing : ndarray of bool, shape (n_rows, n_columns), or None
        Which are missing, if any are. Each column has one that is not.
    weight : ndarray of shape (n_rows,), or None
        Weights of the rows.

    Returns
    -------
    mean, scale : ndarray of float64, shape (n_columns,)
        Means, and standard deviations: 1 of a column whose numbers are all the same. NaN
        or infinite where the numbers are too large.

    Notes
    -----
    A matrix without gaps is gone through in pieces, whose sums are joined as by Chan,
    Golub and LeVeque (1982), instead of making copies of it.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.statistics import mean_and_scale
    >>> values = np.array([[1.0, 5.0], [3.0, 5.0]])
    >>> mean_and_scale(values, None, None)
    (array([2., 5.]), array([1., 1.]))
    """
    # Equal weights say nothing, but a mean with them is rounded in another way.
    if weight is not None and np.ptp(weight) == 0:
        weight = None
    with np.errstate(over="ignore", invalid="ignore"):
        if weight is None and missing is None:
            return _by_pieces(values)
        known = with_gaps(values, missing)
        scaler = StandardScaler().fit(known, sample_weight=weight)
    return scaler.mean_, scaler.scale_


def with_gaps(values: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
    """Return numbers as float64, NaN where they are missing."""
    known = values if missing is None else np.where(missing, np.nan, values)
    return known.astype(np.float64, copy=False)


def _by_pieces(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    n_rows, n_columns = values.shape
    mean, squares = np.zeros(n_columns), np.zeros(n_columns)
    for first, columns, piece in _pieces(values):
        n = len(piece)
        own = np.add.reduce(piece, axis=0, dtype=np.float64) / n
        deviation = piece - own
        np.multiply(deviation, deviation, out=deviation)
        # Means and squares of pieces add up (Chan, Golub and LeVeque 1979).
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


# As many as QuantileTransformer of scikit-learn takes.
_N_KNOTS = 1000
#: Beyond this, `smoothly_clipped` numbers are 3 in any type, and squares stay finite.
CLIPPED = 1e9


class Distribution(NamedTuple):
    """Distinct numbers and how the weight is spread over them.

    Attributes
    ----------
    distinct : ndarray of shape (n_distinct,)
        The numbers that occur, sorted.
    share : ndarray of float64, shape (n_distinct,)
        The share of the weight that is at most that number; 1 at the end.
    """

    distinct: np.ndarray
    share: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, weights: np.ndarray | None) -> "Distribution":
        """Return the distribution of numbers.

        Parameters
        ----------
        values : ndarray of shape (n,)
            Numbers, without NaN.
        weights : ndarray of shape (n,), or None
            Their weights, greater than 0.
        """
        distinct, codes = np.unique(values, return_inverse=True)
        weights = None if weights is None else summable(weights)
        cumulated = np.bincount(codes, weights).cumsum()
        return cls(distinct, cumulated / cumulated[-1])

    def quantiles(self, levels: np.ndarray) -> np.ndarray:
        """Return positions in `distinct`: of the first number with so great a share.

        Examples
        --------
        >>> import numpy as np
        >>> from skest.feature_columns.statistics import Distribution
        >>> ages = Distribution.of(np.array([20, 30, 30, 60]), None)
        >>> ages.distinct[ages.quantiles(np.array([0.25, 0.5, 0.9]))]
        array([20, 30, 60])
        """
        return np.searchsorted(self.share, levels)


class UniformMap(NamedTuple):
    """A map of numbers to [0, 1] under which they are spread evenly.

    A number of the training data is mapped to the share of the data below it and half
    of the share equal to it, the least one to 0 and the greatest to 1; between them the
    map is linear. Beyond a thousand distinct numbers, quantiles stand for them.

    Attributes
    ----------
    knots : ndarray of shape (n_knots,)
        Increasing numbers.
    images : ndarray of shape (n_knots,)
        Where they are mapped to, from 0 to 1.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.statistics import UniformMap
    >>> UniformMap.learned(np.array([1.0, 5.0, 9.0]), None)(np.array([0, 1, 3, 5, 99]))
    array([0.  , 0.  , 0.25, 0.5 , 1.  ])
    """

    knots: np.ndarray
    images: np.ndarray

    @classmethod
    def learned(cls, values: np.ndarray, weights: np.ndarray | None) -> "UniformMap":
        """Learn the map from numbers, see `Distribution.of`."""
        distinct, share = distribution = Distribution.of(values, weights)
        images = (np.append(0, share[:-1]) + share) / 2
        images[-1], images[0] = 1, 0  # a constant is mapped to 0
        if len(distinct) > _N_KNOTS:
            kept = distribution.quantiles(np.linspace(0, 1, _N_KNOTS))
            # Between a frequent number and its neighbours the map is steep.
            frequent = np.flatnonzero(np.diff(share, prepend=0) > 1 / _N_KNOTS)
            kept = np.concatenate([kept, frequent - 1, frequent + 1])
            kept = np.unique(kept.clip(0, len(distinct) - 1))
            distinct, images = distinct[kept], images[kept]
        return cls(distinct, images.astype(distinct.dtype))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Return the images of numbers, computed in their type."""
        knots, images = self
        values = values.clip(knots[0], knots[-1])
        left = np.searchsorted(knots[1:-1], values, side="right")
        right = np.minimum(left + 1, len(knots) - 1)
        width = knots[right] - knots[left]
        width[width == 0] = 1  # a constant
        slope = images[right] - images[left]
        return images[left] + (values - knots[left]) / width * slope


def median_and_spread(
    values: np.ndarray, weights: np.ndarray | None
) -> tuple[float, float]:
    """Return the median and the distance of the quartiles.

    Where the quartiles are equal, it is half of the range instead, and 1 of a constant.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.statistics import median_and_spread
    >>> median_and_spread(np.array([1.0, 2.0, 4.0, 9.0]), None)
    (2.0, 3.0)
    >>> median_and_spread(np.array([0.0, 0.0, 0.0, 0.0, 8.0]), None)
    (0.0, 4.0)
    """
    levels = np.array([0.25, 0.5, 0.75])
    if weights is None:
        low, median, high = np.quantile(values, levels, method="inverted_cdf")
    else:
        distribution = Distribution.of(values, weights)
        low, median, high = distribution.distinct[distribution.quantiles(levels)]
    spread = float(high) - float(low)
    if spread == 0:
        spread = (float(values.max()) - float(values.min())) / 2
    return float(median), spread or 1.0


def smoothly_clipped(values: np.ndarray) -> np.ndarray:
    """Return numbers from -3 to 3 that differ little from those near 0.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.statistics import smoothly_clipped
    >>> smoothly_clipped(np.array([-0.3, 4.0, 1e300])).round(2)
    array([-0.3,  2.4,  3. ])
    """
    values = values.clip(-CLIPPED, CLIPPED)
    return values / np.sqrt(1 + np.square(values / 3))


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
    >>> from skest.feature_columns.statistics import extremes
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


def is_finite(cells: np.ndarray) -> bool:
    """Tell whether all numbers are finite; at times the answer no is wrong.

    Parameters
    ----------
    cells : ndarray
        Numbers of any shape.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.statistics import is_finite
    >>> is_finite(np.array([1.0, 2.0])), is_finite(np.array([1.0, np.nan]))
    (True, False)
    """
    if cells.dtype.kind != "f":
        return True
    if cells.size == 1:  # as in a request, in a tenth of the time
        return math.isfinite(cells.item())
    # The sum is finite only if all are; it is one pass that writes nothing.
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(np.add.reduce(cells, axis=None))


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
    >>> from skest.feature_columns.statistics import copied_by_rows
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


def summable(weights: np.ndarray) -> np.ndarray:
    """Round weights to multiples of one power of two, so that no sum of them is rounded.

    What is learned by comparing sums then depends on the weights alone: not on the order
    of the rows, and for equal weights, such as 0.1, not on their size.

    Parameters
    ----------
    weights : ndarray of shape (n,)
        Numbers of 0 or more, at least one.

    Returns
    -------
    ndarray of float64, shape (n,)
        They differ from `weights` by at most about ``n * 2**-52`` of the largest one.
        Integers are themselves, up to a sum of 2**51.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.statistics import summable
    >>> weights = np.array([0.1, 0.2, 0.3, 0.3, 0.2, 0.1])
    >>> bool(weights[:3].sum() == weights[3:].sum())
    False
    >>> weights = summable(weights)
    >>> bool(weights[:3].sum() == weights[3:].sum())
    True
    """
    _, exponent = np.frexp(weights.max())
    shift = 52 - len(weights).bit_length() - exponent  # of each sum to less than 2**52
    return np.ldexp(np.rint(np.ldexp(weights, shift)), -shift)
