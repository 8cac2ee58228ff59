# SPDX-License-Identifier: Apache-2.0
"""Activation functions in an ONNX graph."""

import math
from collections.abc import Callable
from functools import singledispatch
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from skest.exceptions import ExportError
from skest.export.graph import Value
from skest.networks.activations import ACTIVATIONS

__all__ = ["activated", "sigmoid"]


def activated(function: Callable[..., Any], x: Value) -> Value:
    """Return what an activation function gives.

    Parameters
    ----------
    function : callable
        One of `skest.networks.activations.ACTIVATIONS`, a function of torch that is the
        same, or a module of torch without variables.
    x : Value
        What it takes.

    Raises
    ------
    ExportError
        If it is another function.
    """
    if isinstance(function, nn.Module):
        if type(function) in _module.registry:
            return _module(function, x)
    elif function in _FUNCTIONS:
        return _FUNCTIONS[function](x)
    name = getattr(function, "__name__", type(function).__name__)
    raise ExportError(
        f"The activation {name!r} cannot be written as ONNX. Use one of "
        f"{', '.join(ACTIVATIONS)} by name, or a module of torch.nn that is the same."
    )


@singledispatch
def _module(module: Any, x: Value) -> Value:
    raise NotImplementedError(type(module).__name__)


@_module.register
def _(module: nn.ELU, x: Value) -> Value:
    return x.graph.add("Elu", x, alpha=float(module.alpha))


@_module.register
def _(module: nn.GELU, x: Value) -> Value:
    if module.approximate == "none":
        return _gelu(x)
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (_node("Tanh")(inner) + 1)


@_module.register
def _(module: nn.LeakyReLU, x: Value) -> Value:
    return x.graph.add("LeakyRelu", x, alpha=float(module.negative_slope))


def sigmoid(x: Value) -> Value:
    """Return the logistic function, with all digits of small values.

    The operator Sigmoid of ONNX Runtime is 0 in float32 from -18 on.
    """
    return x.graph.add("Reciprocal", _node("Exp")(-x) + 1)


def _node(op: str, **attributes: Any) -> Callable[[Value], Value]:
    return lambda x: x.graph.add(op, x, **attributes)


# ONNX Runtime 1.17 joins Relu and Tanh with the layer before them, also in float64, where
# it cannot run the two together.


def _relu(x: Value) -> Value:
    return _node("Relu")(x) if x.dtype == np.float32 else x.maximum(0)


def _tanh(x: Value) -> Value:
    return _node("Tanh")(x) if x.dtype == np.float32 else sigmoid(x * 2) * 2 - 1


def _gelu(x: Value) -> Value:
    # ONNX Runtime has the error function in float32 only.
    scaled = (x / math.sqrt(2)).cast(np.float32)
    return x * 0.5 * (_node("Erf")(scaled).cast(x.dtype) + 1)


_MODULES: dict[type[nn.Module], Callable[[Value], Value]] = {
    nn.Identity: lambda x: x,
    nn.ReLU: _relu,
    nn.SELU: _node("Selu"),
    nn.SiLU: lambda x: x * sigmoid(x),
    nn.Sigmoid: sigmoid,
    nn.Tanh: _tanh,
}
for _kind, _function in _MODULES.items():
    _module.register(_kind, lambda module, x, function=_function: function(x))

_FUNCTIONS: dict[Any, Callable[[Value], Value]] = {
    ACTIVATIONS["identity"]: lambda x: x,
    ACTIVATIONS["leaky_relu"]: _node("LeakyRelu", alpha=0.2),
    F.elu: _node("Elu", alpha=1.0),
    F.gelu: _gelu,
    F.leaky_relu: _node("LeakyRelu", alpha=0.01),
    F.selu: _node("Selu"),
    F.silu: lambda x: x * sigmoid(x),
    F.softplus: _node("Softplus"),
    **dict.fromkeys([torch.relu, F.relu], _relu),
    **dict.fromkeys([torch.sigmoid, F.sigmoid], sigmoid),
    **dict.fromkeys([torch.tanh, F.tanh], _tanh),
    torch.exp: _node("Exp"),
}
