# SPDX-License-Identifier: Apache-2.0
"""`bucketized_column`: numbers cut at boundaries, given or learned."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from skest.feature_columns.base import CategoricalColumn
from skest.feature_columns.numeric import NumericColumn, OverNumeric
from skest.feature_columns.statistics import (
    Distribution,
    Known,
    check_boundaries,
    known_numbers,
    learned_starts,
)
from skest.feature_columns.table import Table


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

    allows_missing = True  # there is a bucket for missing numbers
    _encoded = CategoricalColumn._encoded  # ids, also for a deep model

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
        # As TensorFlow, whose ids are numbered along this one dimension.
        if len(self.source_column.cell_shape) != 1:
            raise ValueError(
                f"The source of {owner} must have a shape of one dimension; got "
                f"{self.source_column.cell_shape}. Flatten its cells."
            )
        check_boundaries(self.boundaries, owner, self.source_column.dtype, least=1)

    def _learn(self, table: Table) -> dict[str, Any]:
        source = self.source_column.fitted(table, table.weight)
        learned: dict[str, Any] = {"source_column_": source}
        if not isinstance(self.boundaries, str):
            return learned | {"boundaries_": self.cuts}
        values, unknown = source.values(table)
        known = np.ones(values.shape, bool) if unknown is None else ~unknown
        numbers = known_numbers(values, known, table, source.key)
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
        # A boundary itself belongs to the bucket above it, as in TensorFlow.
        ids = np.searchsorted(cuts, values.ravel(), side="right").reshape(values.shape)
        if unknown is not None:
            # Of TensorFlow's Bucketize, to which NaN is greater than every boundary.
            ids[unknown] = len(cuts)
        # As in TensorFlow, every element has buckets of its own behind those before it.
        ids += np.arange(values.shape[1]) * (len(cuts) + 1)
        return ids, np.ones(ids.shape, dtype=bool)

    def _categories_of(self, ids: np.ndarray) -> np.ndarray:
        ends = np.concatenate([[-np.inf], self.cuts, [np.inf]])
        # Closed on the left, as `ids` has a boundary in the bucket above it.
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
    # Numbers that occur, as of "inverted_cdf" in np.quantile.
    positions = distribution.quantiles(np.arange(1, n) / n)
    # Not the least number, below which no bucket would have anything.
    first = min(1, len(distribution.distinct) - 1)
    return distribution.distinct[np.unique(positions.clip(first))]
