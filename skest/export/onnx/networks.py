# SPDX-License-Identifier: Apache-2.0
"""The networks of skest in an ONNX graph, written without tracing them.

That takes some milliseconds and the package onnx only, and leaves lists of ids as they are;
torch takes seconds and onnxscript (`skest.export.onnx.tracing`). The graph is that of
``network.eval()``: no dropout, moving averages in batch norm.
"""

import math
from collections.abc import Iterator, Mapping
from functools import singledispatch
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from skest.exceptions import ExportError
from skest.export.onnx.columns import EveryId, Ids
from skest.export.onnx.graph import Graph, Value, concat, where
from skest.export.onnx.heads import activated, is_activation, members_mean
from skest.export.onnx.numbers import as_value, computed
from skest.feature_columns import modules
from skest.feature_columns.lookup import clipped
from skest.feature_columns.numeric_vectors import CodeOutput, Interpolation
from skest.heads.sampled_softmax import ClassTable
from skest.networks.dnn import DNN, Baseline, BatchNorm, Combined, Dropout
from skest.networks.rnn import RNN


class Scope(NamedTuple):
    """Where a module is: the graph, and its path in the network.

    Attributes
    ----------
    graph : Graph
        The graph.
    path : str
        Empty, or the names of the modules around it, each with a dot behind it.
    """

    graph: Graph
    path: str = ""

    def inside(self, name: str) -> "Scope":
        """Return the scope of a submodule."""
        return Scope(self.graph, f"{self.path}{name}.")

    def weight(self, name: str, tensor: Tensor, suffix: str = "") -> Value:
        """Return a variable of the module under its path, maybe changed."""
        array = tensor.detach().cpu().numpy()
        return self.graph.weight(f"{self.path}{name}{suffix}", array)


# Scatter adds one number after another, of which float32 loses too much in long lists.
_SUMMED = np.dtype(np.float64)


def dense_features(
    module: modules.DenseFeatures, scope: Scope, encoded: Mapping[str, Any]
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
        if isinstance(output, modules.InterpolatedOutput)
        else _column_output(output, module, scope, encoded)
        for output in module.outputs
    ]
    dtype = numpy_dtype(module.dtype)
    side_by_side = []
    # Neighbours whose numbers are computed alike take as many nodes as one of them.
    for steps, group in groupby(
        outputs, key=lambda entry: getattr(entry, "steps", None)
    ):
        entries = list(group)
        together = entries if steps is None else [computed(entries)]
        side_by_side += [values.cast(dtype) for values in together]
    return concat(side_by_side, axis=-1)


def numpy_dtype(dtype: torch.dtype) -> np.dtype:
    """Return the type of NumPy of the same name."""
    return np.dtype(str(dtype).removeprefix("torch."))


def _sequence_features(
    module: modules.SequenceFeatures, scope: Scope, encoded: Mapping[str, Any]
) -> tuple[Value, Value]:
    """Return the outputs of sequence columns side by side, and the lengths.

    Steps that no sequence of the batch has stay, for the network does not look at them.
    """
    # Ids become those of columns that have one for each step.
    steps = {
        key: Ids(entry.values.unsqueeze(2), entry.present.unsqueeze(2), 1)
        if isinstance(entry, Ids)
        else entry
        for key, entry in encoded.items()
    }
    outputs = [
        _column_output(output, module, scope, steps) for output in module.outputs
    ]
    return concat(outputs, axis=-1), encoded[module.length_key]


