# SPDX-License-Identifier: Apache-2.0
"""`Rows`: a table with its labels and weights."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn.utils import check_consistent_length

from skest.adapters.features import WEIGHT_KEY
from skest.inputs.array_dataset import take_rows

__all__ = ["Rows", "as_rows", "check_same_length", "count_samples"]


class Rows(NamedTuple):
    """A table with its labels and weights."""

    features: dict[str, Any]
    labels: Any
    weight: NDArray[Any] | None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return count_samples(self.features)

    def take(self, rows: NDArray[Any]) -> "Rows":
        """Return some of the rows."""
        weight = None if self.weight is None else self.weight[rows]
        return Rows(
            take_rows(self.features, rows), take_rows(self.labels, rows), weight
        )

    def with_normalised_weight(self) -> dict[str, Any]:
        """Return the features with the weights, scaled to a mean of one over the table.

        A head divides the weighted loss of a batch by its rows. With weights of mean
        one, that is the unbiased estimate of the weighted mean over all rows; dividing
        each batch by its own weights would be biased.
        """
        if self.weight is None:
            return self.features
        return self.features | {WEIGHT_KEY: self.weight / self.weight.mean()}


def count_samples(features: Mapping[Any, Any]) -> int:
    """Return the number of rows of columns by key."""
    column = next(iter(features.values()))
    return int(column.shape[0]) if issparse(column) else len(column)


def as_rows(y: Any) -> Any:
    """Return `y` as something whose rows can be taken; lists become arrays."""
    if isinstance(y, Mapping):
        return {key: as_rows(values) for key, values in y.items()}
    if issparse(y):
        return y.tocsr()
    if hasattr(y, "shape"):
        return y
    try:
        array = np.asarray(y)
    except ValueError:  # lists of different lengths
        return np.fromiter(y, dtype=object, count=len(y))
    # NumPy turns numbers among strings into strings without a word.
    return np.asarray(y, dtype=object) if array.dtype.kind in "US" else array


def check_same_length(features: Mapping[Any, Any], y: Any) -> None:
    """Refuse labels that are not as many as the rows."""
    some_column = next(iter(features.values()))
    check_consistent_length(
        some_column, *(y.values() if isinstance(y, Mapping) else [y])
    )
