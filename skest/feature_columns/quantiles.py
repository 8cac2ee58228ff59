# SPDX-License-Identifier: Apache-2.0
"""Quantiles of weighted numbers, and the map to a uniform distribution.

A weight counts as a repetition of its number, and nothing depends on how many numbers
there are: only on the distribution.
"""

from typing import NamedTuple

import numpy as np

from skest.feature_columns.weights import summable

__all__ = [
    "CLIPPED",
    "Distribution",
    "UniformMap",
    "median_and_spread",
    "smoothly_clipped",
]

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
        >>> from skest.feature_columns.quantiles import Distribution
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
    >>> from skest.feature_columns.quantiles import UniformMap
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
    >>> from skest.feature_columns.quantiles import median_and_spread
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
    >>> from skest.feature_columns.quantiles import smoothly_clipped
    >>> smoothly_clipped(np.array([-0.3, 4.0, 1e300])).round(2)
    array([-0.3,  2.4,  3. ])
    """
    values = values.clip(-CLIPPED, CLIPPED)
    return values / np.sqrt(1 + np.square(values / 3))