def _linear_features(
    module: modules.LinearFeatures, scope: Scope, encoded: Mapping[str, Any]
) -> Value:
    """Return the sum of bias, looked-up weights and weighted dense outputs."""
    terms = []
    for name, key, weight_key, combiner in module.looked_up:
        parameter = modules.parameter_name(name)
        table = scope.weight(parameter, module.get_parameter(parameter))
        factors = encoded[weight_key] if weight_key else None
        terms.append(_combined_rows(table, encoded[key], combiner, factors))
    for _, values in _interpolated(module, scope, encoded):
        terms.append(values.sum(axis=1))
    if module.dense is not None:
        names = map(modules.parameter_name, module.multiplied)
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
    module: modules.DenseFeatures | modules.SequenceFeatures | modules.LinearFeatures,
    scope: Scope,
    encoded: Mapping[str, Any],
) -> Iterator[tuple[Interpolation, Value]]:
    """Yield what computes piecewise-linear columns, and the result, as in `forward`."""
    for i, group in enumerate(module.interpolations):
        tables = [
            module.get_parameter(modules.parameter_name(name)) for name in group.columns
        ]
        # Without training, what the tables come to is a constant.
        bins = group.bins(tables)
        values = scope.inside(f"interpolations.{i}").weight("bins", bins)
        ids = concat([encoded[key].values for key in group.keys], axis=1)
        found = values.take(ids + group.first.cpu().numpy())
        if group.encoding == "onehot":
            yield group, found
            continue
        # Side by side in a row: the value at the end of a bin, and the rise within it.
        size = bins.shape[1] // 2
        end = found.take(np.arange(size), axis=-1)
        rise = found.take(np.arange(size, 2 * size), axis=-1)
        fractions = concat([encoded[key] for key in group.weight_keys], axis=1)
        yield group, end + (fractions - 1).cast(end.dtype).unsqueeze(-1) * rise


def _column_output(
    output: Any,
    module: modules.DenseFeatures | modules.SequenceFeatures,
    scope: Scope,
    encoded: Mapping[str, Any],
) -> Any:
    """Return the output of one column, maybe as `Numbers`."""
    entry = encoded[output.key]
    if isinstance(output, modules.ValuesOutput):
        return entry
    if isinstance(output, CodeOutput):
        fractions = encoded[output.weight_key].cast(numpy_dtype(module.dtype))
        return _code(output, entry.values, fractions)
    if isinstance(output, modules.PeriodicOutput):
        numbers = as_value(entry)
        name = modules.module_name(output.column)
        with scope.graph.scope(output.column):
            numbers = numbers.cast(numpy_dtype(module.dtype))
            return _waves(module.get_submodule(name), scope.inside(name), numbers)
    factors = encoded[output.weight_key] if output.weight_key else None
    with scope.graph.scope(output.column):
        if isinstance(output, modules.CountsOutput):
            return _counts(entry, output.size, module.dtype, factors)
        name = modules.parameter_name(output.table)
        table = module.get_parameter(name)
        if output.max_norm is None:
            weight = scope.weight(name, table)
        else:  # the rows are what they are: they are scaled once and for all
            rows = clipped(table, output.max_norm)
            weight = scope.weight(name, rows, f"_at_most_{output.max_norm:g}")
        return _combined_rows(weight, entry, output.combiner, factors)


def _waves(module: Any, scope: Scope, numbers: Value) -> Value:
    """Return numbers beside waves of them; as `PeriodicNumbers`."""
    # PBLD of RealMLP: periodic, with bias, linear, beside the number (Holzmüller et al.,
    # NeurIPS 2024).
    frequencies, phases, weights, bias = (
        scope.weight(name, tensor) for name, tensor in module.named_parameters()
    )
    x = numbers.transposed(1, 0).unsqueeze(2)
    angles = x * (frequencies * (2 * math.pi)).unsqueeze(1) + phases.unsqueeze(1)
    waves = angles.apply("Cos") @ weights + bias.unsqueeze(1)
    return concat([x, waves], axis=-1).transposed(1, 0, 2).flatten()


def _code(output: CodeOutput, ids: Value, fractions: Value) -> Value:
    """Return the code of numbers; as `CodeOutput`."""
    # The code of an element has as many columns as it has bins ("ple") or edges.
    elements = np.repeat(np.arange(len(output.sizes)), output.sizes)
    places = np.concatenate([np.arange(size) for size in output.sizes])
    ahead = (ids.take(elements, axis=1) - places).cast(fractions.dtype)
    ahead = ahead + fractions.take(elements, axis=1)
    if output.encoding != "ple":
        ahead = ahead.constant(1) - ahead.apply("Abs")
    return ahead.clip(0, 1)


def _counts(ids: Ids | EveryId, size: int, dtype: torch.dtype, factors: Any) -> Value:
    """Count the ids, or sum their weights; as `CountsOutput`."""
    number = numpy_dtype(dtype)
    if isinstance(ids, EveryId):
        return factors.cast(number)
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
    total = none.graph.add(
        "ScatterElements", none, ids.values, factors, axis=1, reduction="add"
    )
    return total.without_last(axis=1).cast(number)


