# SPDX-License-Identifier: Apache-2.0
"""Names of the variables of networks that consist of parts."""

__all__ = ["part_prefix", "table_scope"]

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
