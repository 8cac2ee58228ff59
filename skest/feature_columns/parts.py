# SPDX-License-Identifier: Apache-2.0
"""`PartsEncoding`: how a model encodes its features that consists of parts."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.table import Table

__all__ = ["PartsEncoding"]


class PartsEncoding:
    """Encodes the features of a model for each of its parts.

    Parameters
    ----------
    parts : dict of str to FeatureColumns or None
        Fitted columns by the name of the part; they must not change any more. A part
        that has none is left out.
    dtype : torch.dtype
        Type of the numbers.

    Examples
    --------
    >>> import torch
    >>> from skest.feature_columns import FeatureColumns, numeric_column
    >>> from skest.feature_columns.parts import PartsEncoding
    >>> columns = FeatureColumns([numeric_column("x")])
    >>> PartsEncoding({"linear": columns, "dnn": None}, torch.float32)({"x": [1, 2]})
    {'linear': {'x': tensor([[1.],
            [2.]])}}
    """

    def __init__(
        self, parts: Mapping[str, FeatureColumns | None], dtype: torch.dtype
    ) -> None:
        self.parts = {name: own for name, own in parts.items() if own is not None}
        self.dtype = dtype

    def __call__(self, features: Any) -> dict[str, dict[str, Tensor]]:
        """Return what `FeatureColumns.encode` does, by part."""
        table = Table(features)  # looks up every distinct string once for all parts
        encoded = {
            name: columns.encode(table, self.dtype)
            for name, columns in self.parts.items()
        }
        shared: dict[str, Tensor] = {}
        for part in encoded.values():
            for key, tensor in part.items():
                first = shared.setdefault(key, tensor)
                # One tensor for all, so that rows are taken once and looked up once.
                if first.dtype == tensor.dtype and torch.equal(first, tensor):
                    part[key] = first
        return encoded
