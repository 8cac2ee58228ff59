# SPDX-License-Identifier: Apache-2.0
"""Feature columns in an ONNX graph.

Every function does, line by line, what the column does with NumPy: the ids are equal, and
the numbers are computed by the same operations in the same types. What a column refuses
in Python, such as infinity, has no defined result here.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

from skest.exceptions import ExportError
from skest.export.onnx.graph import STRING, Graph, Value, concat, where
from skest.export.onnx.inputs import NO_INTEGER, Category, Inputs, InputSpec
from skest.export.raw_values import BLANKS
from skest.feature_columns.base import (
    CategoricalColumn,
    CategoricalOver,
    FeatureColumn,
    OverCategorical,
)
from skest.feature_columns.bucketized import BucketizedColumn
from skest.feature_columns.categorical import (
    HashBucketColumn,
    IdentityColumn,
    KeyedCategoricalColumn,
)
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.crossed import (
    MULTIPLIER,
    SHIFT,
    CrossedColumn,
    WeightedCategoricalColumn,
)
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.numeric_vectors import PeriodicColumn, PiecewiseLinearColumn
from skest.feature_columns.parsed import ParsedColumn
from skest.feature_columns.sequence import (
    SequenceCategoricalColumn,
    SequenceNumericColumn,
)
from skest.feature_columns.shared import SharedEmbeddingColumn
from skest.feature_columns.sources import Form
from skest.feature_columns.sparse_matrix import SparseMatrixColumn
from skest.feature_columns.statistics import CLIPPED, UniformMap
from skest.feature_columns.table import Key
from skest.feature_columns.target_statistics import TargetStatisticsColumn
from skest.feature_columns.vocabulary import VocabularyColumn

# Before 1.20, ONNX Runtime multiplies no uint64; the bits of the product are the same.
_MULTIPLIER = MULTIPLIER.astype(np.int64)


def bucket_ids(values: Value, n_buckets: int) -> Value:
    """Give strings, or integers as their decimal strings, a bucket each.

    As `skest.feature_columns.categorical.bucket_ids`.
    """
    return _string_hashes(values.cast(STRING)).cast(np.int64) % n_buckets


def int64_keys(values: Value) -> Value:
    """Return the 64-bit keys of strings or integers, the bits as int64.

    As `skest.feature_columns.categorical.int64_keys`.
    """
    if values.dtype != STRING:
        return values
    low, high = (_string_hashes(values, seed).cast(np.uint64) for seed in (0, 1))
    return (low | high.shifted(32, "LEFT")).cast(np.int64)


def fingerprint_cat64(a: Value, b: Value) -> Value:
    """Combine 64-bit fingerprints, the bits as int64, to one.

    As `skest.feature_columns.crossed.fingerprint_cat64`.
    """
    result = (a ^ _MULTIPLIER) ^ (_shift_mix(b * _MULTIPLIER) * _MULTIPLIER)
    result = result * _MULTIPLIER
    return _shift_mix(_shift_mix(result) * _MULTIPLIER)


def _string_hashes(values: Value, seed: int = 0) -> Value:
    kind: dict[str, Any] = {"domain": "com.microsoft", "dtype": np.uint32}
    return values.graph.add("MurmurHash3", values, seed=seed, positive=1, **kind)


def _shift_mix(value: Value) -> Value:
    bits = value.cast(np.uint64)
    return (bits ^ bits.shifted(int(SHIFT), "RIGHT")).cast(np.int64)


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
    >>> from skest.export.onnx.columns import n_reached
    >>> graph = Graph("search")
    >>> found = n_reached(graph.input("x", np.float32, (None,)), np.arange(5))
    >>> [node.op for node in graph.added], found.dtype
    (['Unsqueeze', 'Less', 'Not', 'Cast', 'ReduceSum'], dtype('int64'))
    """
    n_ends = ends.shape[-1]
    n_levels, n_parts = _shape_of_tree(n_ends)
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
            near = values.constant(table.reshape(-1, compared)).take(own)
        # Not `each >= near`, which NaN would fail.
        part = (~(each < near)).cast(np.int64).sum(axis=-1)
        found = part if found is None else found * n_parts + part
    if n_parts**n_levels - 1 > n_ends:
        found = found.graph.add("Min", found, found.constant(n_ends))
    return found


