# SPDX-License-Identifier: Apache-2.0
"""Columns over a categorical column: what they share."""

from typing import Any

import numpy as np

from skest.feature_columns.base import CategoricalColumn, FeatureColumn, FittedPart
from skest.feature_columns.table import Key, Table

__all__ = ["CategoricalOver", "OverCategorical", "innermost"]


class OverCategorical(FeatureColumn):
    """Column over a categorical one, the parameter `categorical_column`."""

    categorical_column: CategoricalColumn
    categorical = FittedPart("categorical_column")

    @property
    def feature_keys(self) -> tuple[Key, ...]:
        """Keys of the categorical column."""
        return self.categorical_column.feature_keys

    def _learn(self, table: Table, sample_weight: np.ndarray | None) -> dict[str, Any]:
        fitted = self.categorical_column.fitted(table, sample_weight)
        return {"categorical_column_": fitted}

    def training_features(
        self,
        table: Table,
        sample_weight: np.ndarray | None,
        generator: np.random.Generator,
    ) -> dict[str, np.ndarray]:
        """Return those of the categorical column."""
        return self.categorical.training_features(table, sample_weight, generator)

    @property
    def has_inverse(self) -> bool:
        """Whether the categorical column has an inverse."""
        return self.categorical_column.has_inverse

    def inverse(self, ids: Any) -> np.ndarray:
        """Return the categories that ids stand for, see `CategoricalColumn.inverse`."""
        return self.categorical.inverse(ids)


class CategoricalOver(OverCategorical, CategoricalColumn):
    """Categorical column that has its ids from another one."""

    @property
    def num_buckets(self) -> int:
        """Number of ids."""
        return self.categorical.num_buckets

    def ids(self, table: Table) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of all cells, and which cells hold a value at all."""
        return self.categorical.ids(table)

    def _bucket_names(self) -> list[str]:
        return self.categorical._bucket_names()


def innermost(column: Any) -> Any:
    """Return what gives the ids, inside of weights and sequences."""
    while isinstance(column, CategoricalOver):
        column = column.categorical_column
    return column
