# SPDX-License-Identifier: Apache-2.0
"""`same`: whether parameters, and columns by their parameters, are equal."""

from collections.abc import Collection, Mapping, Set
from functools import partial
from typing import Any

from skest.feature_columns.base import FeatureColumn

__all__ = ["same"]


def same(a: Any, b: Any) -> bool:
    """Tell whether two parameters say the same, also if one is a copy of the other.

    Columns are equal by their classes and parameters; lists, tuples, arrays, Series and
    whatever else is a collection by their elements; mappings by their entries; partial
    functions by what they consist of. Anything else decides for itself, other functions
    by identity.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.feature_columns.equality import same
    >>> same(np.array(["a", "b"]), ["a", "b"])
    True
    """
    if a is b:
        return True
    if isinstance(a, FeatureColumn):
        return type(a) is type(b) and same(_parameters(a), _parameters(b))
    if isinstance(a, partial):
        return type(a) is type(b) and same(_parts(a), _parts(b))
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if _is_listed(a) or _is_listed(b):
        return (
            _is_listed(a)
            and _is_listed(b)
            and len(a) == len(b)
            and all(map(same, a, b))
        )
    return bool(a == b)


def _parameters(column: FeatureColumn) -> dict[str, Any]:
    return column.get_params(deep=False)


def _parts(function: partial[Any]) -> list[Any]:
    return [function.func, function.args, function.keywords]


def _is_listed(value: Any) -> bool:
    """Whether it is a collection of elements in an order."""
    return isinstance(value, Collection) and not isinstance(
        value, str | bytes | Mapping | Set
    )
