# SPDX-License-Identifier: Apache-2.0
"""`bucketized_column`: numbers cut at boundaries, given or learned."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor
from sklearn.utils import check_consistent_length

from skest.feature_columns.base import CategoricalColumn
from skest.feature_columns.numeric import NumericColumn, OverNumeric, can_hold
from skest.feature_columns.statistics import Distribution, summable
from skest.feature_columns.table import Table

_RULE = re.compile(r"(quantiles|distinct|tree):([1-9][0-9]*)")
_MIN_ROWS = 3  # of a bin
_MIN_WIDTH = 1e-6  # of a bin, as a share of the range


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


def known_numbers(
    values: np.ndarray,
    known: np.ndarray,
    sample_weight: np.ndarray | None,
    target: Any,
    key: Any,
) -> Known:
    """Return the numbers in rows of positive weight that are known.

    Parameters
    ----------
    values : ndarray of shape (n_rows, n_elements)
        Numbers.
    known : ndarray of bool, shape (n_rows, n_elements)
        Which of them count.
    sample_weight : ndarray of shape (n_rows,), or None
        Weights of the rows.
    target : array-like of shape (n_rows, ...), or None
        What is to be predicted.
    key : str or int
        Of the raw column, for errors.

    Raises
    ------
    ValueError
        If there are none.
    """
    if sample_weight is not None:
        known = known & (sample_weight > 0)[:, np.newaxis]
    if not known.any():
        raise ValueError(
            f"Column {key!r} has no numbers to learn boundaries from. Give "
            "'boundaries' as numbers, or leave the column out."
        )
    rows, _ = known.nonzero()
    values = values[known]
    if target is not None and not isinstance(target, Mapping):
        check_consistent_length(known, target)
        target = np.asarray(target)[rows]
    weights = None if sample_weight is None else sample_weight[rows]
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
        Bins that are narrower than 1e-6 of the range, or of fewer than 3 rows, are
        merged with the one below, or that below is with them if they begin with a value
        that has so many rows by itself.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.bucketized import Known, learned_starts
    >>> gains = np.repeat([0.0, 10.0, 11.0, 99.0], [500, 2, 1, 40])
    >>> learned_starts("distinct:48", Known(gains, None, None))
    array([ 0., 10., 99.])
    """
    kind, n = rule.split(":")
    distinct, counts = _counted(known)
    below = np.concatenate([[0], counts.cumsum()])
    positions, starts = _STARTS[kind](int(n), known, distinct, below)
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
    width = _MIN_WIDTH * (float(distinct[-1]) - float(distinct[0]))
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
    >>> from skest.feature_columns.bucketized import Known, learned_edges
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
    if len(starts) > 1 and greatest - starts[-1] < _MIN_WIDTH * (greatest - least):
        return starts
    if greatest == starts[-1]:
        greatest += max(1, abs(greatest) * _MIN_WIDTH)
    return np.append(starts.astype(np.float64), greatest)


