# SPDX-License-Identifier: Apache-2.0
"""Feature columns in an ONNX graph.

Every function does, line by line, what the column does with NumPy: the ids are equal, and
the numbers are computed by the same operations in the same types. What a column refuses
in Python, such as infinity, has no defined result here.
"""

from collections.abc import Mapping, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np

from skest.export.onnx import numbers
from skest.export.onnx.graph import STRING, Graph, Value, concat, where
from skest.export.onnx.inputs import (
    NO_INTEGER,
    Category,
    Inputs,
    InputSpec,
    of_numbers,
)
from skest.export.raw_values import BLANKS
from skest.feature_columns import base, categorical, crossed, sequence
from skest.feature_columns.bucketized import BucketizedColumn
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.joined import JoinedCategoricalColumn, JoinedNumericColumn
from skest.feature_columns.matrix_parts import (
    NumberedVocabularyPartColumn,
    NumericPartColumn,
    OneHotColumn,
)
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.numeric_vectors import PeriodicColumn, PiecewiseLinearColumn
from skest.feature_columns.parsed import ParsedColumn
from skest.feature_columns.shared import SharedEmbeddingColumn
from skest.feature_columns.sources import Form
from skest.feature_columns.sparse_matrix import SparseMatrixColumn
from skest.feature_columns.table import Key
from skest.feature_columns.target_statistics import (
    TargetRidgeColumn,
    TargetStatisticsColumn,
)
from skest.feature_columns.vocabulary import VocabularyColumn

# Before 1.20, ONNX Runtime multiplies no uint64; the bits of the product are the same.
_MULTIPLIER = crossed.MULTIPLIER.astype(np.int64)


def bucket_ids(values: Value, n_buckets: int) -> Value:
    """Give strings, or integers as their decimal strings, a bucket each.

    As `skest.feature_columns.categorical.bucket_ids`.
    """
    # Not FarmHash as in TensorFlow: ONNX Runtime has one hash of strings, MurmurHash3.
    return _string_hashes(values.cast(STRING)).cast(np.int64) % n_buckets


def int64_keys(values: Value) -> Value:
    """Return the 64-bit keys of strings or integers, the bits as int64.

    As `skest.feature_columns.categorical.int64_keys`.
    """
    if values.dtype != STRING:
        return values
    # MurmurHash3 of ONNX Runtime gives 32 bits, so that two seeds give 64.
    low, high = (_string_hashes(values, seed).cast(np.uint64) for seed in (0, 1))
    return (low | high.shifted(32, "LEFT")).cast(np.int64)


def fingerprint_cat64(a: Value, b: Value) -> Value:
    """Combine 64-bit fingerprints, the bits as int64, to one.

    As `skest.feature_columns.crossed.fingerprint_cat64`.
    """
    # FingerprintCat64 of TensorFlow (platform/fingerprint.h), by which it crosses columns.
    result = (a ^ _MULTIPLIER) ^ (_shift_mix(b * _MULTIPLIER) * _MULTIPLIER)
    result = result * _MULTIPLIER
    return _shift_mix(_shift_mix(result) * _MULTIPLIER)


def _string_hashes(values: Value, seed: int = 0) -> Value:
    kind: dict[str, Any] = {"domain": "com.microsoft", "dtype": np.uint32}
    return values.graph.add("MurmurHash3", values, seed=seed, positive=1, **kind)


def _shift_mix(value: Value) -> Value:
    bits = value.cast(np.uint64)
    return (bits ^ bits.shifted(int(crossed.SHIFT), "RIGHT")).cast(np.int64)


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


class EveryId:
    """All ids in their order, for each row: those of the columns of a matrix."""


Encoded = dict[str, Value | numbers.Numbers | Ids | EveryId]


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
    # Several columns over one categorical column have one entry: it is written once.
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
    parts: Mapping[Any, FeatureColumns],
    dtype: np.dtype,
    forms: Mapping[Key, Form],
) -> tuple[list[InputSpec], dict[Any, Any]]:
    """Declare the inputs of columns; return them, and what networks take by part.

    Parameters
    ----------
    graph : Graph
        Gets the inputs.
    parts : dict of FeatureColumns
        Fitted columns; none if the network looks at no feature, but at the number of
        rows, which is what it gets under "rows".
    dtype, forms
        See `Inputs`.
    """
    every = [column for part in parts.values() for column in part.active]
    inputs = Inputs(graph, every, dtype, forms)
    if not parts:
        return inputs.specs, {"rows": inputs.any_input()}
    encoded = {name: encode(part, inputs, dtype) for name, part in parts.items()}
    return inputs.specs, encoded