def _shape_of_tree(n_ends: int) -> tuple[int, int]:
    """Return how many levels a tree has, and into how many parts each divides."""
    n_levels = 1
    while _MOST_AT_ONCE**n_levels <= n_ends:
        n_levels += 1
    n_parts = 1
    while n_parts**n_levels <= n_ends:
        n_parts += 1
    return n_levels, n_parts


def _normalized(column: NumericColumn, values: Value) -> Value:
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
    # ONNX has neither expm1 nor log1p: near 0 these are less exact than NumPy's.
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
    """As `skest.feature_columns.statistics.smoothly_clipped`."""
    low, high = values.constant(-CLIPPED), values.constant(CLIPPED)
    values = values.graph.add("Clip", values, low, high)
    third = values / 3
    return values / _node("Sqrt")(third * third + 1)


def _joined(parts: Sequence[Numbers], name: str) -> np.ndarray:
    return np.concatenate([getattr(part, name) for part in parts])


def _filled_and_scaled(column: NumericColumn, raw: Value) -> Value:
    """Return filled and scaled numbers; without a value to fill in, NaN stays."""
    return _normalized(column, computed([Numbers.of(column, raw)]))


def _with_indicators(column: NumericColumn, raw: Value) -> Value | Numbers:
    """Return what a column gives: filled and scaled numbers, and indicators.

    Where numbers of other columns can be computed together with them, they still are to
    be computed.
    """
    numbers = Numbers.of(column, raw)
    is_plain = column.normalizer is None or numbers.center is not None
    is_float = numbers.dtype.kind == "f"
    if is_plain and is_float and len(column.indicated) == 0:
        return numbers
    values = _filled_and_scaled(column, raw)
    values = values.cast(np.promote_types(values.dtype, np.float32))
    if len(column.indicated) == 0 or raw.dtype.kind != "f":
        return values
    missing = raw.is_nan()
    if len(column.indicated) < column.n_elements:
        missing = missing.take(column.indicated, axis=-1)
    return concat([values, missing.cast(values.dtype)], axis=-1)


# An id for what is not in the vocabulary, until it gets its bucket.
_UNKNOWN = -2


class Ids(NamedTuple):
    """Ids of categories in the graph.

    Attributes
    ----------
    values : Value
        int64 of shape (n_rows, n_values), -1 for none.
    present : Value
        Whether there is a value at all.
    width : int or None
        `n_values`, if it is always the same.
    """

    values: Value
    present: Value
    width: int | None


class EveryId(NamedTuple):
    """All ids in their order, for each row: those of the columns of a matrix."""

    size: int


Encoded = dict[str, Value | Numbers | Ids | EveryId]


def encode(columns: FeatureColumns, inputs: Inputs, dtype: Any) -> Encoded:
    """Return what the network takes, as `FeatureColumns.encode` does.

    Parameters
    ----------
    columns : FeatureColumns
        Fitted columns.
    inputs : Inputs
        The raw columns.
    dtype : numpy.dtype
        Type of the numbers.

    Returns
    -------
    dict of str to Value, Numbers, Ids or EveryId
        Under the same keys.
    """
    encoded: Encoded = {}
    sources = {column.encoded_key: column for column in columns.active}
    for column in sources.values():
        with inputs.graph.scope(column.name):
            for key, entry in _encoded(column, inputs).items():
                if isinstance(entry, Value) and entry.dtype.kind == "f":
                    entry = entry.cast(dtype)
                encoded[key] = entry
    return encoded


def given_parts(columns: Any) -> dict[Any, FeatureColumns]:
    """Return the columns by the part of the network that takes them."""
    parts = columns if isinstance(columns, Mapping) else {None: columns}
    return {name: part for name, part in parts.items() if part is not None}