def _counted(known: Known) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct numbers, and how many rows have each."""
    if known.weights is None:
        return np.unique(known.values, return_counts=True)
    distinct, codes = np.unique(known.values, return_inverse=True)
    counts = np.bincount(codes, summable(known.weights))
    # Weights that are small on average count as rows, or no bin would have enough.
    return distinct, counts * max(1.0, len(codes) / counts.sum())


# Each returns positions among the distinct numbers, 0 first, of the first number of each
# bin, and where the bin starts: at that number, or between it and the one before.
_Starts = tuple[np.ndarray, np.ndarray]


def _of_quantiles(n: int, known: Known, distinct: np.ndarray, below: Any) -> _Starts:
    share = Distribution(distinct, below[1:] / below[-1])
    positions = np.unique(share.quantiles(np.arange(n + 1) / n))
    return positions, distinct[positions]


def _of_distinct(n: int, known: Known, distinct: np.ndarray, below: Any) -> _Starts:
    n_all = len(distinct)
    positions = np.linspace(0, n_all - 1, min(n, n_all)).round().astype(np.int64)
    return positions, distinct[positions]


def _of_tree(n: int, known: Known, distinct: np.ndarray, below: Any) -> _Starts:
    target = known.target
    if target is None or isinstance(target, Mapping):
        got = "none" if target is None else f"several ({', '.join(map(str, target))})"
        raise ValueError(
            f"boundaries='tree:{n}' needs one target y to learn from; got {got}. Give y "
            f"to fit, or use 'distinct:{n}'."
        )
    make = DecisionTreeRegressor if target.dtype.kind == "f" else DecisionTreeClassifier
    # Ranks, because a tree has its numbers in float32.
    ranks = np.searchsorted(distinct, known.values)[:, np.newaxis]
    least = min(_MIN_ROWS / below[-1], 0.5)
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


def bucketized_column(
    source_column: NumericColumn, boundaries: Sequence[float] | str
) -> "BucketizedColumn":
    """Cut numbers into buckets.

    It is dense and categorical at once: a deep model and `transform` take a one-hot
    vector for each element of the source; a linear model, an embedding or a cross take
    ids, ``element * (n_boundaries + 1) + bucket``. The bucket of x is the number of
    boundaries that are not greater than x, after the source has filled and scaled it. A
    missing number for which the source has no value falls in the last bucket.

    Parameters
    ----------
    source_column : NumericColumn
        With a shape of one dimension, and without indicators of missing numbers.
    boundaries : sequence of float, "quantiles:N", "distinct:N" or "tree:N"
        Strictly increasing boundaries; "quantiles:10" learns the deciles of the
        training data. They are numbers that occur, and weights count as repetitions.
        Equal ones count once, so that there may be fewer. In place of one that is the
        least number, and so would have nothing below it, comes the next greater number:
        of an amount that is mostly 0, the first bucket holds the zeros. The other two
        learn as `piecewise_linear_column` does, with elements of a cell taken together.

    Returns
    -------
    BucketizedColumn

    Raises
    ------
    ValueError, TypeError
        If a parameter is wrong.

    Notes
    -----
    The semantics are those of ``tf.feature_column.bucketized_column``; learned
    boundaries are an addition. Boundaries are cast to the dtype of the source; those
    between two integers are rounded up if it is one of integers.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns import bucketized_column, numeric_column
    >>> column = bucketized_column(numeric_column("age"), [18, 65])
    >>> column.encode({"age": np.array([3.0, 18.0, 70.0])})["age_bucketized_ids"]
    array([[0],
           [1],
           [2]])
    """
    return BucketizedColumn(source_column, boundaries).validated()


@dataclass(eq=False, repr=False)
class BucketizedColumn(OverNumeric, CategoricalColumn):
    """Column made by `bucketized_column`, where the parameters are documented.

    Attributes
    ----------
    source_column_ : NumericColumn
        The fitted source.
    boundaries_ : ndarray of shape (n_boundaries,)
        Boundaries, given or learned, in the dtype of the source.
    """

    source_column: NumericColumn
    boundaries: Sequence[float] | str

    @property
    def name(self) -> str:
        """Name of the source and ``_bucketized``."""
        return f"{self.source_column.name}_bucketized"

    @property
    def num_buckets(self) -> int:
        """Buckets of all elements together."""
        return (len(self.cuts) + 1) * self.source_column.n_elements

    @property
    def size(self) -> int:
        """Width of the one-hot output, `num_buckets`."""
        return self.num_buckets

    @property
    def allows_missing(self) -> bool:
        """True: there is a bucket for missing numbers."""
        return True

    @property
    def needs_fit(self) -> bool:
        """Whether boundaries, or something of the source, are to be learned."""
        return isinstance(self.boundaries, str) or super().needs_fit

    @property
    def cuts(self) -> np.ndarray:
        """Boundaries in the dtype of the source."""
        if "boundaries_" not in vars(self) and not isinstance(self.boundaries, str):
            return self._cast(np.asarray(self.boundaries))
        return self._learned("boundaries_", "give 'boundaries' as numbers")

    def _cast(self, boundaries: np.ndarray) -> np.ndarray:
        dtype = np.dtype(self.source_column.dtype)
        if dtype.kind == "i" and boundaries.dtype.kind == "f":
            boundaries = np.ceil(boundaries)  # no integer is between; 0 is below 0.5
        return boundaries.astype(dtype)

    def _validate(self) -> None:
        owner = self._validate_source("bucketized")
        if len(self.source_column.cell_shape) != 1:
            raise ValueError(
                f"The source of {owner} must have a shape of one dimension; got "
                f"{self.source_column.cell_shape}. Flatten its cells."
            )
        check_boundaries(self.boundaries, owner, self.source_column.dtype, least=1)

    def _learn(self, table: Table, sample_weight: np.ndarray | None) -> dict[str, Any]:
        source = self.source_column.fitted(table, sample_weight)
        learned: dict[str, Any] = {"source_column_": source}
        if not isinstance(self.boundaries, str):
            return learned | {"boundaries_": self.cuts}
        values, unknown = source.values(table)
        known = np.ones(values.shape, bool) if unknown is None else ~unknown
        numbers = known_numbers(values, known, sample_weight, table.target, source.key)
        if self.boundaries.startswith("quantiles:"):
            n = int(self.boundaries.removeprefix("quantiles:"))
            boundaries = _quantiles(numbers, n)
        else:
            starts = learned_starts(self.boundaries, numbers)
            boundaries = starts[min(1, len(starts) - 1) :]  # nothing is below the first
        return learned | {"boundaries_": boundaries.astype(source.dtype)}

    def ids(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids; every cell holds a value, since NaN has a bucket."""
        values, unknown = self.source.values(table)
        cuts = self.cuts
        ids = np.searchsorted(cuts, values.ravel(), side="right").reshape(values.shape)
        if unknown is not None:
            ids[unknown] = len(cuts)
        # As in TensorFlow, every element has buckets of its own behind those before it.
        ids += np.arange(values.shape[1]) * (len(cuts) + 1)
        return ids, np.ones(ids.shape, dtype=bool)

    def _categories_of(self, ids: np.ndarray) -> np.ndarray:
        ends = np.concatenate([[-np.inf], self.cuts, [np.inf]])
        intervals = pd.IntervalIndex.from_breaks(ends, closed="left")
        return intervals.astype(object).to_numpy()[ids % len(intervals)]

    def _bucket_names(self) -> list[str]:
        buckets = range(len(self.cuts) + 1)
        if self.source_column.n_elements == 1:
            return [str(bucket) for bucket in buckets]
        elements = range(self.source_column.n_elements)
        return [f"{element}_{bucket}" for element in elements for bucket in buckets]


def _quantiles(numbers: Known, n: int) -> np.ndarray:
    distribution = Distribution.of(numbers.values, numbers.weights)
    positions = distribution.quantiles(np.arange(1, n) / n)
    # Not the least number, below which no bucket would have anything.
    first = min(1, len(distribution.distinct) - 1)
    return distribution.distinct[np.unique(positions.clip(first))]
