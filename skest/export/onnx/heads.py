# SPDX-License-Identifier: Apache-2.0
"""Activations and heads in an ONNX graph: from logits to predictions."""

import math
from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from skest.exceptions import ExportError
from skest.export.classes import LABELS, check_has_classes, class_labels, class_texts
from skest.export.onnx.graph import Value, concat
from skest.heads.base import Head
from skest.heads.classification import BinaryClassHead, MultiClassHead, SingleLabelHead
from skest.heads.multi_head import MultiHead
from skest.heads.multi_label import MultiLabelHead
from skest.heads.regression import (
    LogisticRegressionHead,
    PoissonRegressionHead,
    RegressionHead,
)
from skest.heads.sampled_softmax import SampledSoftmaxHead
from skest.heads.single_task import SingleTaskHead
from skest.keys import PredictionKeys
from skest.networks.layers import ACTIVATIONS


def activated(function: Callable[..., Any], x: Value) -> Value:
    """Return what an activation function gives.

    Parameters
    ----------
    function : callable
        One of `skest.networks.ACTIVATIONS`, a function of torch that is the
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
    return x * 0.5 * (_operator("Tanh")(inner) + 1)


@_module.register
def _(module: nn.LeakyReLU, x: Value) -> Value:
    return x.graph.add("LeakyRelu", x, alpha=float(module.negative_slope))


def _sigmoid(x: Value) -> Value:
    """Return the logistic function, with all digits of small values.

    The operator Sigmoid of ONNX Runtime is 0 in float32 from -18 on.
    """
    return x.graph.add("Reciprocal", _operator("Exp")(-x) + 1)


def _operator(op: str, **attributes: Any) -> Callable[[Value], Value]:
    return lambda x: x.graph.add(op, x, **attributes)


# ONNX Runtime 1.17 joins Relu and Tanh with the layer before them, also in float64, where
# it cannot run the two together.


def _relu(x: Value) -> Value:
    return _operator("Relu")(x) if x.dtype == np.float32 else x.maximum(0)


def _tanh(x: Value) -> Value:
    return _operator("Tanh")(x) if x.dtype == np.float32 else _sigmoid(x * 2) * 2 - 1


def _gelu(x: Value) -> Value:
    # ONNX Runtime has the error function in float32 only.
    scaled = (x / math.sqrt(2)).cast(np.float32)
    return x * 0.5 * (_operator("Erf")(scaled).cast(x.dtype) + 1)


_MODULES: dict[type[nn.Module], Callable[[Value], Value]] = {
    nn.Identity: lambda x: x,
    nn.ReLU: _relu,
    nn.SELU: _operator("Selu"),
    nn.SiLU: lambda x: x * _sigmoid(x),
    nn.Sigmoid: _sigmoid,
    nn.Tanh: _tanh,
}
for _kind, _function in _MODULES.items():
    _module.register(_kind, lambda module, x, function=_function: function(x))

_FUNCTIONS: dict[Any, Callable[[Value], Value]] = {
    ACTIVATIONS["identity"]: lambda x: x,
    ACTIVATIONS["leaky_relu"]: _operator("LeakyRelu", alpha=0.2),
    F.elu: _operator("Elu", alpha=1.0),
    F.gelu: _gelu,
    F.leaky_relu: _operator("LeakyRelu", alpha=0.01),
    F.selu: _operator("Selu"),
    F.silu: lambda x: x * _sigmoid(x),
    F.softplus: _operator("Softplus"),
    **dict.fromkeys([torch.relu, F.relu], _relu),
    **dict.fromkeys([torch.sigmoid, F.sigmoid], _sigmoid),
    **dict.fromkeys([torch.tanh, F.tanh], _tanh),
    torch.exp: _operator("Exp"),
}


_KNOWN = (
    BinaryClassHead,
    LogisticRegressionHead,
    MultiClassHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
    SampledSoftmaxHead,
)

# A prediction, and the number of its columns.
Prediction = tuple[Value, int]


def split_logits(head: Head, logits: Any) -> dict[str | None, Value]:
    """Return the logits of the heads by name; None is that of one head alone."""
    if isinstance(logits, Mapping):
        return dict(logits)
    if not isinstance(head, MultiHead):
        return {None: logits}
    ends = np.cumsum([part.logits_dimension for part in head.heads])
    return {
        part.name: logits.take(np.arange(end - part.logits_dimension, end), axis=1)
        for part, end in zip(head.heads, ends.tolist(), strict=True)
    }


def members_mean(head: Head, logits: Value) -> Value:
    """Return what `skest.heads.ensemble.mean_logits` does, for logits of members."""
    if isinstance(head, MultiHead):
        parts, start = [], 0
        for part in head.heads:
            end = start + part.logits_dimension
            chosen = logits.take(np.arange(start, end), axis=2)
            parts.append(members_mean(part, chosen))
            start = end
        return concat(parts, axis=1)
    if isinstance(head, MultiClassHead):
        return _log_mean_exp(_node("LogSoftmax", logits, axis=-1))
    if isinstance(head, BinaryClassHead | MultiLabelHead | LogisticRegressionHead):
        return _log_mean_exp(-_node("Softplus", -logits)) - _log_mean_exp(
            -_node("Softplus", logits)
        )
    if isinstance(head, PoissonRegressionHead):
        return _log_mean_exp(logits)
    return logits.sum(axis=0) / logits.length(0).cast(logits.dtype)


def _log_mean_exp(x: Value) -> Value:
    greatest = x.max(axis=0, keepdims=True)
    total = _node("Exp", x - greatest).sum(axis=0)
    count = x.length(0).cast(x.dtype)
    return _node("Log", total / count) + greatest.squeeze(0)


def task_predictions(
    head: SingleTaskHead, logits: Value, classes: Any = None
) -> dict[str, Prediction]:
    """Return the predictions of a head for one target.

    Parameters
    ----------
    head : SingleTaskHead
        One of `skest.heads`.
    logits : Value
        Of shape (n_rows, logits_dimension).
    classes : array-like of shape (n_classes,), default=None
        The classes in the type of the labels, in the order of their ids, if the head does
        not name them itself.

    Returns
    -------
    dict of str to (Value, int)
        Predictions by key, with their numbers of columns.

    Raises
    ------
    ExportError
        If the head is of another class, or has another link function than those of
        `skest.networks.layers`.
    """
    if type(head) not in _KNOWN:
        raise ExportError(
            f"The head {head!r} cannot be written as ONNX. Use one of the heads of "
            "skest.heads."
        )
    return _predictions(head, logits, classes)


@singledispatch
def _predictions(head: Any, logits: Value, classes: Any) -> dict[str, Prediction]:
    raise NotImplementedError(type(head).__name__)


@_predictions.register
def _(head: RegressionHead, logits: Value, classes: Any) -> dict[str, Prediction]:
    size = head.logits_dimension
    if head.inverse_link_fn is None:
        return {PredictionKeys.PREDICTIONS: (logits, size)}
    return {
        PredictionKeys.PREDICTIONS: (activated(head.inverse_link_fn, logits), size),
        PredictionKeys.LOGITS: (logits, size),
    }


@_predictions.register
def _(head: MultiLabelHead, logits: Value, classes: Any) -> dict[str, Prediction]:
    size = head.n_classes
    names = class_texts(head, classes)
    return {
        PredictionKeys.LOGITS: (logits, size),
        PredictionKeys.PROBABILITIES: (_sigmoid(logits), size),
        PredictionKeys.CLASSES: (_in_every_row(names, logits), size),
        LABELS: ((logits > 0).cast(np.int64), size),
    }


@_predictions.register
def _(head: BinaryClassHead, logits: Value, classes: Any) -> dict[str, Prediction]:
    # Its Softmax keeps the digits of a small probability, its Sigmoid does not.
    probabilities = _node("Softmax", concat([logits - logits, logits], axis=1), axis=1)
    return {
        PredictionKeys.LOGITS: (logits, 1),
        PredictionKeys.LOGISTIC: (probabilities.take([1], axis=1), 1),
        PredictionKeys.PROBABILITIES: (probabilities, 2),
        **_chosen(head, (logits > 0).cast(np.int64), classes),
        **_all_classes(head, logits, classes),
    }


@_predictions.register
def _(head: MultiClassHead, logits: Value, classes: Any) -> dict[str, Prediction]:
    probabilities = _node("Softmax", logits, axis=-1)
    return {
        PredictionKeys.LOGITS: (logits, head.n_classes),
        PredictionKeys.PROBABILITIES: (probabilities, head.n_classes),
        **_chosen(head, _greatest(logits), classes),
        **_all_classes(head, logits, classes),
    }


@_predictions.register
def _(head: SampledSoftmaxHead, logits: Value, classes: Any) -> dict[str, Prediction]:
    graph, k = logits.graph, head._top_k
    probabilities = _node("Softmax", logits, axis=-1)
    best, ids = graph.add_many(
        "TopK",
        logits,
        graph.constant(np.array([k])),
        outputs=[(logits.dtype, 2), (np.int64, 2)],
    )
    greatest = logits.max(axis=-1, keepdims=True)
    total = _node("Exp", logits - greatest).sum(axis=-1, keepdims=True)
    names = graph.constant(class_texts(head, classes))
    return {
        PredictionKeys.LOGITS: (logits, head.n_classes),
        PredictionKeys.PROBABILITIES: (probabilities, head.n_classes),
        **_chosen(head, _greatest(logits), classes),
        PredictionKeys.TOP_K_CLASS_IDS: (ids, k),
        PredictionKeys.TOP_K_PROBABILITIES: (_node("Exp", best - greatest) / total, k),
        PredictionKeys.TOP_K_CLASSES: (names.take(ids), k),
    }


def with_classes(
    head: Any, predictions: Mapping[str, Value], classes: Any = None
) -> dict[str, Prediction]:
    """Return what belongs to predictions that have the keys of a head, not from it.

    Parameters
    ----------
    head : SingleTaskHead
        One of `skest.heads`.
    predictions : dict of str to Value
        Of classes "class_ids", of labels "logits".
    classes : array-like of shape (n_classes,), default=None
        See `task_predictions`.

    Returns
    -------
    dict of str to (Value, int)
        The names of classes, the answers in the type of the labels, and the numbers of
        their columns. Nothing for numbers.
    """
    check_has_classes(head, predictions)
    if isinstance(head, MultiLabelHead):
        logits = predictions[PredictionKeys.LOGITS]
        every = _predictions(head, logits, classes)
        return {key: every[key] for key in (PredictionKeys.CLASSES, LABELS)}
    if isinstance(head, SingleLabelHead):
        ids = predictions[PredictionKeys.CLASS_IDS]
        return {**_chosen(head, ids, classes), **_all_classes(head, ids, classes)}
    return {}


def _node(op: str, value: Value, **attributes: Any) -> Value:
    return value.graph.add(op, value, **attributes)


def _greatest(logits: Value) -> Value:
    """Return the position of the greatest logit; the lowest among equals."""
    # From the front: of no rows, ONNX Runtime takes a negative axis for another one.
    axis = logits.ndim - 1
    return logits.graph.add("ArgMax", logits, dtype=np.int64, axis=axis, keepdims=1)


def _chosen(head: Any, ids: Value, classes: Any) -> Mapping[str, Prediction]:
    """Return the predicted class: its id, its name, and as it is among the labels."""
    names = ids.graph.constant(class_texts(head, classes))
    labels = ids.graph.constant(class_labels(head, classes))
    return {
        PredictionKeys.CLASS_IDS: (ids, 1),
        PredictionKeys.CLASSES: (names.take(ids), 1),
        LABELS: (labels.take(ids), 1),
    }


def _all_classes(head: Any, logits: Value, classes: Any) -> Mapping[str, Prediction]:
    ids = np.arange(head.n_classes, dtype=np.int32)
    names = class_texts(head, classes)
    return {
        PredictionKeys.ALL_CLASS_IDS: (_in_every_row(ids, logits), head.n_classes),
        PredictionKeys.ALL_CLASSES: (_in_every_row(names, logits), head.n_classes),
    }


def _in_every_row(row: np.ndarray, logits: Value) -> Value:
    return logits.graph.constant(row).expanded(logits.length(0), len(row))
