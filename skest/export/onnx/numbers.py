# SPDX-License-Identifier: Apache-2.0
"""Numbers in an ONNX graph: filled, scaled, cut into buckets; and the parts of dates.

As in `skest.export.onnx.columns`, the operations and their types are those of the columns.
"""

import operator
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from skest.exceptions import ExportError
from skest.export.onnx.graph import Value, concat, where
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.statistics import CLIPPED, UniformMap

# With how many a number is compared at once, and one more. Few are cheap in one step;
# many in several, where all at once would take time and memory for each of them (14 times
# the time for quantiles).
_MOST_AT_ONCE = 32


def n_reached(values: Value, ends: NDArray[Any]) -> Value:
    """Return how many of some sorted numbers are not greater than each value.

    All of them, if the value is NaN: as ``numpy.searchsorted(ends, values, "right")``.

    Parameters
    ----------
    values : Value
        Numbers.
    ends : ndarray of shape (n_ends,), or (n, n_ends) for n values along the last axis
        Sorted. They become a tree of constants in the type of the values, of which each
        level divides what the one before has left into equal parts.

    Returns
    -------
    Value
        int64 of the shape of `values`.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.export.onnx.graph import Graph
    >>> from skest.export.onnx.numbers import n_reached
    >>> graph = Graph("search")
    >>> found = n_reached(graph.input("x", np.float32, (None,)), np.arange(5))
    >>> _ = graph.output("n", found, (None,))
    >>> [node.op_type for node in graph.nodes], found.dtype
    (['Unsqueeze', 'Less', 'Not', 'Cast', 'ReduceSum', 'Identity'], dtype('int64'))
    """
    n_ends = ends.shape[-1]
    # How many levels the tree has, and into how many parts each divides.
    n_levels = next(n for n in count(1) if _MOST_AT_ONCE**n > n_ends)
    n_parts = next(n for n in count(1) if n**n_levels > n_ends)
    compared = n_parts - 1
    each = values.unsqueeze(-1)
    found: Any = None
    for level in range(n_levels):
        n_below = n_parts ** (n_levels - level - 1)
        starts = n_parts * n_below * np.arange(n_parts**level)[:, np.newaxis]
        places = starts + n_below * np.arange(1, n_parts) - 1
        # Behind the last end it is repeated: whoever reaches it reaches these, too.
        table = ends[..., np.minimum(places, n_ends - 1)]
        near: Any
        if found is None:
            near = table[..., 0, :]
        else:
            own = found
            if ends.ndim > 1:
                own = found + n_parts**level * np.arange(len(ends))
            # Only the numbers that are left at this level: (..., n_parts - 1) for each
            # value.
            near = values.constant(table.reshape(-1, compared)).take(own)
        # Not `each >= near`, which NaN would fail.
        part = (~(each < near)).cast(np.int64).sum(axis=-1)
        found = part if found is None else found * n_parts + part
    if n_parts**n_levels - 1 > n_ends:
        found = found.minimum(n_ends)
    return found


def _quantiles(maps: list[UniformMap], values: Value) -> Value:
    """Return images of numbers, as `UniformMap` computes them; by element."""
    if len(maps) == 1:
        return _image(maps[0], values)
    columns = [_image(m, values.take([i], axis=-1)) for i, m in enumerate(maps)]
    return concat(columns, axis=-1)


def _image(learned: UniformMap, values: Value) -> Value:
    knots, images = learned
    values = values.clip(knots[0], knots[-1])
    # The outermost knots are no cuts: the values have been clipped to them.
    inner = knots[1:-1]
    left = n_reached(values, inner)
    right = np.minimum(np.arange(len(inner) + 1) + 1, len(knots) - 1)
    width = knots[right] - knots[: len(right)]
    width[width == 0] = 1  # a constant
    # As `UniformMap` computes it, step by step, so that roundings are the same.
    slope = images[right] - images[: len(right)]

    def at_left(numbers: np.ndarray) -> Value:
        return values.constant(numbers[: len(right)]).take(left)

    return at_left(images) + (values - at_left(knots)) / at_left(width) * at_left(slope)


def _traced(
    column: NumericColumn, normalizer: Callable[[Any], Any], values: Value
) -> Value:
    # The function sees the cells as they were in training, with all their axes.
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
    np.maximum: Value.maximum,
    np.minimum: Value.minimum,
    np.absolute: _node("Abs"),
    np.sqrt: _node("Sqrt"),
    np.square: lambda x: x * x,
    np.exp: _node("Exp"),
    # ONNX has neither expm1 nor log1p: near 0 these are less exact than NumPy's.
    np.expm1: lambda x: x.apply("Exp") - 1,
    np.log: _node("Log"),
    np.log1p: lambda x: (x + 1).apply("Log"),
    np.log2: lambda x: x.apply("Log") / np.log(2),
    np.log10: lambda x: x.apply("Log") / np.log(10),
    np.sin: _node("Sin"),
    np.cos: _node("Cos"),
    np.tanh: _node("Tanh"),
    np.sign: _node("Sign"),
}


