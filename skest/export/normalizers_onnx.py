# SPDX-License-Identifier: Apache-2.0
"""Normalizers of numeric columns in an ONNX graph; functions of the user's are traced."""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from skest.exceptions import ExportError
from skest.export.graph import Value, concat
from skest.export.search_onnx import n_reached
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.quantiles import UniformMap

__all__ = ["normalized"]


def normalized(column: NumericColumn, values: Value) -> Value:
    """Return filled numbers as a callable or "quantile" normalizer scales them.

    With another one, they stay as they are.

    Parameters
    ----------
    column : NumericColumn
        Fitted.
    values : Value
        Numbers in the dtype of the column, those of a cell along the last axis.

    Raises
    ------
    ExportError
        If the normalizer is a function that does more than arithmetic with functions of
        NumPy of one argument.
    """
    if callable(column.normalizer):
        return _traced(column, column.normalizer, values)
    if column.normalizer == "quantile":
        remedy = "give no 'normalizer' or a callable"
        return _quantiles(column._learned("quantile_maps_", remedy), values)
    return values


def _quantiles(maps: list[UniformMap], values: Value) -> Value:
    """Return images of numbers, as `UniformMap` computes them; by element."""
    if len(maps) == 1:
        return _image(maps[0], values)
    columns = [_image(m, values.take([i], axis=-1)) for i, m in enumerate(maps)]
    return concat(columns, axis=-1)


def _image(learned: UniformMap, values: Value) -> Value:
    knots, images = learned
    low, high = values.constant(knots[0]), values.constant(knots[-1])
    values = values.graph.add("Clip", values, low, high)
    inner = knots[1:-1]
    left = n_reached(values, inner)
    right = np.minimum(np.arange(len(inner) + 1) + 1, len(knots) - 1)
    width = knots[right] - knots[: len(right)]
    width[width == 0] = 1  # a constant
    slope = images[right] - images[: len(right)]

    def at_left(numbers: np.ndarray) -> Value:
        return values.constant(numbers[: len(right)]).take(left)

    return at_left(images) + (values - at_left(knots)) / at_left(width) * at_left(slope)


def _traced(
    column: NumericColumn, normalizer: Callable[[Any], Any], values: Value
) -> Value:
    shape = column.cell_shape
    is_flat = len(shape) == 1
    cells = values if is_flat else values.reshape(0, *shape)
    try:
        result = normalizer(_Traced(cells))
    except Exception as error:
        raise ExportError(
            f"The normalizer of column {column.key!r} cannot be exported: {error} It may "
            "consist of arithmetic and functions of NumPy of one argument; "
            "or use normalizer='standard', 'minmax' or 'quantile'."
        ) from error
    if not isinstance(result, _Traced):
        raise ExportError(
            f"The normalizer of column {column.key!r} cannot be exported: it returned a "
            f"{type(result).__name__}, which does not depend on the numbers as a formula "
            "does. Use arithmetic and functions of NumPy of one argument."
        )
    scaled = result.value.cast(values.dtype)
    return scaled if is_flat else scaled.flatten()


class _Traced(NDArrayOperatorsMixin):
    """Numbers that note in the graph what is done with them.

    Parameters
    ----------
    value : Value
        The numbers.
    """

    def __init__(self, value: Value) -> None:
        self.value = value

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *arguments: Any, **options: Any
    ) -> "_Traced":
        known = _FUNCTIONS.get(ufunc)
        if known is None or method != "__call__" or options:
            raise TypeError(f"There is no operation numpy.{ufunc.__name__} in it.")
        return _Traced(known(*_promoted(arguments)))


def _promoted(arguments: tuple[Any, ...]) -> list[Value]:
    """Return operands as Values of one type, as NumPy promotes them."""
    given = [a.value if isinstance(a, _Traced) else a for a in arguments]
    values = [a for a in given if isinstance(a, Value)]
    # Python numbers have no type of their own.
    kinds: list[Any] = [v.dtype for v in values]
    kinds += [a for a in given if isinstance(a, np.ndarray | np.generic)]
    dtype = np.result_type(*kinds)
    like = values[0].cast(dtype)
    return [a.cast(dtype) if isinstance(a, Value) else like.constant(a) for a in given]


def _node(op: str) -> Callable[..., Value]:
    return lambda *values: values[0].graph.add(op, *values)


_FUNCTIONS: dict[Any, Callable[..., Value]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.negative: operator.neg,
    np.power: _node("Pow"),
    np.maximum: _node("Max"),
    np.minimum: _node("Min"),
    np.absolute: _node("Abs"),
    np.sqrt: _node("Sqrt"),
    np.square: lambda x: x * x,
    np.exp: _node("Exp"),
    np.expm1: lambda x: _node("Exp")(x) - 1,
    np.log: _node("Log"),
    np.log1p: lambda x: _node("Log")(x + 1),
    np.log2: lambda x: _node("Log")(x) / np.log(2),
    np.log10: lambda x: _node("Log")(x) / np.log(10),
    np.sin: _node("Sin"),
    np.cos: _node("Cos"),
    np.tanh: _node("Tanh"),
    np.sign: _node("Sign"),
}
