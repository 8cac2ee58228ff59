# SPDX-License-Identifier: Apache-2.0
"""Embedding columns with the vectors that a network has learned."""

import copy
from collections.abc import Mapping
from typing import Any

from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.dense import EmbeddingColumn
from skest.feature_columns.modules import parameter_name

__all__ = ["with_learned_vectors"]


def with_learned_vectors(
    columns: FeatureColumns, scope: str, variables: Mapping[str, Any]
) -> FeatureColumns:
    """Return columns whose embeddings have their learned vectors, if there are some."""
    changed = []
    for name, column in columns.columns_:
        if isinstance(column, EmbeddingColumn):
            column = copy.copy(column)
            column.__dict__.pop("weights_", None)
            learned = variables.get(scope + parameter_name(column.table_name))
            if learned is not None:
                column.weights_ = learned.numpy()  # the checkpoint's memory
        changed.append((name, column))
    columns = copy.copy(columns)
    columns.columns_ = changed
    return columns