_DAY = 24 * 3600 * 10**6


def date_part(times: Value, part: str) -> Value:
    """Return a part of dates, as `parsed_numeric_column`.

    Parameters
    ----------
    times : Value
        int64, microseconds since 1970.
    part : str
        "seconds", "month", "weekday", "hour" or "day_of_year".

    Notes
    -----
    Years begin in March, 400 of them are an era: H. Hinnant, "chrono-Compatible Low-Level
    Date Algorithms". Div rounds to zero, so that only what is positive is divided.
    """
    if part == "seconds":
        return times.cast(np.float64) / 1e6
    # `Mod` of integers has the sign of the divisor, as Python's: before 1970, too.
    of_day = times % _DAY
    if part == "hour":
        return (of_day / (_DAY // 24)).cast(np.float64)
    days = (times - of_day) / _DAY  # without a remainder
    if part == "weekday":
        return ((days + 3) % 7).cast(np.float64)  # 1970 began with a Thursday
    # Days of an era of 400 years that begins with March 1st, as in civil_from_days of
    # Hinnant's date algorithms: a leap day is the last of its year.
    of_era = (days + 719468) % 146097
    year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365
    day = of_era - (year * 365 + year / 4 - year / 100)
    if part == "month":
        month = (day * 5 + 2) / 153
        return ((month + 2) % 12 + 1).cast(np.float64)
    is_leap = (year % 4).equals(0) & (~(year % 100).equals(0) | year.equals(0))
    from_march = day + is_leap.cast(np.int64) + 60
    return where(day < 306, from_march, day - 305).cast(np.float64)


_SCALERS = ("standard", "auto", "minmax", "robust")
_REMEDY = "give no 'normalizer' or a callable"


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
    limit : ndarray of shape (n_elements,), or None
        What the result is within, up and down.
    is_clipped : bool
        Whether the result is smoothly clipped.
    """

    raw: Value
    dtype: np.dtype
    fill: np.ndarray | None
    center: np.ndarray | None
    scale: np.ndarray | None
    limit: np.ndarray | None = None
    is_clipped: bool = False

    @property
    def steps(self) -> tuple[Any, ...]:
        """The same for numbers that can be computed together."""
        scaling = self.center is None, self.limit is None, self.is_clipped
        return self.raw.dtype, self.dtype, self.fill is None, *scaling

    @classmethod
    def of(cls, column: NumericColumn, raw: Value) -> "Numbers":
        """Return what a fitted column does with numbers, but for other normalizers."""
        center = scale = None
        if column.normalizer in _SCALERS:
            center, scale = (column._learned(n, _REMEDY) for n in ("center_", "scale_"))
        limit, is_clipped = vars(column).get("limit_"), column.normalizer == "robust"
        dtype = np.dtype(column.dtype)
        return cls(raw, dtype, column.fill, center, scale, limit, is_clipped)


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
    if first.limit is not None:
        limit = _joined(parts, "limit").astype(values.dtype)
        # What is infinite becomes NaN rather than the limit.
        values = values.clip(-limit, limit) + (values - values)
    return _smoothly_clipped(values) if first.is_clipped else values


def as_value(entry: Value | Numbers) -> Value:
    """Return numbers that may still have to be computed."""
    return computed([entry]) if isinstance(entry, Numbers) else entry


def _smoothly_clipped(values: Value) -> Value:
    """As `skest.feature_columns.statistics.smoothly_clipped`."""
    values = values.clip(-CLIPPED, CLIPPED)
    third = values / 3
    return values / (third * third + 1).apply("Sqrt")


def _joined(parts: Sequence[Numbers], name: str) -> np.ndarray:
    return np.concatenate([getattr(part, name) for part in parts])


def filled_and_scaled(column: NumericColumn, raw: Value) -> Value:
    """Return filled and scaled numbers; without a value to fill in, NaN stays.

    Raises
    ------
    ExportError
        If the normalizer is a function that does more than arithmetic with functions of
        NumPy of one argument.
    """
    values = computed([Numbers.of(column, raw)])
    # normalizer_fn of TensorFlow's numeric_column, which may be any function.
    if callable(column.normalizer):
        return _traced(column, column.normalizer, values)
    if column.normalizer == "quantile":
        return _quantiles(column._learned("quantile_maps_", _REMEDY), values)
    return values


def with_indicators(column: NumericColumn, raw: Value) -> Value | Numbers:
    """Return what a column gives: filled and scaled numbers, and indicators.

    Where numbers of other columns can be computed together with them, they still are to
    be computed.
    """
    numbers = Numbers.of(column, raw)
    is_plain = column.normalizer is None or numbers.center is not None
    is_float = numbers.dtype.kind == "f"
    # Most columns: a hundred of them side by side take the nodes of one.
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
