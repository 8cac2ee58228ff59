# SPDX-License-Identifier: Apache-2.0
"""`are_names`: whether whole numbers name things, such as shops, by what labels say."""

from typing import Any

import numpy as np

from skest.feature_columns.target_statistics import label_numbers

# Of fewer levels a piecewise-linear column sees each one; of rarer ones nothing is known.
_FEWEST_LEVELS, _MEAN_ROWS_OF_LEVEL = 30, 2
# Fewer rows mislead, and more need not be asked, but where each level has few of them.
_FEWEST_ROWS, _MOST_ROWS = 1000, (20_000, 200_000)
# Levels on each side that count as near, and how many of their rows shrink the mean of a
# level.
_N_NEAR, _SHRUNK = 2, 3
_LEAST_SIGN, _LEAST_GAIN = 3, 0.005  # standard errors; share of the variance
_ROUNDING = 1e-9


def are_names(
    values: np.ndarray, labels: Any, hashes: np.ndarray | None = None
) -> bool:
    """Tell whether integers are names of things rather than amounts.

    Of an amount, rows with 41 and 43 tell what those with 42 have. Of a name, only its own
    rows do. So in two halves of the rows the labels of each level are predicted from the
    other half, once by all rows of the level and of those beside it, and once by its own
    above all. More levels must be better known by their own than not, by three standard
    errors of a sign test. And without the one that gains most, they must gain .005 of the
    variance, for a peak at zero does not make names.

    At least 1,000 rows, 30 levels and 2 rows of a level on average are needed.

    Parameters
    ----------
    values : ndarray of shape (n_rows,)
        The numbers; NaN is missing, and what is not whole is no name.
    labels : array-like or dict of array-like
        Of the rows, as `FeatureColumns.fit` takes them.
    hashes : ndarray of uint64 of shape (n_rows,), default=None
        Rows with the same one are in the same half. Else a row that is there twice, as in
        a bootstrap, would tell of itself. None takes all rows for different ones.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.naming_numbers import are_names
    >>> rng = np.random.default_rng(0)
    >>> shop, sales = rng.integers(50, size=1000), rng.normal(size=50)
    >>> are_names(shop, sales[shop]), are_names(shop, np.sqrt(shop))
    (True, False)
    """
    if values.ndim > 1 or len(values) < _FEWEST_ROWS:
        return False
    if (values[:_FEWEST_ROWS] % 1 > 0).any():  # most amounts are told at once
        return False
    if values.dtype.kind == "u" and values.max() > np.iinfo(np.int64).max:
        return False
    shuffled = np.random.default_rng(0).permutation(len(values))
    for most in _MOST_ROWS:
        rows = shuffled[:most]
        rows = rows[~np.isnan(values[rows])]
        if (values[rows] % 1).any():
            return False
        levels, codes = np.unique(values[rows], return_inverse=True)
        n_levels, n_rows = len(levels), len(codes)
        if n_levels <= n_rows / _MEAN_ROWS_OF_LEVEL or len(rows) == len(values):
            break
    has_levels = _FEWEST_LEVELS <= n_levels <= n_rows / _MEAN_ROWS_OF_LEVEL
    if n_rows < _FEWEST_ROWS or not has_levels:
        return False
    y = label_numbers(labels, len(values))[rows]
    y = np.nan_to_num(y - np.nanmean(y, axis=0))
    y /= np.maximum(y.std(axis=0), np.finfo(float).tiny)
    total = (y**2).sum()
    # The rows are in any order, and so are the bits of a hash.
    half = np.arange(n_rows) if hashes is None else hashes[rows].astype(np.int64)
    half %= 2
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
    signs = np.sign(gains[abs(gains) > _ROUNDING * total])  # a tie is no sign
    is_sure = signs.sum() >= _LEAST_SIGN * np.sqrt(max(len(signs), 1))
    return bool(is_sure and gains.sum() - gains.max() >= _LEAST_GAIN * total)


def _beside(values: np.ndarray) -> np.ndarray:
    """Return for each level the sum of those near it, without itself."""
    n_levels = values.shape[1]
    sums = np.pad(values.cumsum(axis=1), ((0, 0), (1, 0), (0, 0)))
    levels = np.arange(n_levels)
    ends = np.minimum(levels + _N_NEAR + 1, n_levels)
    beside: np.ndarray = sums[:, ends] - sums[:, np.maximum(levels - _N_NEAR, 0)]
    return beside - values