def encode_all(
    graph: Graph,
    columns: FeatureColumns | Mapping[Any, FeatureColumns | None] | None,
    dtype: np.dtype,
    forms: Mapping[Key, Form],
) -> tuple[list[InputSpec], Any]:
    """Declare the inputs of columns; return them, and what the network takes.

    Parameters
    ----------
    graph : Graph
        Gets the inputs.
    columns : FeatureColumns, dict of them by part, or None
        Fitted columns; None if the network looks at no feature.
    dtype, forms
        See `Inputs`.
    """
    given = given_parts(columns)
    every = [column for part in given.values() for column in part.active]
    inputs = Inputs(graph, every, dtype, forms)
    if not given:
        return inputs.specs, {"rows": inputs.any_input()}
    encoded = {name: encode(part, inputs, dtype) for name, part in given.items()}
    return inputs.specs, encoded if isinstance(columns, Mapping) else encoded[None]


@singledispatch
def _encoded(column: Any, inputs: Inputs) -> Encoded:
    """Return the entries of a column, as its method of this name."""
    raise NotImplementedError(type(column).__name__)


@_encoded.register
def _(column: OverCategorical, inputs: Inputs) -> Encoded:
    return _encoded(column.categorical, inputs)


@_encoded.register
def _(column: SharedEmbeddingColumn, inputs: Inputs) -> Encoded:
    entries = _encoded(column.categorical, inputs)
    return {f"{column.table_name}_{key}": entry for key, entry in entries.items()}


@_encoded.register
def _(column: CategoricalColumn, inputs: Inputs) -> Encoded:
    return {column.encoded_key: _ids(column, inputs)}


# Numbers


@_encoded.register
def _(column: NumericColumn, inputs: Inputs) -> Encoded:
    return {column.encoded_key: _with_indicators(column, _flat_cells(column, inputs))}


def _flat_cells(column: NumericColumn, inputs: Inputs) -> Value:
    raw = inputs.numbers(column.key)
    if isinstance(column, ParsedColumn) and column.parse != "number":
        return where(raw.equals(NO_INTEGER), np.nan, date_part(raw, column.parse))
    if raw.dtype == STRING:  # which other columns read as categories
        raw = where(_is_none_of(raw, BLANKS), raw, "nan").cast(np.float64)
    return raw.flatten() if len(column.cell_shape) > 1 else raw


@_encoded.register
def _(column: PeriodicColumn, inputs: Inputs) -> Encoded:
    source = column.source
    return {column.encoded_key: _encoded(source, inputs)[source.encoded_key]}


@_encoded.register
def _(column: PiecewiseLinearColumn, inputs: Inputs) -> Encoded:
    source = column.source
    raw = _flat_cells(source, inputs)
    values = _filled_and_scaled(source, raw).cast(column._float)
    n_edges = [len(edges) for edges in column.edges]
    # Edges that an element has not are beyond all numbers.
    edges = np.full((source.n_elements, max(n_edges)), np.inf, column._float)
    for row, own in zip(edges, column.edges, strict=True):
        row[: len(own)] = own
    last = np.array(n_edges) - (1 if column.encoding == "onehot" else 2)
    found = n_reached(values, edges) - 1
    bins = found.graph.add("Min", found.maximum(0), found.constant(last))
    if column.encoding == "onehot":
        fractions = values.constant(0).expanded(bins.length(0), source.n_elements)
    else:
        with np.errstate(invalid="ignore"):
            widths = np.diff(edges, append=np.inf)
        places = bins + edges.shape[1] * np.arange(source.n_elements)
        starts, width = (
            values.constant(a.ravel()).take(places) for a in (edges, widths)
        )
        zero, one = values.constant(0), values.constant(1)
        fractions = values.graph.add("Clip", (values - starts) / width, zero, one)
    if source.default_value is None and raw.dtype.kind == "f":
        missing = raw.is_nan()
        bins, fractions = where(missing, -1, bins), where(missing, 0, fractions)
    ids = Ids(bins, bins >= 0, source.n_elements)
    return {column.encoded_key: ids, column.weight_key: fractions}


