# SPDX-License-Identifier: Apache-2.0
"""`bucketized_column`: numbers cut at boundaries."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from skest.feature_columns.base import CategoricalColumn, DenseColumn, FittedPart
from skest.feature_columns.edges import (
    Known,
    check_boundaries,
    known_numbers,
    learned_starts,
)
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.quantiles import Distribution
from skest.feature_columns.table import Key, Table

__all__ = ["BucketizedColumn", "bucketized_column"]


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


class BucketizedColumn(DenseColumn, CategoricalColumn):
    """Column made by `bucketized_column`, where the parameters are documented.

    Attributes
    ----------
    source_column_ : NumericColumn
        The fitted source.
    boundaries_ : ndarray of shape (n_boundaries,)
        Boundaries, given or learned, in the dtype of the source.
    """

    source = FittedPart("source_column")

    def __init__(
        self, source_column: NumericColumn, boundaries: Sequence[float] | str
    ) -> None:
        self.source_column = source_column
        self.boundaries = boundaries

    @property
    def name(self) -> str:
        """Name of the source and ``_bucketized``."""
        return f"{self.source_column.name}_bucketized"

    @property
    def feature_keys(self) -> tuple[Key, ...]:
        """The key of the source."""
        return self.source_column.feature_keys

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
            boundaries = np.ceil(
                boundaries
            )  # no integer is between, and 0 is below 0.5
        return boundaries.astype(dtype)

    def _validate(self) -> None:
        if not isinstance(self.source_column, NumericColumn):
            raise TypeError(
                "'source_column' of a bucketized column must come from numeric_column; "
                f"got {self.source_column!r}."
            )
        if self.source_column.length_key is not None:
            raise ValueError(
                "'source_column' of a bucketized column must come from numeric_column; "
                f"got the sequence column {self.source_column.name!r}. Cut its numbers "
                "beforehand, and use a sequence_categorical_column."
            )
        self.source_column.validated()
        owner = f"bucketized column {self.source_column.name!r}"
        if len(self.source_column.cell_shape) != 1:
            raise ValueError(
                f"The source of {owner} must have a shape of one dimension; got "
                f"{self.source_column.cell_shape}. Flatten its cells."
            )
        if self.source_column.indicate_missing:
            raise ValueError(
                f"The source of {owner} must have indicate_missing=False; indicators "
                "cannot be cut into buckets. Use another numeric column for them."
            )
        check_boundaries(self.boundaries, owner, self.source_column.dtype, least=1)

    @property
    def _n_quantiles(self) -> int:
        return int(str(self.boundaries).removeprefix("quantiles:"))

    def _learn(self, table: Table, sample_weight: np.ndarray | None) -> dict[str, Any]:
        source = self.source_column.fitted(table, sample_weight)
        learned: dict[str, Any] = {"source_column_": source}
        if not isinstance(self.boundaries, str):
            return learned | {"boundaries_": self.cuts}
        values, missing = source.values(table)
        known = ~missing if source.default_value is None else np.ones_like(missing)
        numbers = known_numbers(values, known, sample_weight, table.target, source.key)
        if self.boundaries.startswith("quantiles:"):
            boundaries = _quantiles(numbers, self._n_quantiles)
        else:
            starts = learned_starts(self.boundaries, numbers)
            boundaries = starts[min(1, len(starts) - 1) :]  # nothing is below the first
        return learned | {"boundaries_": boundaries.astype(source.dtype)}

    def ids(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids; every cell holds a value, since NaN has a bucket."""
        values, missing = self.source.values(table)
        cuts = self.cuts
        ids = np.searchsorted(cuts, values.ravel(), side="right").reshape(values.shape)
        if self.source.default_value is None:
            ids[missing] = len(cuts)
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
    first = min(1, len(distribution.distinct) - 1)
    return distribution.distinct[np.unique(positions.clip(first))]