@singledispatch
def _encoded(column: Any, inputs: Inputs) -> Encoded:
    """Return the entries of a column, as its method of this name."""
    raise NotImplementedError(type(column).__name__)


@_encoded.register
def _(column: base.OverCategorical, inputs: Inputs) -> Encoded:
    return _encoded(column.categorical, inputs)


@_encoded.register
def _(column: SharedEmbeddingColumn, inputs: Inputs) -> Encoded:
    entries = _encoded(column.categorical, inputs)
    return {f"{column.table_name}_{key}": entry for key, entry in entries.items()}


@_encoded.register
def _(column: base.CategoricalColumn, inputs: Inputs) -> Encoded:
    return {column.encoded_key: _ids(column, inputs)}


# Numbers


@_encoded.register
def _(column: NumericColumn, inputs: Inputs) -> Encoded:
    return {
        column.encoded_key: numbers.with_indicators(column, _flat_cells(column, inputs))
    }


def _flat_cells(column: NumericColumn, inputs: Inputs) -> Value:
    if isinstance(column, JoinedNumericColumn):
        several = [_floats(inputs.numbers(key)) for key in column.feature_keys]
        dtype = np.result_type(*(raw.dtype for raw in several))
        return concat([raw.cast(dtype) for raw in several], axis=1)
    if isinstance(column, NumericPartColumn):
        return _columns_of(inputs.numbers(column.source_key), column.elements)
    raw = inputs.numbers(column.key)
    if isinstance(column, ParsedColumn) and column.parse != "number":
        return where(
            raw.equals(NO_INTEGER), np.nan, numbers.date_part(raw, column.parse)
        )
    raw = _floats(raw)
    return raw.flatten() if len(column.cell_shape) > 1 else raw


def _columns_of(matrix: Value, elements: Sequence[int]) -> Value:
    return matrix.take(np.array(elements), axis=1)


def _floats(raw: Value) -> Value:
    if raw.dtype == STRING:  # which other columns read as categories
        return where(_is_none_of(raw, BLANKS), raw, "nan").cast(np.float64)
    return raw


@_encoded.register
def _(column: PeriodicColumn, inputs: Inputs) -> Encoded:
    source = column.source
    return {column.encoded_key: _encoded(source, inputs)[source.encoded_key]}


@_encoded.register
def _(column: PiecewiseLinearColumn, inputs: Inputs) -> Encoded:
    source = column.source
    raw = _flat_cells(source, inputs)
    values = numbers.filled_and_scaled(source, raw).cast(column._float)
    n_edges = [len(edges) for edges in column.edges]
    # Edges that an element has not are beyond all numbers.
    edges = np.full((source.n_elements, max(n_edges)), np.inf, column._float)
    for row, own in zip(edges, column.edges, strict=True):
        row[: len(own)] = own
    last = np.array(n_edges) - (1 if column.encoding == "onehot" else 2)
    # An edge belongs to the bin on its right, as with searchsorted(side="right").
    found = numbers.n_reached(values, edges) - 1
    bins = found.clip(0, last)
    if column.encoding == "onehot":
        fractions = values.constant(0).expanded(bins.length(0), source.n_elements)
    else:
        with np.errstate(invalid="ignore"):
            widths = np.diff(edges, append=np.inf)
        # The edges of all elements are one table, of shape (n_elements * n_edges,).
        places = bins + edges.shape[1] * np.arange(source.n_elements)
        starts, width = (
            values.constant(a.ravel()).take(places) for a in (edges, widths)
        )
        fractions = ((values - starts) / width).clip(0, 1)
    if source.default_value is None and raw.dtype.kind == "f":
        missing = raw.is_nan()
        bins, fractions = where(missing, -1, bins), where(missing, 0, fractions)
    ids = Ids(bins, bins >= 0, source.n_elements)
    return {column.encoded_key: ids, column.weight_key: fractions}