@_encoded.register
def _(column: SequenceNumericColumn, inputs: Inputs) -> Encoded:
    raw = inputs.numbers(column.key)
    if column.cell_shape == (1,):
        raw = raw.unsqueeze(2)
    elif len(column.cell_shape) > 1:
        raw = raw.reshape(0, 0, column.n_elements)
    # A step is there if one of its numbers is.
    present = (~raw.is_nan()).cast(np.int64).max(axis=2).cast(bool)
    lengths = _lengths(present)
    inside = _positions(raw, 0) < lengths.unsqueeze(1)
    numbers = _with_indicators(column, raw)
    if isinstance(numbers, Numbers):
        numbers = computed([numbers])
    default = column.default_value
    fill = default if isinstance(default, int | float) else 0.0
    padded = where(inside.unsqueeze(2), numbers, fill)
    return {column.encoded_key: padded, column.length_key: lengths}


def _lengths(present: Value) -> Value:
    """Return the length of each row up to its last value."""
    return where(present, _positions(present, 1), 0).max(axis=1, initial=0)


def _positions(values: Value, first: int) -> Value:
    """Return consecutive numbers along the second axis."""
    graph = values.graph
    start, step = graph.constant(np.array(first)), graph.constant(np.array(1))
    end = values.length(1) + first
    return graph.add("Range", start, end, step, ndim=1)


@_encoded.register
def _(column: SparseMatrixColumn, inputs: Inputs) -> Encoded:
    raw = inputs.numbers(column.key)
    scaled = raw / column.scale_.astype(raw.dtype)
    return {column.encoded_key: EveryId(column.num_buckets), column.weight_key: scaled}


@_encoded.register
def _(column: TargetStatisticsColumn, inputs: Inputs) -> Encoded:
    ids = _ids(column.categorical, inputs).values.squeeze(-1)
    statistics = inputs.graph.constant(column.statistics_)
    # The last row is for cells without id.
    last = len(column.statistics_) - 1
    return {column.encoded_key: statistics.take(where(ids < 0, last, ids))}


# Categories


@singledispatch
def _ids(column: Any, inputs: Inputs) -> Ids:
    """Return the ids, as the method `ids` of the column."""
    raise NotImplementedError(type(column).__name__)


@_ids.register
def _(column: CategoricalOver, inputs: Inputs) -> Ids:
    return _ids(column.categorical, inputs)


@_ids.register
def _(column: KeyedCategoricalColumn, inputs: Inputs) -> Ids:
    cells = inputs.category(column.key, column.delimiter)
    present = _is_none_of(cells.values, cells.missing)
    ids = _ids_of(column, cells, present)
    if isinstance(column, VocabularyColumn) and column.missing_bucket:
        none = present.cast(np.int64).max(axis=1, keepdims=True).equals(0)
        first = _positions(ids, 0).equals(0)
        ids = where(none & first, column.num_buckets - 1, ids)
    return Ids(ids, present, cells.width)


def _is_none_of(values: Value, missing: tuple[Any, ...]) -> Value:
    if values.dtype != STRING and len(missing) == 1:
        return ~values.equals(missing[0])
    # Opset 18 has no Equal of strings, and a table tests for all at once.
    table = dict.fromkeys(missing, 0)
    return _looked_up(values, table, default=1).cast(bool)


def _looked_up(values: Value, table: Mapping[Any, int], default: int) -> Value:
    """Return what a dictionary says of strings or integers."""
    keys = "keys_strings" if values.dtype == STRING else "keys_int64s"
    entries: Any = {keys: tuple(table), "values_int64s": tuple(table.values())}
    kind: dict[str, Any] = {"domain": "ai.onnx.ml", "dtype": np.int64}
    return values.graph.add(
        "LabelEncoder", values, default_int64=default, **entries, **kind
    )


