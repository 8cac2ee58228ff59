# SPDX-License-Identifier: Apache-2.0
"""The modules with the tables of feature columns, in an ONNX graph."""

import math
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import numpy as np
import torch

from skest.export.columns_onnx import EveryId, Ids
from skest.export.graph import Value, concat, where
from skest.export.numbers_onnx import Numbers, computed
from skest.export.scope import Scope
from skest.feature_columns.interpolation import CodeOutput, Interpolation
from skest.feature_columns.lookup import clipped
from skest.feature_columns.modules import (
    CountsOutput,
    DenseFeatures,
    InterpolatedOutput,
    LinearFeatures,
    PeriodicOutput,
    SequenceFeatures,
    ValuesOutput,
    module_name,
    parameter_name,
)

__all__ = ["dense_features", "linear_features", "sequence_features"]

# Scatter adds one number after another, of which float32 loses too much in long lists.
_SUMMED = np.dtype(np.float64)


def dense_features(
    module: DenseFeatures, scope: Scope, encoded: Mapping[str, Any]
) -> Value:
    """Return the outputs of dense columns side by side."""
    interpolated: dict[str, Value] = {}
    for several, values in _interpolated(module, scope, encoded):
        ends = np.cumsum(several.n_elements)
        for name, n, end in zip(several.columns, several.n_elements, ends, strict=True):
            own = values.take(np.arange(end - n, end), axis=1)
            interpolated[name] = own.flatten()
    outputs: list[Any] = [
        interpolated[output.column]
        if isinstance(output, InterpolatedOutput)
        else _output(output, module, scope, encoded)
        for output in module.outputs
    ]
    dtype = _numpy_dtype(module.dtype)
    side_by_side = []
    # Neighbours whose numbers are computed alike take as many nodes as one of them.
    for steps, group in groupby(outputs, key=_steps_of):
        entries = list(group)
        together = entries if steps is None else [computed(entries)]
        side_by_side += [values.cast(dtype) for values in together]
    return concat(side_by_side, axis=-1)


def _steps_of(entry: Value | Numbers) -> Any:
    return entry.steps if isinstance(entry, Numbers) else None


def _numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return np.dtype(str(dtype).removeprefix("torch."))


def sequence_features(
    module: SequenceFeatures, scope: Scope, encoded: Mapping[str, Any]
) -> tuple[Value, Value]:
    """Return the outputs of sequence columns side by side, and the lengths.

    Steps that no sequence of the batch has stay, for the network does not look at them.
    """
    steps = {key: _as_steps(entry) for key, entry in encoded.items()}
    outputs = [_output(output, module, scope, steps) for output in module.outputs]
    return concat(outputs, axis=-1), encoded[module.length_key]


def _as_steps(entry: Any) -> Any:
    """Return ids as those of columns that have one for each step."""
    if isinstance(entry, Ids):
        return Ids(entry.values.unsqueeze(2), entry.present.unsqueeze(2), 1)
    return entry


def linear_features(
    module: LinearFeatures, scope: Scope, encoded: Mapping[str, Any]
) -> Value:
    """Return the sum of bias, looked-up weights and weighted dense outputs."""
    terms = []
    for name, key, weight_key, combiner in module.looked_up:
        parameter = parameter_name(name)
        table = scope.weight(parameter, module.get_parameter(parameter))
        factors = encoded[weight_key] if weight_key else None
        terms.append(_combined_rows(table, encoded[key], combiner, factors))
    for _, values in _interpolated(module, scope, encoded):
        terms.append(values.sum(axis=1))
    if module.dense is not None:
        names = map(parameter_name, module.multiplied)
        stacked = torch.cat([module.get_parameter(name) for name in names])
        dense = dense_features(module.dense, scope.inside("dense"), encoded)
        terms.append(dense @ scope.weight("dense", stacked, "_weights"))
    # Of what a node takes, ONNX Runtime computes first what was written last: were each
    # term written after the sum of those before, it would hold all of them at once.
    logits = scope.weight("bias", module.bias)
    for term in terms:
        logits = term + logits
    return logits


def _interpolated(
    module: DenseFeatures | SequenceFeatures | LinearFeatures,
    scope: Scope,
    encoded: Mapping[str, Any],
) -> Iterator[tuple[Interpolation, Value]]:
    """Yield what computes piecewise-linear columns, and the result, as in `forward`."""
    for i, group in enumerate(module.interpolations):
        tables = [module.get_parameter(parameter_name(name)) for name in group.columns]
        bins = group.bins(tables)
        values = scope.inside(f"interpolations.{i}").weight("bins", bins)
        ids = concat([encoded[key].values for key in group.keys], axis=1)
        found = values.take(ids + group.first.cpu().numpy())
        if group.encoding == "onehot":
            yield group, found
            continue
        size = bins.shape[1] // 2
        start = found.take(np.arange(size), axis=-1)
        end = found.take(np.arange(size, 2 * size), axis=-1)
        fractions = concat([encoded[key] for key in group.weight_keys], axis=1)
        fraction = fractions.cast(start.dtype).unsqueeze(-1)
        yield group, start + fraction * (end - start)