@_encoded.register
def _(column: sequence.SequenceNumericColumn, inputs: Inputs) -> Encoded:
    raw = inputs.numbers(column.key)
    if column.cell_shape == (1,):
        raw = raw.unsqueeze(2)
    elif len(column.cell_shape) > 1:
        raw = raw.reshape(0, 0, column.n_elements)
    # A step is there if one of its numbers is.
    present = (~raw.is_nan()).cast(np.int64).max(axis=2).cast(bool)
    lengths = _lengths(present)
    inside = _positions(raw, 0) < lengths.unsqueeze(1)
    steps = numbers.as_value(numbers.with_indicators(column, raw))
    # The column itself pads shorter sequences with this.
    default = column.default_value
    fill = default if isinstance(default, int | float) else 0.0
    padded = where(inside.unsqueeze(2), steps, fill)
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
    # Dense, for few engines take sparse tensors.
    scaled = raw / column.scale_.astype(raw.dtype)
    return {column.encoded_key: EveryId(), column.weight_key: scaled}


@_encoded.register
def _(column: TargetStatisticsColumn, inputs: Inputs) -> Encoded:
    ids = _ids(column.categorical, inputs).values.squeeze(-1)
    statistics = inputs.graph.constant(column.statistics_)
    # The last row is for cells without id.
    last = len(column.statistics_) - 1
    return {column.encoded_key: statistics.take(where(ids < 0, last, ids))}


@_encoded.register
def _(column: TargetRidgeColumn, inputs: Inputs) -> Encoded:
    source, graph = column.categorical, inputs.graph
    encoded: dict[str, Any] = _encoded(source, inputs)
    ids = encoded[source.encoded_key]
    weights: Any = encoded.get(str(source.weight_key))
    coefficients = column.coefficients_
    if isinstance(ids, EveryId):
        of_cells = weights * column.rarity_
        scores = of_cells @ coefficients
    else:
        # A last row for places without id.
        last = len(coefficients)
        places = where(ids.values < 0, last, ids.values)
        of_cells = graph.constant(np.append(column.rarity_, np.float32(0))).take(places)
        if weights is None:
            weights = of_cells
        else:
            of_cells = of_cells * weights
        # (n_rows, n_values, n_outputs), of which each row is summed over its values.
        table = graph.constant(np.pad(coefficients, ((0, 1), (0, 0)))).take(places)
        scores = (of_cells.unsqueeze(2) * table).sum(1)
    square = (of_cells * of_cells).sum(1, keepdims=True)
    # No category is no length; the scores are zero then.
    length = where(square.equals(0), 1, square).apply("Sqrt")
    counts = (~weights.equals(0)).cast(scores.dtype).sum(1, keepdims=True)
    scaled = ((counts + 1).apply("Log") - column.count_center_) / column.count_scale_
    found = concat([scores / length + column.intercept_, scaled], axis=1)
    return {column.encoded_key: found.cast(np.float32)}


# Categories


@singledispatch
def _ids(column: Any, inputs: Inputs) -> Ids:
    """Return the ids, as the method `ids` of the column."""
    raise NotImplementedError(type(column).__name__)


@_ids.register
def _(column: base.CategoricalOver, inputs: Inputs) -> Ids:
    return _ids(column.categorical, inputs)


@_ids.register
def _(column: categorical.KeyedCategoricalColumn, inputs: Inputs) -> Ids:
    if isinstance(column, NumberedVocabularyPartColumn):
        matrix = inputs.numbers(column.source_key)
        cells = of_numbers(_columns_of(matrix, [column.element]), 1)
    else:
        cells = inputs.category(column.key, column.delimiter)
    present = _is_none_of(cells.values, cells.missing)
    ids = _ids_of(column, cells, present)
    if isinstance(column, VocabularyColumn) and column.missing_bucket:
        # A cell without any value has one id then, in the first place.
        none = present.cast(np.int64).max(axis=1, keepdims=True).equals(0)
        first = _positions(ids, 0).equals(0)
        ids = where(none & first, column.num_buckets - 1, ids)
    return Ids(ids, present, cells.width)