@singledispatch
def _ids_of(column: Any, cells: Category, present: Value) -> Value:
    """Return the ids of values, as the method of this name."""
    raise NotImplementedError(type(column).__name__)


@_ids_of.register
def _(column: IdentityColumn, cells: Category, present: Value) -> Value:
    values = cells.values
    inside = (values >= 0) & (values < column.num_buckets)
    if column.default_value is None:
        return where(inside, values, -1)
    return where(present, where(inside, values, column.default_value), -1)


@_ids_of.register
def _(column: HashBucketColumn, cells: Category, present: Value) -> Value:
    return where(present, bucket_ids(cells.values, column.hash_bucket_size), -1)


@_ids_of.register
def _(column: VocabularyColumn, cells: Category, present: Value) -> Value:
    default = -1 if column.default_value is None else column.default_value
    n_spread = column.num_oov_buckets
    # What means missing has no id, whatever the vocabulary lists.
    vocabulary = {**column.vocabulary, **dict.fromkeys(cells.missing, -1)}
    ids = _looked_up(cells.values, vocabulary, _UNKNOWN if n_spread else default)
    if not n_spread:
        return ids
    spread = bucket_ids(cells.values, n_spread) + len(column.vocabulary)
    return where(ids.equals(_UNKNOWN), spread, ids)


@_ids.register
def _(column: BucketizedColumn, inputs: Inputs) -> Ids:
    source, cuts = column.source, column.cuts
    raw = _flat_cells(source, inputs)
    values = _filled_and_scaled(source, raw)
    ids = n_reached(values, cuts)
    if source.default_value is None and raw.dtype.kind == "f":
        ids = where(raw.is_nan(), len(cuts), ids)
    if source.n_elements > 1:
        ids = ids + np.arange(source.n_elements) * (len(cuts) + 1)
    return Ids(ids, ids >= 0, source.n_elements)


@_ids.register
def _(column: CrossedColumn, inputs: Inputs) -> Ids:
    first, *others = (_int64_keys_of(key, inputs) for key in column.hashed_keys)
    start = first.values.constant(column.first_hash.view(np.int64))
    hashes, present, width = first._replace(
        values=fingerprint_cat64(start, first.values)
    )
    for keys in others:
        if width == 1 or keys.width == 1:  # each with each is one with each
            hashes = fingerprint_cat64(hashes, keys.values)
            present = present & keys.present
        else:
            hashes = fingerprint_cat64(hashes.unsqueeze(2), keys.values.unsqueeze(1))
            hashes = hashes.flatten()
            present = (present.unsqueeze(2) & keys.present.unsqueeze(1)).flatten()
        is_fixed = width is not None and keys.width is not None
        width = width * keys.width if is_fixed else None  # type: ignore[operator]
    remainder = hashes.cast(np.uint64) % column.hash_bucket_size
    buckets = remainder.cast(np.int64)
    return Ids(where(present, buckets, -1), present, width)


def _int64_keys_of(key: Any, inputs: Inputs) -> Ids:
    """Return 64-bit keys in place of ids; values without an id are crossed, too."""
    if isinstance(key, FeatureColumn):
        return _ids(key, inputs)
    cells = inputs.category(key)
    present = _is_none_of(cells.values, (cells.no_value,))
    return Ids(int64_keys(cells.values), present, cells.width)


@_encoded.register
def _(column: SequenceCategoricalColumn, inputs: Inputs) -> Encoded:
    ids = _ids(column, inputs)
    lengths = _lengths(ids.present)
    return {column.encoded_key: ids, column.length_key: lengths}


@_encoded.register
def _(column: WeightedCategoricalColumn, inputs: Inputs) -> Encoded:
    ids = _ids(column, inputs)
    raw = inputs.numbers(column.weight_feature_key)
    weights = where(ids.values < 0, 0, raw).cast(column.dtype)
    weights = weights.cast(np.promote_types(column.dtype, np.float32))
    return {column.encoded_key: ids, column.weight_key: weights}
