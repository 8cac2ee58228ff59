# SPDX-License-Identifier: Apache-2.0
"""Features and names of networks that consist of parts."""

from typing import Any

import torch
from torch import Tensor

from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.table import Table

__all__ = ["encode_parts", "part_prefix", "table_scope"]

# Where a network keeps the embedding tables of its columns.
_SCOPES = {"dense": "inputs.", "linear": "dense.", "sequence": "", "context": ""}


def part_prefix(parameter: str) -> str:
    """Return what names of variables begin with in the part for a column parameter.

    Examples
    --------
    >>> from skest.adapters.parts import part_prefix
    >>> part_prefix("dnn_feature_columns"), part_prefix("feature_columns")
    ('dnn.', '')
    """
    return parameter.removesuffix("feature_columns").replace("_", ".")


def table_scope(parameter: str, kind: str) -> str:
    """Return what names of embedding tables begin with, for a column parameter."""
    return part_prefix(parameter) + _SCOPES[kind]


def encode_parts(
    parts: dict[str, FeatureColumns | None], dtype: torch.dtype, features: Any
) -> dict[str, Any]:
    """Encode the features for every part of the network."""
    table = Table(features)  # looks up every distinct string once for both
    encoded = {
        name: columns.encode(table, dtype)
        for name, columns in parts.items()
        if columns is not None
    }
    shared: dict[str, Tensor] = {}
    for part in encoded.values():
        for key, tensor in part.items():
            first = shared.setdefault(key, tensor)
            # One tensor for both, so that rows are taken once and looked up once.
            if first.dtype == tensor.dtype and torch.equal(first, tensor):
                part[key] = first
    return encoded