def _combined_rows(
    table: Value, ids: Ids | EveryId, combiner: str, factors: Any
) -> Value:
    """Combine the rows of each example, as `skest.feature_columns.lookup.combined_rows`."""
    # tf.nn.safe_embedding_lookup_sparse: a row without ids is zero, by each combiner.
    if isinstance(ids, EveryId):
        return factors.cast(table.dtype) @ table
    # Padding, and what is in no vocabulary: such values count as none.
    missing = ids.values < 0
    if factors is not None:
        return _weighted_rows(table, ids.values, combiner, factors.cast(table.dtype))
    if ids.width == 1:  # all combiners agree on one value
        # An id of -1 takes the last row, which is then masked.
        return where(missing, 0, table.take(ids.values.squeeze(-1)))
    total = _sums_of_rows(table, ids.values, ~missing)
    if combiner == "sum":
        return total
    # A row without ids has the sum 0, and stays so.
    # tf.nn.embedding_lookup_sparse with weights of 1, whose squares are 1 as well.
    count = (~missing).cast(table.dtype).sum(axis=-1, keepdims=True).maximum(1)
    return total / (count.apply("Sqrt") if combiner == "sqrtn" else count)


def _weighted_rows(table: Value, ids: Value, combiner: str, factors: Value) -> Value:
    missing = ids < 0
    if combiner != "sum":
        missing = missing | ~(factors > 0)
        factors = where(missing, 0, factors)
        # A mean has no scale: relative to the largest, no square is out of range.
        largest = factors.max(axis=-1, keepdims=True, initial=0)
        factors = factors / where(largest > 0, largest, 1)
    total = _sums_of_rows(table, ids, ~missing, factors)
    if combiner == "sum":
        return total
    if combiner == "sqrtn":
        divisor = (factors * factors).sum(axis=-1, keepdims=True).apply("Sqrt")
    else:
        divisor = factors.sum(axis=-1, keepdims=True)
    return total / divisor.maximum(1)  # it is 1 or more, or there is no id


def _sums_of_rows(
    table: Value, ids: Value, is_there: Value, factors: Value | None = None
) -> Value:
    """Sum the rows of each example; only those that are there take memory."""
    graph = table.graph
    # Row and column of each value, as (n, 2); NonZero gives (2, n).
    places = graph.add("NonZero", is_there, dtype=np.int64, ndim=2).transposed(1, 0)
    rows = table.take(graph.add("GatherND", ids, places, ndim=1))
    if factors is not None:
        rows = rows * graph.add("GatherND", factors, places, ndim=1).unsqueeze(1)
    rows = rows.cast(_SUMMED)
    none = rows.constant(0).expanded(ids.length(0), table.length(1))
    places = places.take([0], axis=1)
    return graph.add("ScatterND", none, places, rows, reduction="add").cast(table.dtype)


_RECURRENT = {nn.RNN: "RNN", nn.LSTM: "LSTM", nn.GRU: "GRU"}
# The gates of a layer: their places in torch, in the order of ONNX. An LSTM has i, f, g, o
# in torch and i, o, f, c in ONNX, a GRU r, z, n and z, r, h.
_GATES = {nn.RNN: (0,), nn.LSTM: (0, 3, 1, 2), nn.GRU: (1, 0, 2)}


def network_output(network: nn.Module, scope: Scope, features: Any) -> Any:
    """Return what a module gives.

    Parameters
    ----------
    network : torch.nn.Module
        One of the networks of skest, or a simple layer of torch.
    scope : Scope
        Where it is.
    features : Value, or dict of Value, Ids and EveryId
        What it takes.

    Returns
    -------
    Value, or a pair of them for `SequenceFeatures`

    Raises
    ------
    ExportError
        If there is no way to write the module, or it has hooks.
    """
    kind: Any = type(network)
    known = (base for base in kind.__mro__[:-1] if base in _output.registry)
    # What a subclass computes in its own way, no function for its base can know.
    base = next(known, None)
    is_ours = kind.__module__.partition(".")[0] in ("skest", "torch")
    same = base is not None and is_ours and kind.forward is base.forward
    same = same or is_activation(network)
    # A hook may change what the module gives, and no function here knows how.
    hooked = network._forward_hooks or network._forward_pre_hooks
    if not same or hooked:
        place = f" at {scope.path[:-1]!r}" if scope.path else ""
        reason = "has hooks" if same and hooked else "is not one of skest's own"
        raise ExportError(
            f"The module {kind.__name__}{place} cannot be written as ONNX, because it "
            f"{reason}. Use a network of skest.networks and layers of torch.nn that "
            "these consist of."
        )
    if is_activation(network):
        return activated(network, features)
    with scope.graph.scope(scope.path.rstrip(".").rpartition(".")[2] or kind.__name__):
        return _output(network, scope, features)


