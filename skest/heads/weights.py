# SPDX-License-Identifier: Apache-2.0
"""Weights of examples, read from a column of the features."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from skest.feature_columns.table import Table
from skest.heads.labels import first

__all__ = ["WeightColumn", "align_weights", "check_weight_column", "encode_weights"]


@runtime_checkable
class WeightColumn(Protocol):
    """What a head asks of a column that computes weights; a `NumericColumn` is one."""

    @property
    def feature_keys(self) -> tuple[Any, ...]:
        """Keys of the raw columns that it reads."""

    def encode(self, X: Any) -> Mapping[str, np.ndarray]:
        """Return the weights as the only value of a dictionary."""


def check_weight_column(column: Any, owner: str) -> None:
    """Raise TypeError unless `column` is None, a key or a `WeightColumn`."""
    if column is not None and not isinstance(column, str | WeightColumn):
        raise TypeError(
            f"'weight_column' of {owner} must be the name of a feature or a numeric "
            f"column; got {column!r}."
        )


def encode_weights(features: Any, column: str | WeightColumn, owner: str) -> Tensor:
    """Read the weights from raw features and check them.

    Parameters
    ----------
    features : DataFrame, or dict of arrays or tensors
        Raw features. A tensor is taken as it is, without a look at its values.
    column : str or WeightColumn
        Where the weights are.
    owner : str
        The head, for the message.

    Returns
    -------
    Tensor of numbers, shape (n,), (n, 1) or as it came

    Raises
    ------
    ValueError
        If the column is missing or has a value that is not finite.
    TypeError
        If the values are not numbers.
    """
    needed = (column,) if isinstance(column, str) else column.feature_keys
    _check_present(features, needed, owner)
    if isinstance(column, str):
        if isinstance(features, Mapping) and isinstance(features[column], Tensor):
            return features[column]
        values = Table(features).column(column)
    else:
        (values,) = column.encode(features).values()
    if values.dtype.kind not in "biuf":
        raise TypeError(
            f"Weights of {owner}, column {needed[0]!r}, must be numbers; got "
            f"{first(values)} of dtype {values.dtype}."
        )
    finite = np.isfinite(values)
    if not finite.all():
        row = int(np.argwhere(~finite)[0][0])
        raise ValueError(
            f"Weights of {owner}, column {needed[0]!r}, must be finite; got "
            f"{values[~finite][0]} in row {row}."
        )
    return torch.tensor(values)


def align_weights(
    weights: Tensor, logits: Tensor, per_logit: bool, owner: str
) -> Tensor:
    """Return weights that broadcast to the logits.

    Parameters
    ----------
    weights : Tensor of shape (...), (..., 1) or (..., logits_dimension)
        The last only if `per_logit`.
    logits : Tensor of shape (..., logits_dimension)
        The logits of the same rows.
    per_logit : bool
        Whether every logit may have its own weight.
    owner : str
        The head, for the message.

    Returns
    -------
    Tensor of shape (..., 1) or (..., logits_dimension)

    Raises
    ------
    ValueError
        If the shape is another.
    """
    aligned = weights.unsqueeze(-1) if weights.ndim == logits.ndim - 1 else weights
    one_per_row = (*logits.shape[:-1], 1)
    if aligned.shape == one_per_row or (per_logit and aligned.shape == logits.shape):
        return aligned
    also = f" or {tuple(logits.shape)}" if per_logit else ""
    raise ValueError(
        f"Weights of {owner} must have shape {one_per_row[:-1]}, {one_per_row}{also} for "
        f"logits of shape {tuple(logits.shape)}; got {tuple(weights.shape)}."
    )


def _check_present(features: Any, needed: tuple[Any, ...], owner: str) -> None:
    if features is None:
        present: list[Any] = []
    elif isinstance(features, Mapping):
        present = list(features)
    else:
        present = Table(features).keys
    for key in needed:
        if key not in present:
            raise ValueError(
                f"{owner} needs its weight_column {key!r} among the features to train "
                f"or evaluate; got {', '.join(map(repr, present[:12])) or 'none'}."
            )
