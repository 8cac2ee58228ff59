# SPDX-License-Identifier: Apache-2.0
"""The canned networks in an ONNX graph, written without tracing them.

The graph is that of ``network.eval()``: no dropout, moving averages in batch norm.
"""

from functools import singledispatch
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skest.exceptions import ExportError
from skest.export.activations_onnx import activated
from skest.export.features_onnx import (
    dense_features,
    linear_features,
    sequence_features,
)
from skest.export.graph import Value, concat, where
from skest.export.heads_onnx import members_mean
from skest.export.scope import Scope
from skest.feature_columns.modules import (
    DenseFeatures,
    LinearFeatures,
    SequenceFeatures,
)
from skest.heads.class_table import ClassTable
from skest.networks.baseline import Baseline
from skest.networks.batch_norm import BatchNorm
from skest.networks.combined import Combined
from skest.networks.dnn import DNN
from skest.networks.dropout import Dropout
from skest.networks.rnn import RNN

__all__ = ["network_output"]

_RECURRENT = {nn.RNN: "RNN", nn.LSTM: "LSTM", nn.GRU: "GRU"}
# The gates of a layer: their places in torch, in the order of ONNX.
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
    hooked = network._forward_hooks or network._forward_pre_hooks
    if not same or hooked:
        place = f" at {scope.path[:-1]!r}" if scope.path else ""
        reason = "has hooks" if same and hooked else "is not one of skest's own"
        raise ExportError(
            f"The module {kind.__name__}{place} cannot be written as ONNX, because it "
            f"{reason}. Use a network of skest.networks and layers of torch.nn that "
            "these consist of."
        )
    with scope.graph.scope(scope.path.rstrip(".").rpartition(".")[2] or kind.__name__):
        return _output(network, scope, features)


@singledispatch
def _output(network: Any, scope: Scope, features: Any) -> Any:
    raise NotImplementedError(type(network).__name__)


def _child(network: nn.Module, name: str, scope: Scope, features: Any) -> Any:
    return network_output(network.get_submodule(name), scope.inside(name), features)


_output.register(DenseFeatures)(dense_features)
_output.register(LinearFeatures)(linear_features)
_output.register(SequenceFeatures)(sequence_features)

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
        if f"batch_norm_{i}" in network._modules:
            x = _child(network, f"batch_norm_{i}", scope, x)
    return _joined(network, layer(network, "logits", scope, x))


def _member_child(network: nn.Module, name: str, scope: Scope, features: Any) -> Any:
    """Return what a linear layer makes of the rows of all members."""
    child, inside = network.get_submodule(name), scope.inside(name)
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
    x = steps.transposed(1, 0, 2)
    for name in network._layers:
        inside = scope.inside(name)
        with scope.graph.scope(name):
            x, last = _recurrent(network.get_submodule(name), inside, x, lengths)
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
    inputs = [x, scope.weight("weight", layer.weight)]
    if layer.bias is not None:
        inputs.append(scope.weight("bias", layer.bias))
    return scope.graph.add("Gemm", *inputs, transB=1)


@_output.register
def _(layer: ClassTable, scope: Scope, x: Value) -> Value:
    weight, bias = (scope.weight(n, getattr(layer, n)) for n in ("weight", "bias"))
    return scope.graph.add("Gemm", x, weight, bias.squeeze(1), transB=1)


@_output.register(BatchNorm)
@_output.register(nn.BatchNorm1d)
def _(layer: Any, scope: Scope, x: Value) -> Value:
    ones = torch.ones_like(layer.running_mean)
    weight = ones if layer.weight is None else layer.weight
    bias = 0 * ones if layer.bias is None else layer.bias
    return scope.graph.add(
        "BatchNormalization",
        x,
        scope.weight("weight", weight),
        scope.weight("bias", bias),
        scope.weight("running_mean", layer.running_mean),
        scope.weight("running_var", layer.running_var),
        epsilon=layer.eps,
    )


@_output.register
def _(layer: nn.LayerNorm, scope: Scope, x: Value) -> Value:
    ones = torch.ones(layer.normalized_shape, dtype=torch.float32)
    weight = ones if layer.weight is None else layer.weight
    bias = 0 * weight if layer.bias is None else layer.bias
    return scope.graph.add(
        "LayerNormalization",
        x,
        scope.weight("weight", weight),
        scope.weight("bias", bias),
        axis=-len(layer.normalized_shape),
        epsilon=layer.eps,
    )


@_output.register(nn.Dropout)
@_output.register(Dropout)
@_output.register(nn.Identity)
def _(layer: nn.Module, scope: Scope, x: Value) -> Value:
    return x


@_output.register
def _(network: nn.Sequential, scope: Scope, x: Any) -> Any:
    for name in network._modules:
        x = _child(network, name, scope, x)
    return x