def _output(
    output: Any,
    module: DenseFeatures | SequenceFeatures,
    scope: Scope,
    encoded: Mapping[str, Any],
) -> Any:
    """Return the output of one column, maybe as `Numbers`."""
    entry = encoded[output.key]
    if isinstance(output, ValuesOutput):
        return entry
    if isinstance(output, CodeOutput):
        fractions = encoded[output.weight_key].cast(_numpy_dtype(module.dtype))
        return _code(output, entry.values, fractions)
    if isinstance(output, PeriodicOutput):
        numbers = computed([entry]) if isinstance(entry, Numbers) else entry
        name = module_name(output.column)
        with scope.graph.scope(output.column):
            numbers = numbers.cast(_numpy_dtype(module.dtype))
            return _waves(module.get_submodule(name), scope.inside(name), numbers)
    factors = encoded[output.weight_key] if output.weight_key else None
    with scope.graph.scope(output.column):
        if isinstance(output, CountsOutput):
            return _counts(entry, output.size, module.dtype, factors)
        name = parameter_name(output.table)
        table = module.get_parameter(name)
        if output.max_norm is None:
            weight = scope.weight(name, table)
        else:  # the rows are what they are: they are scaled once and for all
            rows = clipped(table, output.max_norm)
            weight = scope.weight(name, rows, f"_at_most_{output.max_norm:g}")
        return _combined_rows(weight, entry, output.combiner, factors)


def _waves(module: Any, scope: Scope, numbers: Value) -> Value:
    """Return numbers beside waves of them; as `PeriodicNumbers`."""
    frequencies, phases, weights, bias = (
        scope.weight(name, tensor) for name, tensor in module.named_parameters()
    )
    x = numbers.transposed(1, 0).unsqueeze(2)
    angles = x * (frequencies * (2 * math.pi)).unsqueeze(1) + phases.unsqueeze(1)
    waves = angles.graph.add("Cos", angles) @ weights + bias.unsqueeze(1)
    return concat([x, waves], axis=-1).transposed(1, 0, 2).flatten()


def _code(output: CodeOutput, ids: Value, fractions: Value) -> Value:
    """Return the code of numbers; as `CodeOutput`."""
    elements = np.repeat(np.arange(len(output.sizes)), output.sizes)
    places = np.concatenate([np.arange(size) for size in output.sizes])
    ahead = (ids.take(elements, axis=1) - places).cast(fractions.dtype)
    ahead = ahead + fractions.take(elements, axis=1)
    zero, one = ahead.constant(0), ahead.constant(1)
    if output.encoding != "ple":
        ahead = one - ahead.graph.add("Abs", ahead)
    return ahead.graph.add("Clip", ahead, zero, one)


def _counts(
    ids: Ids | EveryId, size: int, dtype: torch.dtype, factors: Value | None
) -> Value:
    """Count the ids, or sum their weights; as `CountsOutput`."""
    number = _numpy_dtype(dtype)
    if isinstance(ids, EveryId):
        return _given(factors).cast(number)
    if ids.width == 1 and factors is None:
        return ids.values.equals(np.arange(size)).cast(number)
    n_rows, n_values = (ids.values.length(axis) for axis in (0, 1))
    if factors is None:  # numbers of ids are exact in any type
        factors = ids.values.graph.constant(np.ones((), number))
        factors = factors.expanded(n_rows, n_values)
    else:
        factors = factors.cast(number).cast(_SUMMED)
    # Each is added where it belongs: nothing is as large as all lists times all ids. An
    # id of -1 takes the last column, which is left out again.
    none = factors.constant(0).expanded(n_rows, size + 1)
    return none.add_at(ids.values, factors).without_last(axis=1).cast(number)


def _combined_rows(
    table: Value, ids: Ids | EveryId, combiner: str, factors: Value | None
) -> Value:
    """Combine the rows of each example, as `skest.feature_columns.lookup.combined_rows`."""
    if isinstance(ids, EveryId):
        return _given(factors).cast(table.dtype) @ table
    missing = ids.values < 0
    if factors is not None:
        return _weighted_rows(table, ids.values, combiner, factors.cast(table.dtype))
    if ids.width == 1:  # all combiners agree on one value
        # An id of -1 takes the last row, which is then masked.
        return where(missing, 0, table.take(ids.values.squeeze(-1)))
    total = _sums_of_rows(table, ids.values, ~missing)
    if combiner == "sum":
        return total
    count = (~missing).cast(table.dtype).sum(axis=-1, keepdims=True).maximum(1)
    return total / (count.sqrt() if combiner == "sqrtn" else count)


def _weighted_rows(table: Value, ids: Value, combiner: str, factors: Value) -> Value:
    missing = ids < 0
    if combiner != "sum":
        missing = missing | ~(factors > 0)
        factors = where(missing, 0, factors)
        largest = factors.max(axis=-1, keepdims=True, initial=0)
        factors = factors / where(largest > 0, largest, 1)
    total = _sums_of_rows(table, ids, ~missing, factors)
    if combiner == "sum":
        return total
    if combiner == "sqrtn":
        divisor = (factors * factors).sum(axis=-1, keepdims=True).sqrt()
    else:
        divisor = factors.sum(axis=-1, keepdims=True)
    return total / divisor.maximum(1)  # it is 1 or more, or there is no id


def _sums_of_rows(
    table: Value, ids: Value, is_there: Value, factors: Value | None = None
) -> Value:
    """Sum the rows of each example; only those that are there take memory."""
    places = is_there.nonzero()
    rows = table.take(ids.at(places))
    if factors is not None:
        rows = rows * factors.at(places).unsqueeze(1)
    rows = rows.cast(_SUMMED)
    none = rows.constant(0).expanded(ids.length(0), table.length(1))
    return none.add_rows(places.take([0], axis=1), rows).cast(table.dtype)


def _given(factors: Value | None) -> Value:
    if factors is None:
        raise ValueError("The columns of a matrix have numbers.")
    return factors
