# SPDX-License-Identifier: Apache-2.0
"""The raw features that a user's own ``loss_fn`` may ask for."""

from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from skest.feature_columns.table import Table

__all__ = ["LossFeatures", "loss_features", "number_columns"]


class LossFeatures(dict[Any, Tensor]):
    """Columns of numbers by key; a key that is missing is an error that lists the others.

    Parameters
    ----------
    columns : dict of Tensor
        The columns.
    owner : str
        The head, for the message.
    """

    def __init__(self, columns: Mapping[Any, Tensor], owner: str) -> None:
        super().__init__(columns)
        self._owner = owner

    def __missing__(self, key: Any) -> NoReturn:
        listed = ", ".join(map(repr, self)) or "none"
        raise ValueError(
            f"'loss_fn' of {self._owner} asks for the feature {key!r}, but the columns of "
            f"numbers among the raw features are {listed}. Add it to the features, as "
            "numbers."
        )


def number_columns(features: Any) -> dict[Any, Tensor]:
    """Return the columns of raw features that hold numbers, as tensors by key.

    Parameters
    ----------
    features : DataFrame, dict of arrays or tensors, array, or None
        Raw features.

    Returns
    -------
    dict of Tensor
        Tensors as they came, all others as floats. Missing numbers are NaN. What is no
        column of numbers (strings, dates, lists of different lengths) is left out.

    Examples
    --------
    >>> from skest.heads.loss_features import number_columns
    >>> number_columns({"area": [30, 50], "city": ["Bern", "Oslo"]})
    {'area': tensor([30., 50.], dtype=torch.float64)}
    """
    columns: dict[Any, Tensor] = {}
    if isinstance(features, Mapping):
        columns = {k: v for k, v in features.items() if isinstance(v, Tensor)}
        features = {
            k: v for k, v in features.items() if not isinstance(v, Tensor | Mapping)
        }
    if features is None or (isinstance(features, Mapping) and not features):
        return columns
    table = Table(features)
    whole = () if table.whole_key is None else (table.whole_key,)
    for key in (*table.keys, *whole):
        try:
            numbers = table.numbers(key)
        except (TypeError, ValueError):  # no numbers, which the loss may not need
            continue
        floats = numbers.astype(np.promote_types(numbers.dtype, np.float32))
        columns[key] = torch.from_numpy(floats)
    return columns


def loss_features(features: Any, key: str, logits: Tensor, owner: str) -> Any:
    """Return what a ``loss_fn`` gets as ``features``.

    Parameters
    ----------
    features : dict of Tensor, or raw features
        Encoded features, with the result of `number_columns` under `key`; or raw ones.
    key : str
        Where encoded features have them.
    logits : Tensor
        Its floating type and device are those of the result.
    owner : str
        The head, for messages.

    Returns
    -------
    LossFeatures, or Tensor
        Columns of shape (n,) become (n, 1), as a column of labels is; else they would
        broadcast with it to (n, n). A tensor alone has no columns and stays itself.
    """
    if isinstance(features, Tensor):
        return features
    encoded = isinstance(features, Mapping) and key in features
    columns = features[key] if encoded else number_columns(features)
    return LossFeatures(
        {name: _beside(column, logits) for name, column in columns.items()}, owner
    )


def _beside(column: Tensor, logits: Tensor) -> Tensor:
    column = column.to(device=logits.device, dtype=logits.dtype)
    return column.unsqueeze(-1) if column.ndim == 1 else column
