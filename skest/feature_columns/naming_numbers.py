# SPDX-License-Identifier: Apache-2.0
"""`name_things`: whether whole numbers name things, such as shops, by what labels say."""

from typing import Any

import numpy as np

from skest.feature_columns.target_statistics import label_numbers

# Of fewer levels a piecewise-linear column sees each one; of rarer ones nothing is known.
_FEWEST_LEVELS = 30
_FEWEST_ROWS_OF_LEVEL, _MEAN_ROWS_OF_LEVEL = 4, 5
# Fewer rows mislead, and more need not be asked.
_FEWEST_ROWS, _MOST_ROWS = 1000, 20_000
# Levels on each side that count as near, and how many of their rows shrink the mean of a
# level.
_N_NEAR, _SHRUNK = 2, 3
_LEAST_SIGN, _LEAST_GAIN = 1, 0.005
_ROUNDING = 1e-9


def name_things(values: np.ndarray, labels: Any) -> bool:
    """Tell whether integers are names of things rather than amounts.

    Of an amount, rows with 41 and 43 tell what those with 42 have. Of a name, only its own
    rows do. So in two halves of the rows the labels of each level are predicted from the
    other half, once by all rows of the level and of those beside it, and once by its own
    above all. Most levels must be better known by their own: the share of them less that
    of the others, times as many standard errors as it is, must be 1, as of 65 % of 123
    levels or 80 % of 8. And without the one that gains most, they must gain half a
    hundredth of the variance, for a peak at zero does not make names.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        The numbers; NaN is missing, and what is not whole is no name.
    labels : array-like or dict of array-like
        Of the rows, as `FeatureColumns.fit` takes them.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.naming_numbers import name_things
    >>> rng = np.random.default_rng(0)
    >>> shop, sales = rng.integers(50, size=1000), rng.normal(size=50)
    >>> name_things(shop, sales[shop]), name_things(shop, np.sqrt(shop))
    (True, False)
    """
    if values.ndim > 1 or len(values) < _FEWEST_ROWS:
        return False
    rows = np.arange(0, len(values), -(-len(values) // _MOST_ROWS))
    rows = rows[~np.isnan(values[rows])]
    if (values[rows] % 1).any():
        return False
    levels, codes = np.unique(values[rows], return_inverse=True)
    n_levels, n_rows = len(levels), len(codes)
    has_levels = _FEWEST_LEVELS <= n_levels <= n_rows / _MEAN_ROWS_OF_LEVEL
    if n_rows < _FEWEST_ROWS or not has_levels:
        return False
    y = label_numbers(labels, len(values))[rows]
    y = np.nan_to_num(y - np.nanmean(y, axis=0))
    total = (y**2).sum()
    half = np.random.default_rng(0).permutation(n_rows) % 2
    places = half * n_levels + codes
    shape = 2, n_levels, -1
    counts = np.bincount(places, minlength=2 * n_levels).reshape(shape)
    sums = np.stack(
        [np.bincount(places, column, 2 * n_levels) for column in y.T], axis=-1
    ).reshape(shape)
    near_counts, near_sums = _beside(counts), _beside(sums)
    near = near_sums / np.maximum(near_counts, 1)
    own = (sums + _SHRUNK * near) / (counts + _SHRUNK)
    # With its rows, or own means would win by the number of rows alone.
    pooled = (near_sums + sums) / np.maximum(near_counts + counts, 1)
    # Squared errors in the other half, (y - pooled)² - (y - own)², summed over its rows.
    others, other_sums = counts[::-1], sums[::-1]
    gains = others * (pooled**2 - own**2) - 2 * other_sums * (pooled - own)
    gains = gains.sum(axis=(0, 2))
    # As a sign test does, without ties.
    is_known = (counts.sum(axis=0)[:, 0] >= _FEWEST_ROWS_OF_LEVEL) & (
        abs(gains) > _ROUNDING * total
    )
    n_known = max(is_known.sum(), 1)
    excess = max(np.sign(gains[is_known]).sum() / n_known, 0)
    is_sure = excess * (excess * np.sqrt(n_known)) >= _LEAST_SIGN
    return bool(is_sure and gains.sum() - gains.max() >= _LEAST_GAIN * total)


def _beside(values: np.ndarray) -> np.ndarray:
    """Return for each level the sum of those near it, without itself."""
    n_levels = values.shape[1]
    sums = np.pad(values.cumsum(axis=1), ((0, 0), (1, 0), (0, 0)))
    levels = np.arange(n_levels)
    ends = np.minimum(levels + _N_NEAR + 1, n_levels)
    beside: np.ndarray = sums[:, ends] - sums[:, np.maximum(levels - _N_NEAR, 0)]
    return beside - values
