# SPDX-License-Identifier: Apache-2.0
"""Embedding columns with the vectors that a network has learned."""

import copy
from collections.abc import Mapping
from typing import Any

from skest.adapters.parts import table_scope
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.dense import EmbeddingColumn
from skest.feature_columns.modules import module_name, parameter_name
from skest.feature_columns.periodic import PARAMETERS, PeriodicColumn
from skest.feature_columns.trained import TrainedColumn

__all__ = ["drop_embeddings", "keep_embeddings", "with_learned_vectors"]


def keep_embeddings(model: Any) -> None:
    """Give the fitted embedding columns their learned vectors, for `transform`.

    Parameters
    ----------
    model : SkestEstimator
        It is fitted; its columns are replaced.
    """
    checkpoint = model.estimator_.checkpoint
    variables = {} if checkpoint is None else checkpoint.variables
    for parameter, kind in model._column_parameters.items():
        _replace_columns(model, parameter, table_scope(parameter, kind), variables)


def drop_embeddings(model: Any) -> None:
    """Undo `keep_embeddings`: the vectors are in the checkpoint anyway."""
    for parameter in model._column_parameters:
        _replace_columns(model, parameter, "", {})


def _replace_columns(
    model: Any, parameter: str, scope: str, variables: Mapping[str, Any]
) -> None:
    columns = getattr(model, f"{parameter}_", None)
    if columns is not None:
        learned = with_learned_vectors(columns, scope, variables)
        setattr(model, f"{parameter}_", learned)


def with_learned_vectors(
    columns: FeatureColumns, scope: str, variables: Mapping[str, Any]
) -> FeatureColumns:
    """Return columns whose embeddings have their learned vectors, if there are some."""
    changed = []
    for name, column in columns.columns_:
        if isinstance(column, TrainedColumn):
            column = copy.copy(column)
            column.__dict__.pop("weights_", None)
            learned = _learned_by(column, scope, variables)
            if learned is not None:
                column.weights_ = learned
        changed.append((name, column))
    columns = copy.copy(columns)
    columns.columns_ = changed
    return columns


def _learned_by(
    column: TrainedColumn, scope: str, variables: Mapping[str, Any]
) -> Any | None:
    """Return what a network has learned of a column, in the checkpoint's memory."""
    if isinstance(column, EmbeddingColumn):
        table = variables.get(scope + parameter_name(column.table_name))
        return None if table is None else table.numpy()
    if isinstance(column, PeriodicColumn):
        names = {n: f"{scope}{module_name(column.name)}.{n}" for n in PARAMETERS}
        if set(names.values()) <= variables.keys():
            return {n: variables[name].numpy() for n, name in names.items()}
    return None
