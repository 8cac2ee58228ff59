# SPDX-License-Identifier: Apache-2.0
"""What is learned of numbers: means, scales, quantiles, and the edges of bins."""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_consistent_length

_BLOCK = 2**16  # numbers at a time, which a cache holds


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
            return _without_copy(values)
        known = with_gaps(values, missing)
        scaler = StandardScaler().fit(known, sample_weight=weight)
    return scaler.mean_, scaler.scale_


def with_gaps(values: np.ndarray, missing: np.ndarray | None) -> np.ndarray:
    """Return numbers as float64, NaN where they are missing."""
    known = values if missing is None else np.where(missing, np.nan, values)
    return known.astype(np.float64, copy=False)


def _without_copy(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what a `StandardScaler` learns, which would copy the matrix twice."""
    # A million rows of 20 columns take 0.2 s so in place of 0.5, and 170 MiB less.
    n_rows, n_columns = values.shape
    mean = np.add.reduce(values, axis=0, dtype=np.float64) / n_rows
    step = max(1, _BLOCK // n_columns)
    blocks = (values[row : row + step] for row in range(0, n_rows, step))
    variance = sum(np.square(block - mean).sum(axis=0) for block in blocks) / n_rows
    # What rounding alone may leave of equal numbers, as StandardScaler has it.
    eps = np.finfo(np.float64).eps
    is_constant = variance <= n_rows * eps * variance + (n_rows * mean * eps) ** 2
    is_constant &= np.isfinite(variance)  # numbers too large to square are no constant
    return mean, np.where(is_constant, 1, np.sqrt(variance))


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
    counts : ndarray of shape (n_distinct,)
        How many rows have each, or the weight of these.
    """

    distinct: np.ndarray
    counts: np.ndarray

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
        if weights is None:
            return cls(*np.unique(values, return_counts=True))
        distinct, codes = np.unique(values, return_inverse=True)
        return cls(distinct, np.bincount(codes, summable(weights)))

    @property
    def share(self) -> np.ndarray:
        """The share of the weight that is at most each number; 1 at the end."""
        cumulated = self.counts.cumsum()
        return cumulated / cumulated[-1]

    @property
    def spread(self) -> float:
        """The distance between the quartiles, or between outer quantiles if it is 0.

        One wrong number among thousands does not change it.
        """
        for level in (0.25, 0.05, 0.0):
            ends = self.quantiles(np.array([level, 1 - level]))
            low, high = map(float, self.distinct[ends])
            if high > low:
                return high - low
        return 0.0

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
        distribution = Distribution.of(values, weights)
        distinct, share = distribution.distinct, distribution.share
        # The middle of the jump of the distribution function, as QuantileTransformer,
        # which averages the map from below and from above.
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
        # All numbers are on the one knot then, and the slope is 0.
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
    low, median, high = _quartiles(values, weights)
    spread = high - low
    # As RealMLP: of a number that is mostly the same, quartiles say nothing.
    if spread == 0:
        spread = (float(values.max()) - float(values.min())) / 2
    return median, spread or 1.0


def distance_of_others(
    values: np.ndarray, weights: np.ndarray | None
) -> tuple[float, float] | None:
    """Return the median, and how far from it the numbers are that differ from it.

    That is the root of the mean square. It is None unless the quartiles are equal, and of
    numbers that differ by no more than rounding.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.statistics import distance_of_others
    >>> distance_of_others(np.array([0.0, 0.0, 0.0, 0.0, 8.0]), None)
    (0.0, 8.0)
    """
    low, median, high = _quartiles(values, weights)
    differ = values != median
    if low != high or not differ.any():
        return None
    weights = None if weights is None else weights[differ]
    squares = np.square(values[differ].astype(np.float64) - median)
    distance = float(np.sqrt(np.average(squares, weights=weights)))
    # What `mean_and_scale` takes for a constant; squares of tiny numbers may be 0, too.
    if distance <= len(values) * np.finfo(np.float64).eps * abs(median):
        return None
    return median, distance


def _quartiles(
    values: np.ndarray, weights: np.ndarray | None
) -> tuple[float, float, float]:
    levels = np.array([0.25, 0.5, 0.75])
    if weights is None:
        # "inverted_cdf" of np.quantile, in a third of the time.
        places = np.ceil(levels * len(values)).astype(np.int64) - 1
        quartiles = np.partition(values, places)[places]
    else:
        distribution = Distribution.of(values, weights)
        quartiles = distribution.distinct[distribution.quantiles(levels)]
    low, median, high = map(float, quartiles)
    return low, median, high


def smoothly_clipped(values: np.ndarray) -> np.ndarray:
    """Return numbers from -3 to 3 that differ little from those near 0.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.statistics import smoothly_clipped
    >>> smoothly_clipped(np.array([-0.3, 4.0, 1e300])).round(2)
    array([-0.3,  2.4,  3. ])
    """
    # Else a square would overflow, and a huge number become 0 in place of 3.
    values = values.clip(-CLIPPED, CLIPPED)
    return values / np.sqrt(1 + np.square(values / 3))


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
    # Multiples of one power of two are added without rounding up to 2**53.
    _, exponent = np.frexp(weights.max())
    shift = 52 - len(weights).bit_length() - exponent  # of each sum to less than 2**52
    return np.ldexp(np.rint(np.ldexp(weights, shift)), -shift)


def can_hold(dtype: Any, value: float) -> bool:
    """Tell whether a number is in the range of a dtype, and whole if that must be."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return abs(value) <= float(np.finfo(dtype).max)
    limits = np.iinfo(dtype)
    return limits.min <= value <= limits.max and value == int(value)


# Where bins begin and end, for `bucketized_column` and `piecewise_linear_column`.

_RULE = re.compile(r"(quantiles|distinct|tree):([1-9][0-9]*)")
_MIN_ROWS = 3  # of a bin
_MIN_WIDTH = 1e-6  # of a bin, as a share of the range of most numbers


def check_boundaries(boundaries: Any, owner: str, dtype: Any, *, least: int) -> None:
    """Raise ValueError unless they are `least` sorted numbers or more, or a rule."""
    if isinstance(boundaries, str):
        rule = _RULE.fullmatch(boundaries)
        if rule is None or int(rule[2]) < 2:
            raise ValueError(
                f"'boundaries' of {owner} must be numbers, 'distinct:N', 'tree:N' or "
                f"'quantiles:N' with N of at least 2; got {boundaries!r}."
            )
        return
    # What the user lists is meant, so nothing is sorted, merged or rounded for them.
    given = np.asarray(boundaries)
    numbers = given.ndim == 1 and given.dtype.kind in "iuf"
    if not numbers or given.size < least:
        count = (
            "a non-empty list of numbers" if least == 1 else f"{least} numbers or more"
        )
        raise ValueError(
            f"'boundaries' of {owner} must be {count}, or 'quantiles:N', 'distinct:N' or "
            f"'tree:N'; got {boundaries!r}."
        )
    if not (np.isfinite(given).all() and (np.diff(given) > 0).all()):
        raise ValueError(
            f"'boundaries' of {owner} must be finite and sorted, each greater than "
            f"the one before; got {boundaries!r}."
        )
    for end in np.ceil(given[[0, -1]]).tolist():
        if not can_hold(dtype, end):
            raise ValueError(
                f"'boundaries' of {owner} must be in the range of the dtype of its "
                f"source, {np.dtype(dtype)}; got {end}."
            )


class Known(NamedTuple):
    """Numbers to learn edges from, and what belongs to each."""

    values: np.ndarray
    weights: np.ndarray | None
    target: Any


class EmptyColumnError(ValueError):
    """What a column raises that has to learn from a table and finds no values there."""


def empty_columns(missing: np.ndarray | None, table: Any) -> np.ndarray | None:
    """Return which columns have no number in a row that counts, or None if all have.

    Parameters
    ----------
    missing : ndarray of bool, shape (n_rows, n_columns), or None
        Which numbers are missing, if any are.
    table : Table
        Has the weights of the rows.
    """
    if missing is None:
        return None
    empty: np.ndarray = ~table.counted(~missing).any(axis=0)
    return empty if empty.any() else None


def known_numbers(values: np.ndarray, known: np.ndarray, table: Any, key: Any) -> Known:
    """Return the numbers in rows of positive weight that are known.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_elements)
        Numbers.
    known : ndarray of bool, shape (n_rows, n_elements)
        Which of them count.
    table : Table
        Has the weights of the rows, and what is to be predicted.
    key : str or int
        Of the raw column, for errors.

    Raises
    ------
    ValueError
        If there are none.
    """
    weight, target = table.weight, table.target
    known = table.counted(known)
    if not known.any():
        raise EmptyColumnError(
            f"Column {key!r} has no numbers to learn boundaries from. Give "
            "'boundaries' as numbers, or leave the column out."
        )
    rows, _ = known.nonzero()
    values = values[known]
    if target is not None and not isinstance(target, Mapping):
        check_consistent_length(known, target)
        target = np.asarray(target)[rows]
    weights = None if weight is None else weight[rows]
    return Known(values, weights, target)


def learned_starts(rule: str, known: Known) -> np.ndarray:
    """Return where bins begin, the first one at the least number or above.

    Parameters
    ----------
    rule : str
        "quantiles:N", of the rows; "distinct:N", of the distinct values: all of them if
        there are N or fewer; or "tree:N", the thresholds of a decision tree of this one
        feature with N leaves.
    known : Known
        Numbers. A weight counts as so many rows; weights of less than 1 in the mean are
        relative to their mean.

    Returns
    -------
    ndarray of the type of the numbers, at least one, increasing
        Bins that are narrower than 1e-6 of the distance between the quartiles, or of
        fewer than 3 rows, are merged with the one below, or that below is with them if
        they begin with a value that has so many rows by itself.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.statistics import Known, learned_starts
    >>> gains = np.repeat([0.0, 10.0, 11.0, 99.0], [500, 2, 1, 40])
    >>> learned_starts("distinct:48", Known(gains, None, None))
    array([ 0., 10., 99.])
    """
    # Candidates come from the rule; what follows merges bins that would learn from few
    # rows.
    kind, n = rule.split(":")
    distribution = Distribution.of(known.values, known.weights)
    if known.weights is not None:
        # Small weights count as rows on average, or no bin would have enough.
        counts = distribution.counts
        scale = max(1.0, len(known.values) / counts.sum())
        distribution = distribution._replace(counts=counts * scale)
    positions, starts = _STARTS[kind](int(n), known, distribution)
    distinct, counts = distribution
    below = np.concatenate([[0], counts.cumsum()])
    kept: list[int] = []  # of the candidates
    for i, position in enumerate(positions):
        is_frequent = starts[i] == distinct[position] and counts[position] >= _MIN_ROWS
        if not kept or below[position] - below[positions[kept[-1]]] >= _MIN_ROWS:
            kept.append(i)
        elif is_frequent:
            # A frequent number is a bin by itself, and the candidate before it gives
            # way.
            kept[-1] = i
    if len(kept) > 1 and below[-1] - below[positions[kept[-1]]] < _MIN_ROWS:
        # Too few rows are left for a last bin: they go to the one before it.
        kept.pop()
    # So narrow a bin has slopes that no step size suits.
    width = _MIN_WIDTH * distribution.spread
    wide = kept[:1]
    for i in kept[1:]:
        if float(starts[i]) - float(starts[wide[-1]]) >= width:
            wide.append(i)
    return starts[wide]


def learned_edges(rule: str, known: Known) -> np.ndarray:
    """Return where bins begin, as `learned_starts`, and where the last one ends.

    It ends at the greatest number; of a number that is always the same, anywhere.

    Raises
    ------
    ValueError
        If the numbers are too far apart for their type.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.statistics import Known, learned_edges
    >>> learned_edges("quantiles:2", Known(np.arange(50.0), None, None))
    array([ 0., 24., 49.])
    """
    starts = learned_starts(rule, known)
    least, greatest = float(known.values.min()), float(known.values.max())
    too_large = known.values.dtype.kind == "f" and not can_hold(
        known.values.dtype, greatest - least
    )
    if too_large:
        raise ValueError(
            f"Numbers from {least} to {greatest} are too far apart to learn boundaries "
            "from. Scale them, for example by taking logarithms."
        )
    if len(starts) > 1 and greatest - starts[-1] < _MIN_WIDTH * (greatest - starts[0]):
        return starts
    if greatest == starts[-1]:
        greatest += max(1, abs(greatest) * _MIN_WIDTH)
    return np.append(starts.astype(np.float64), greatest)


# Each returns positions among the distinct numbers, 0 first, of the first number of each
# bin, and where the bin starts: at that number, or between it and the one before.
_Starts = tuple[np.ndarray, np.ndarray]


def _of_quantiles(n: int, known: Known, distribution: Distribution) -> _Starts:
    positions = np.unique(distribution.quantiles(np.arange(n + 1) / n))
    return positions, distribution.distinct[positions]


def _of_distinct(n: int, known: Known, distribution: Distribution) -> _Starts:
    n_all = len(distribution.distinct)
    positions = np.linspace(0, n_all - 1, min(n, n_all)).round().astype(np.int64)
    return positions, distribution.distinct[positions]


def _of_tree(n: int, known: Known, distribution: Distribution) -> _Starts:
    target, distinct = known.target, distribution.distinct
    if target is None or isinstance(target, Mapping):
        got = "none" if target is None else f"several ({', '.join(map(str, target))})"
        raise ValueError(
            f"boundaries='tree:{n}' needs one target y to learn from; got {got}. Give y "
            f"to fit, or use 'distinct:{n}'."
        )
    # Loads half of scikit-learn, which takes as long as the rest of skest.
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    make = DecisionTreeRegressor if target.dtype.kind == "f" else DecisionTreeClassifier
    # Ranks, because a tree has its numbers in float32.
    ranks = np.searchsorted(distinct, known.values)[:, np.newaxis]
    least = min(_MIN_ROWS / distribution.counts.sum(), 0.5)
    tree = make(max_leaf_nodes=n, min_weight_fraction_leaf=least, random_state=0)
    tree.fit(ranks, target, sample_weight=known.weights)
    splits = tree.tree_.threshold[tree.tree_.children_left >= 0]
    positions = np.unique(np.floor(splits).astype(np.int64) + 1)
    low, high = distinct[positions - 1], distinct[positions]
    # Halves, since the difference of two finite numbers may be infinite.
    middle = (low + (high / 2 - low / 2)).astype(distinct.dtype)
    starts = np.where((low < middle) & (middle < high), middle, high)
    return np.append(0, positions), np.append(distinct[:1], starts)


_STARTS = {"quantiles": _of_quantiles, "distinct": _of_distinct, "tree": _of_tree}