@singledispatch
def _output(network: Any, scope: Scope, features: Any) -> Any:
    raise NotImplementedError(type(network).__name__)


def _child(network: nn.Module, name: str, scope: Scope, features: Any) -> Any:
    return network_output(network.get_submodule(name), scope.inside(name), features)


_output.register(modules.DenseFeatures)(dense_features)
_output.register(modules.LinearFeatures)(_linear_features)
_output.register(modules.SequenceFeatures)(_sequence_features)

# Networks


@_output.register
def _(network: DNN, scope: Scope, features: Any) -> Value:
    x = _child(network, "inputs", scope, features)
    layer = _child
    if network.member_scales is not None:
        layer = _member_child
        x = x.unsqueeze(0) * scope.weight(
            "member_scales", network.member_scales.unsqueeze(1), "_of_rows"
        )
    for i in range(network.n_hidden):
        x = layer(network, f"hidden_{i}", scope, x)
        x = activated(network.activation, x)
        # As `_DNNModel` of tf.estimator: behind the activation, and behind dropout.
        if f"batch_norm_{i}" in network._modules:
            x = _child(network, f"batch_norm_{i}", scope, x)
    return _joined(network, layer(network, "logits", scope, x))


def _member_child(network: nn.Module, name: str, scope: Scope, features: Any) -> Any:
    """Return what a linear layer makes of the rows of all members."""
    child, inside = network.get_submodule(name), scope.inside(name)
    # One matrix for all members; other layers have one for each.
    if isinstance(child, nn.Linear):
        weight = inside.weight("weight", child.weight.T, "_transposed")
    else:
        weight = inside.weight("weight", child.get_parameter("weight"))
    with scope.graph.scope(name):
        return features @ weight + inside.weight("bias", child.get_parameter("bias"))


def _joined(network: DNN | Combined, logits: Value) -> Value:
    """Return the logits of all members together, if there are members."""
    mean: Any = network.mean_logits
    return logits if mean is None else members_mean(mean.head, logits)


@_output.register
def _(network: Combined, scope: Scope, features: Any) -> Value:
    parts = [
        _child(network, name, scope, features[name])
        for name in ("linear", "dnn")
        if getattr(network, name) is not None
    ]
    return _joined(network, parts[0] if len(parts) == 1 else parts[0] + parts[1])


@_output.register
def _(network: Baseline, scope: Scope, features: Any) -> Value:
    bias = scope.weight("bias", network.bias)
    return bias.expanded(features["rows"].length(0), len(network.bias))


@_output.register
def _(network: RNN, scope: Scope, features: Any) -> Value:
    steps, lengths = _child(network, "sequence", scope, features["sequence"])
    if network.context is not None:
        context = _child(network, "context", scope, features["context"]).unsqueeze(1)
        size: Any = network.context.out_features
        repeated = context.expanded(steps.length(0), steps.length(1), size)
        steps = concat([steps, repeated], axis=2)
    # ONNX Runtime ends the process without a row, and refuses to run without a step: one
    # more of both, of which the row is left out again, and the step is behind all ends.
    steps = steps.graph.add("Pad", steps, lengths.constant([0, 0, 0, 1, 1, 0]))
    lengths = concat([lengths, lengths.constant([1])], axis=0)
    # ONNX has the steps first: (n_steps, n_rows, size).
    x = steps.transposed(1, 0, 2)
    for name in network._layers:
        inside = scope.inside(name)
        with scope.graph.scope(name):
            x, last = _recurrent(network.get_submodule(name), inside, x, lengths)
    # A sequence without a step ends in the state in which it begins.
    state = where(lengths.equals(0).unsqueeze(1), 0, last).without_last()
    return _child(network, "logits", scope, state)