@_ids.register
def _(column: OneHotColumn, inputs: Inputs) -> Ids:
    values = _columns_of(inputs.numbers(column.source_key), column.elements)
    is_on = (values > np.asarray(column.thresholds, values.dtype)).cast(np.int64)
    places = (is_on * np.arange(len(column.elements))).sum(1, keepdims=True)
    is_one = is_on.sum(1, keepdims=True).equals(1)
    places = where(is_one, places, len(column.elements))
    ids = inputs.graph.constant(column._ids_of(column.levels)).take(places)
    return Ids(ids, ids >= 0, 1)


@_ids.register
def _(column: JoinedCategoricalColumn, inputs: Inputs) -> Ids:
    found = [_ids(own, inputs) for own in column.categoricals]
    values = concat([ids.values for ids in found], axis=1)
    present = concat([ids.present for ids in found], axis=1)
    firsts = np.cumsum([0, *column.level_counts])[:-1]
    return Ids(where(values < 0, -1, values + firsts), present, len(found))


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
def _(column: categorical.IdentityColumn, cells: Category, present: Value) -> Value:
    values = cells.values
    inside = (values >= 0) & (values < column.num_buckets)
    if column.default_value is None:
        # There the column raises an error, which a graph can't; it gives no id.
        return where(inside, values, -1)
    return where(present, where(inside, values, column.default_value), -1)


@_ids_of.register
def _(column: categorical.HashBucketColumn, cells: Category, present: Value) -> Value:
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
    # As index_table_from_tensor of TensorFlow: the buckets come behind the vocabulary.
    spread = bucket_ids(cells.values, n_spread) + len(column.vocabulary)
    return where(ids.equals(_UNKNOWN), spread, ids)


@_ids.register
def _(column: BucketizedColumn, inputs: Inputs) -> Ids:
    source, cuts = column.source, column.cuts
    raw = _flat_cells(source, inputs)
    values = numbers.filled_and_scaled(source, raw)
    ids = numbers.n_reached(values, cuts)
    if source.default_value is None and raw.dtype.kind == "f":
        # The bucket of missing numbers is the one behind the last.
        ids = where(raw.is_nan(), len(cuts), ids)
    if source.n_elements > 1:
        # Each element of a vector has buckets of its own, one behind the other.
        ids = ids + np.arange(source.n_elements) * (len(cuts) + 1)
    return Ids(ids, ids >= 0, source.n_elements)


@_ids.register
def _(column: crossed.CrossedColumn, inputs: Inputs) -> Ids:
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
            # Each with each: (n_rows, n, m) becomes (n_rows, n * m).
            hashes = hashes.flatten()
            present = (present.unsqueeze(2) & keys.present.unsqueeze(1)).flatten()
        is_fixed = width is not None and keys.width is not None
        width = width * keys.width if is_fixed else None  # type: ignore[operator]
    # Of the bits as unsigned: a negative number would have another remainder.
    remainder = hashes.cast(np.uint64) % column.hash_bucket_size
    buckets = remainder.cast(np.int64)
    return Ids(where(present, buckets, -1), present, width)


def _int64_keys_of(key: Any, inputs: Inputs) -> Ids:
    """Return 64-bit keys in place of ids; values without an id are crossed, too."""
    if isinstance(key, base.FeatureColumn):
        return _ids(key, inputs)
    cells = inputs.category(key)
    present = _is_none_of(cells.values, (cells.no_value,))
    return Ids(int64_keys(cells.values), present, cells.width)


@_encoded.register
def _(column: sequence.SequenceCategoricalColumn, inputs: Inputs) -> Encoded:
    ids = _ids(column, inputs)
    # By what is present, not by ids: an unknown word is a step, too.
    lengths = _lengths(ids.present)
    return {column.encoded_key: ids, column.length_key: lengths}


@_encoded.register
def _(column: crossed.WeightedCategoricalColumn, inputs: Inputs) -> Encoded:
    ids = _ids(column, inputs)
    raw = inputs.numbers(column.weight_feature_key)
    # Behind the values raw weights are NaN, and so would be every sum.
    weights = where(ids.values < 0, 0, raw).cast(column.dtype)
    weights = weights.cast(np.promote_types(column.dtype, np.float32))
    return {column.encoded_key: ids, column.weight_key: weights}
