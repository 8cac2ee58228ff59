# SPDX-License-Identifier: Apache-2.0
"""Activations and heads in an ONNX graph: from logits to predictions."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from skest.exceptions import ExportError
from skest.export.onnx.graph import Value, concat
from skest.heads import regression
from skest.heads.base import Head
from skest.heads.classification import BinaryClassHead, MultiClassHead, SingleLabelHead
from skest.heads.labels import class_names
from skest.heads.multi_head import MultiHead
from skest.heads.multi_label import MultiLabelHead
from skest.heads.sampled_softmax import SampledSoftmaxHead
from skest.heads.single_task import SingleTaskHead
from skest.keys import PredictionKeys
from skest.networks.dnn import ACTIVATIONS

#: Key of the answer in the type of the labels; of several labels, their indicators.
LABELS = "labels"

# A prediction, and the number of its columns.
Prediction = tuple[Value, int]


def _sigmoid(x: Value) -> Value:
    """Return the logistic function, with all digits of small values.

    The operator Sigmoid of ONNX Runtime is 0 in float32 from -18 on.
    """
    return ((-x).apply("Exp") + 1).apply("Reciprocal")


# ONNX Runtime 1.17 joins Relu and Tanh with the layer before them, also in float64, where
# it cannot run the two together.


def _relu(x: Value, _: Any) -> Value:
    return x.apply("Relu") if x.dtype == np.float32 else x.maximum(0)


def _tanh(x: Value, _: Any) -> Value:
    return x.apply("Tanh") if x.dtype == np.float32 else _sigmoid(x * 2) * 2 - 1


def _softplus(x: Value) -> Value:
    # That of ONNX Runtime is infinite in float64 from 710 on.
    if x.dtype == np.float32:
        return x.apply("Softplus")
    return x.maximum(0) + ((-x.apply("Abs")).apply("Exp") + 1).apply("Log")


def _gelu(x: Value, module: nn.GELU) -> Value:
    # Hendrycks and Gimpel, "Gaussian Error Linear Units", arXiv 1606.08415, section 2.
    if module.approximate != "none":
        inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
        return x * 0.5 * (inner.apply("Tanh") + 1)
    # ONNX Runtime has the error function in float32 only.
    scaled = (x / math.sqrt(2)).cast(np.float32)
    return x * 0.5 * (scaled.apply("Erf").cast(x.dtype) + 1)


_MODULES: dict[type[nn.Module], Callable[[Value, Any], Value]] = {
    nn.ELU: lambda x, module: x.apply("Elu", alpha=float(module.alpha)),
    nn.GELU: _gelu,
    nn.Identity: lambda x, _: x,
    nn.LeakyReLU: lambda x, m: x.apply("LeakyRelu", alpha=float(m.negative_slope)),
    nn.ReLU: _relu,
    # Alpha and gamma, which are no parameters in torch, are ONNX's defaults.
    nn.SELU: lambda x, _: x.apply("Selu"),
    nn.SiLU: lambda x, _: x * _sigmoid(x),
    nn.Sigmoid: lambda x, _: _sigmoid(x),
    nn.Softplus: lambda x, _: _softplus(x),
    nn.Tanh: _tanh,
}
_AS_MODULES: dict[Any, nn.Module] = {
    ACTIVATIONS["identity"]: nn.Identity(),
    ACTIVATIONS["leaky_relu"]: nn.LeakyReLU(0.2),
    F.elu: nn.ELU(),
    F.gelu: nn.GELU(),
    F.leaky_relu: nn.LeakyReLU(),
    F.selu: nn.SELU(),
    F.silu: nn.SiLU(),
    F.softplus: nn.Softplus(),
    **dict.fromkeys([torch.relu, F.relu], nn.ReLU()),
    **dict.fromkeys([torch.sigmoid, F.sigmoid], nn.Sigmoid()),
    **dict.fromkeys([torch.tanh, F.tanh], nn.Tanh()),
}


def is_activation(module: nn.Module) -> bool:
    """Tell whether a module is one that `activated` knows."""
    is_usual = not isinstance(module, nn.Softplus) or module.beta == 1
    return type(module) in _MODULES and is_usual


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
    # What the head for Poisson regression applies to its logits.
    if function is torch.exp:
        return x.apply("Exp")
    is_module = isinstance(function, nn.Module)
    module: Any = function if is_module else _AS_MODULES.get(function, nn.Module())
    if is_activation(module):
        return _MODULES[type(module)](x, module)
    name = getattr(function, "__name__", type(function).__name__)
    raise ExportError(
        f"The activation {name!r} cannot be written as ONNX. Use one of "
        f"{', '.join(ACTIVATIONS)} by name, or a module of torch.nn that is the same."
    )


def head_predictions(
    head: Head, logits: Any, classes: Any = None
) -> dict[str, Prediction]:
    """Return the predictions of a head; of a `MultiHead` as "<head>/<key>".

    Parameters
    ----------
    head : Head
        One of `skest.heads`.
    logits : Value, or dict of Value
        Of a `MultiHead` side by side along the last axis, or by the name of the head.
    classes : array-like of shape (n_classes,), default=None
        The classes in the type of the labels, in the order of their ids, if the head does
        not name them itself; of a `MultiHead` a dictionary by head.

    Returns
    -------
    dict of str to (Value, int)
        Predictions by key, with their numbers of columns.

    Raises
    ------
    ExportError
        If a head is none of skest.heads, or has another link function than those of
        `skest.networks.dnn`.
    """
    if not isinstance(head, MultiHead):
        task: Any = head
        with logits.graph.scope("head"):
            return _task_predictions(task, logits, classes)
    found: dict[str, Prediction] = {}
    for part, own in _split(head, logits):
        with own.graph.scope(f"{part.name}/head"):
            predictions = _task_predictions(part, own, (classes or {}).get(part.name))
        found |= {f"{part.name}/{key}": entry for key, entry in predictions.items()}
    return found


def _split(head: MultiHead, logits: Any) -> list[tuple[SingleTaskHead, Value]]:
    """Return the heads of a `MultiHead`, each with its logits."""
    if isinstance(logits, Mapping):
        return [(part, logits[part.name]) for part in head.heads]
    # One matrix, of which each head has some columns, in the order of the heads.
    sizes = [part.logits_dimension for part in head.heads]
    columns = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return [
        (part, logits.take(own, axis=-1))
        for part, own in zip(head.heads, columns, strict=True)
    ]


def members_mean(head: Head, logits: Value) -> Value:
    """Return what `skest.canned.dnn.mean_logits` does, for logits of members."""
    if isinstance(head, MultiHead):
        parts = _split(head, logits)
        return concat([members_mean(part, own) for part, own in parts], axis=1)
    if isinstance(head, MultiClassHead):
        # Probabilities are averaged, not logits; a softmax of the logarithm of their
        # mean gives it.
        return _log_mean_exp(logits.apply("LogSoftmax", axis=-1))
    if isinstance(
        head, BinaryClassHead | MultiLabelHead | regression.LogisticRegressionHead
    ):
        # The logarithms of the probability and of its opposite: their difference is the
        # logit of the mean, and neither is ever the logarithm of 0.
        yes, no = -_softplus(-logits), -_softplus(logits)
        return _log_mean_exp(yes) - _log_mean_exp(no)
    # Its link is the exponential: the numbers are averaged, not their logarithms.
    if isinstance(head, regression.PoissonRegressionHead):
        return _log_mean_exp(logits)
    return logits.sum(axis=0) / logits.length(0).cast(logits.dtype)


def _log_mean_exp(x: Value) -> Value:
    # The exponential of a large logit would overflow.
    greatest = x.max(axis=0, keepdims=True)
    total = (x - greatest).apply("Exp").sum(axis=0)
    count = x.length(0).cast(x.dtype)
    return (total / count).apply("Log") + greatest.squeeze(0)


def _task_predictions(
    head: SingleTaskHead, logits: Value, classes: Any
) -> dict[str, Prediction]:
    """Return the predictions of a head for one target."""
    if not type(head).__module__.startswith("skest."):  # which may predict otherwise
        raise ExportError(
            f"The head {head!r} cannot be written as ONNX. Use one of the heads of "
            "skest.heads."
        )
    size = head.logits_dimension
    found: dict[str, Prediction] = {PredictionKeys.LOGITS: (logits, size)}
    if isinstance(head, regression.RegressionHead):
        link = head.inverse_link_fn
        # Without a link they are the predictions, and are not given twice.
        if link is None:
            return {PredictionKeys.PREDICTIONS: (logits, size)}
        return found | {PredictionKeys.PREDICTIONS: (activated(link, logits), size)}
    if isinstance(head, MultiLabelHead):
        found[PredictionKeys.PROBABILITIES] = (_sigmoid(logits), size)
    elif isinstance(head, BinaryClassHead):
        # Softmax keeps the digits of a small probability, the operator Sigmoid does not.
        both = concat([logits - logits, logits], axis=1)
        probabilities = both.apply("Softmax", axis=1)
        found[PredictionKeys.LOGISTIC] = (probabilities.take([1], axis=1), 1)
        found[PredictionKeys.PROBABILITIES] = (probabilities, 2)
        found[PredictionKeys.CLASS_IDS] = ((logits > 0).cast(np.int64), 1)
    else:
        probabilities = logits.apply("Softmax", axis=-1)
        found[PredictionKeys.PROBABILITIES] = (probabilities, size)
        # From the front: of no rows, ONNX Runtime takes a negative axis for another one.
        # The lowest of equal ones counts.
        last = logits.ndim - 1
        ids = logits.apply("ArgMax", dtype=np.int64, axis=last, keepdims=1)
        found[PredictionKeys.CLASS_IDS] = (ids, 1)
    if isinstance(head, SampledSoftmaxHead):
        found |= _best(head, logits)
    return found | with_classes(head, found, classes)


def _best(head: SampledSoftmaxHead, logits: Value) -> dict[str, Prediction]:
    """Return the greatest of many probabilities and their ids."""
    k = head._top_k
    # Softmax over all classes, but only of the best: the others are never needed.
    best, ids = logits.graph.add_many(
        "TopK",
        logits,
        logits.graph.constant(np.array([k])),
        outputs=[(logits.dtype, 2), (np.int64, 2)],
    )
    greatest = logits.max(axis=-1, keepdims=True)
    total = (logits - greatest).apply("Exp").sum(axis=-1, keepdims=True)
    return {
        PredictionKeys.TOP_K_CLASS_IDS: (ids, k),
        PredictionKeys.TOP_K_PROBABILITIES: ((best - greatest).apply("Exp") / total, k),
    }


def with_classes(
    head: Any, predictions: Mapping[str, tuple[Value, Any]], classes: Any = None
) -> dict[str, Prediction]:
    """Return what belongs to predictions that have the keys of a head, not from it.

    Parameters
    ----------
    head : SingleTaskHead
        One of `skest.heads`.
    predictions : dict of str to (Value, int or tuple)
        Of classes "class_ids", of labels "logits". Their sizes are not looked at.
    classes : array-like of shape (n_classes,), default=None
        See `head_predictions`.

    Returns
    -------
    dict of str to (Value, int)
        The names of classes, the answers in the type of the labels, and the numbers of
        their columns. Nothing for numbers.

    Raises
    ------
    ExportError
        If predictions of classes lack their ids or probabilities.
    """
    if isinstance(head, MultiLabelHead):
        (logits, _), size = predictions[PredictionKeys.LOGITS], head.n_classes
        # Where a probability is above .5, as MultiLabelHead decides.
        names = _in_every_row(_class_texts(head, classes), logits)
        labels = (logits > 0).cast(np.int64)
        return {PredictionKeys.CLASSES: (names, size), LABELS: (labels, size)}
    if not isinstance(head, SingleLabelHead):
        return {}
    wanted = (PredictionKeys.CLASS_IDS, PredictionKeys.PROBABILITIES)
    missing = [key for key in wanted if key not in predictions]
    if missing:
        raise ExportError(
            f"The predictions lack {' and '.join(map(repr, missing))}, which the "
            "signatures of a classifier have. Return 'logits' or 'probabilities'."
        )
    ids, _ = predictions[PredictionKeys.CLASS_IDS]
    texts, every = _class_texts(head, classes), np.arange(head.n_classes, dtype="int32")
    names, labels = map(ids.graph.constant, (texts, _class_labels(head, classes)))
    found = {
        PredictionKeys.CLASSES: (names.take(ids), 1),
        LABELS: (labels.take(ids), 1),
    }
    best = predictions.get(PredictionKeys.TOP_K_CLASS_IDS)
    if best is not None and isinstance(head, SampledSoftmaxHead):  # too many for all
        taken = names.take(best[0])
        return found | {PredictionKeys.TOP_K_CLASSES: (taken, head._top_k)}
    return found | {
        PredictionKeys.ALL_CLASS_IDS: (_in_every_row(every, ids), head.n_classes),
        PredictionKeys.ALL_CLASSES: (_in_every_row(texts, ids), head.n_classes),
    }


def _in_every_row(row: np.ndarray, rows: Value) -> Value:
    return rows.graph.constant(row).expanded(rows.length(0), len(row))


def _class_texts(head: Any, classes: Any) -> NDArray[Any]:
    """Return the names of the classes as strings."""
    if classes is None:
        return class_names(head.label_vocabulary, head.n_classes)
    labels = np.asarray(classes)
    if labels.shape != (head.n_classes,):
        raise ValueError(
            f"'classes' must have one class for each of the {head.n_classes} of "
            f"{head!r}; got an array of shape {labels.shape}."
        )
    return np.array([str(label) for label in labels.tolist()], object)


def _class_labels(head: Any, classes: Any) -> NDArray[Any]:
    """Return the classes as they are among the labels."""
    # Without names, labels of a head are the ids themselves.
    if classes is None and head.label_vocabulary is None:
        return np.arange(head.n_classes)
    if classes is not None and np.asarray(classes).dtype.kind in "biuf":
        return np.asarray(classes)
    return _class_texts(head, classes)