def _recurrent(
    layer: Any, scope: Scope, x: Value, lengths: Value
) -> tuple[Value, Value]:
    """Return all states, of shape (n_steps, n_rows, n_units), and the last ones.

    ONNX Runtime has recurrent layers of float32 only.
    """
    kind = type(layer)
    given = dict(layer.named_parameters())
    n_gates, n_units = len(_GATES[kind]), layer.hidden_size

    def in_order(name: str) -> Tensor:
        gates = given[name].detach().reshape(n_gates, n_units, -1)[list(_GATES[kind])]
        return gates.reshape(1, n_gates * n_units, -1).float()

    # ONNX wants both biases in one tensor, of shape (1, 2 * n_gates * n_units).
    biases = torch.cat([in_order("bias_ih_l0"), in_order("bias_hh_l0")], dim=1)
    # torch multiplies the reset gate behind the bias, Keras before it.
    options: dict[str, Any] = {"linear_before_reset": 1} if kind is nn.GRU else {}
    outputs = scope.graph.add_many(
        _RECURRENT[kind],
        x.cast(np.float32),
        scope.weight("weight_ih_l0", in_order("weight_ih_l0"), "_gates"),
        scope.weight("weight_hh_l0", in_order("weight_hh_l0"), "_gates"),
        scope.weight("bias", biases[:, :, 0], "_gates"),
        lengths.cast(np.int32),
        outputs=[(np.float32, 4), (np.float32, 3)],
        hidden_size=n_units,
        **options,
    )
    states, last = (output.cast(x.dtype) for output in outputs)
    return states.squeeze(1), last.squeeze(0)


# Layers


@_output.register
def _(layer: nn.Linear, scope: Scope, x: Value) -> Value:
    if x.ndim != 2:
        raise ExportError("Gemm takes matrices, others are traced.")
    # Weights lie as in torch, (n_out, n_in), and have its names: transB says so.
    inputs = [x, scope.weight("weight", layer.weight)]
    if layer.bias is not None:
        inputs.append(scope.weight("bias", layer.bias))
    return scope.graph.add("Gemm", *inputs, transB=1)


@_output.register
def _(layer: ClassTable, scope: Scope, x: Value) -> Value:
    # The bias is a table of one column, whose rows are updated like those of the weights.
    weight, bias = (scope.weight(n, getattr(layer, n)) for n in ("weight", "bias"))
    return scope.graph.add("Gemm", x, weight, bias.squeeze(1), transB=1)


@_output.register(BatchNorm)
@_output.register(nn.BatchNorm1d)
def _(layer: Any, scope: Scope, x: Value) -> Value:
    return scope.graph.add(
        "BatchNormalization",
        x,
        *_scale_and_shift(layer, scope, x, layer.running_mean.shape),
        scope.weight("running_mean", layer.running_mean),
        scope.weight("running_var", layer.running_var),
        epsilon=layer.eps,
    )


@_output.register
def _(layer: nn.LayerNorm, scope: Scope, x: Value) -> Value:
    weights = _scale_and_shift(layer, scope, x, layer.normalized_shape)
    options: Any = {"axis": -len(layer.normalized_shape), "epsilon": layer.eps}
    return scope.graph.add("LayerNormalization", x, *weights, **options)


def _scale_and_shift(layer: Any, scope: Scope, x: Value, shape: Any) -> list[Value]:
    """Return weight and bias of a normalization, which may have none."""
    return [
        scope.graph.constant(np.full(shape, fill, x.dtype))
        if getattr(layer, name) is None
        else scope.weight(name, getattr(layer, name))
        for name, fill in (("weight", 1), ("bias", 0))
    ]


@_output.register(nn.Dropout)
@_output.register(Dropout)
def _(layer: nn.Module, scope: Scope, x: Value) -> Value:
    return x


@_output.register
def _(network: nn.Sequential, scope: Scope, x: Any) -> Any:
    for name in network._modules:
        x = _child(network, name, scope, x)
    return x
