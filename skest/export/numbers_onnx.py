# SPDX-License-Identifier: Apache-2.0
"""Numeric columns in an ONNX graph: filled and scaled, several at once if possible."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from skest.export.graph import Value, concat, where
from skest.export.normalizers_onnx import normalized
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.quantiles import CLIPPED

__all__ = ["Numbers", "computed", "filled_and_scaled", "with_indicators"]

_SCALERS = ("standard", "minmax", "robust")


class Numbers(NamedTuple):
    """Raw numbers, and what is to be done with them, element by element.

    Attributes
    ----------
    raw : Value
        Numbers, NaN where missing, those of a cell along the last axis.
    dtype : numpy.dtype
        Type to compute in.
    fill : ndarray of shape (n_elements,), or None
        What takes the place of missing numbers; without, NaN stays.
    center, scale : ndarray of shape (n_elements,), or None
        What is subtracted, and what the difference is divided by.
    is_clipped : bool
        Whether the result is smoothly clipped.
    """

    raw: Value
    dtype: np.dtype
    fill: np.ndarray | None
    center: np.ndarray | None
    scale: np.ndarray | None
    is_clipped: bool = False

    @property
    def steps(self) -> tuple[Any, ...]:
        """The same for numbers that can be computed together."""
        scaling = self.center is None, self.is_clipped
        return self.raw.dtype, self.dtype, self.fill is None, *scaling

    @classmethod
    def of(cls, column: NumericColumn, raw: Value) -> "Numbers":
        """Return what a fitted column does with numbers, but for other normalizers."""
        center = scale = None
        if column.normalizer in _SCALERS:
            remedy = "give no 'normalizer' or a callable"
            center, scale = (column._learned(n, remedy) for n in ("center_", "scale_"))
        is_clipped = column.normalizer == "robust"
        return cls(raw, np.dtype(column.dtype), column.fill, center, scale, is_clipped)


def computed(parts: Sequence[Numbers]) -> Value:
    """Return the numbers of columns with the same `Numbers.steps`, side by side."""
    raw = concat([part.raw for part in parts], axis=-1)
    first = parts[0]
    if first.dtype.kind == "i" and raw.dtype.kind == "f":  # NaN has no integer
        fill = _joined(parts, "fill") if first.fill is not None else 0
        values = where(raw.is_nan(), fill, raw).cast(first.dtype)
    else:
        values = raw.cast(first.dtype)
        if first.fill is not None and first.dtype.kind == "f":
            values = where(values.is_nan(), _joined(parts, "fill"), values)
    if first.center is not None:
        values = (values - _joined(parts, "center")) / _joined(parts, "scale")
    return _smoothly_clipped(values) if first.is_clipped else values


def _smoothly_clipped(values: Value) -> Value:
    """As `skest.feature_columns.quantiles.smoothly_clipped`."""
    low, high = values.constant(-CLIPPED), values.constant(CLIPPED)
    values = values.graph.add("Clip", values, low, high)
    third = values / 3
    return values / (third * third + 1).sqrt()


def _joined(parts: Sequence[Numbers], name: str) -> np.ndarray:
    return np.concatenate([getattr(part, name) for part in parts])


def filled_and_scaled(column: NumericColumn, raw: Value) -> Value:
    """Return filled and scaled numbers; without a value to fill in, NaN stays."""
    return normalized(column, computed([Numbers.of(column, raw)]))


def with_indicators(column: NumericColumn, raw: Value) -> Value | Numbers:
    """Return what a column gives: filled and scaled numbers, and indicators.

    Where numbers of other columns can be computed together with them, they still are to
    be computed.
    """
    numbers = Numbers.of(column, raw)
    is_plain = column.normalizer is None or numbers.center is not None
    is_float = numbers.dtype.kind == "f"
    if is_plain and is_float and len(column.indicated) == 0:
        return numbers
    values = filled_and_scaled(column, raw)
    values = values.cast(np.promote_types(values.dtype, np.float32))
    if len(column.indicated) == 0 or raw.dtype.kind != "f":
        return values
    missing = raw.is_nan()
    if len(column.indicated) < column.n_elements:
        missing = missing.take(column.indicated, axis=-1)
    return concat([values, missing.cast(values.dtype)], axis=-1)
