# SPDX-License-Identifier: Apache-2.0
"""Signatures: what an exported graph can be asked for, under which names.

They are those of ``tf.estimator``: ``serving_default``, ``predict``, and ``classification``
and ``regression`` where a head has classes or numbers. TensorFlow has all of them only for
models that parse ``tf.Example``; here, models that take raw columns have them, too. They
are descriptions of one graph, so that none of them is quicker than another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from skest.exceptions import ExportError
from skest.heads.base import Head
from skest.heads.classification import SingleLabelHead
from skest.heads.multi_head import MultiHead
from skest.heads.multi_label import MultiLabelHead
from skest.heads.regression import RegressionHead
from skest.heads.single_task import SingleTaskHead
from skest.keys import PredictionKeys

_DEFAULT = "serving_default"


class TensorInfo(NamedTuple):
    """A tensor of the graph.

    Attributes
    ----------
    tensor : str
        Its name there.
    dtype : str
        Name of its NumPy type, or "string".
    shape : tuple of int or None
        None is open; the first is the number of rows.
    """

    tensor: str
    dtype: str
    shape: tuple[int | None, ...]

    def to_json(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        return {"tensor": self.tensor, "dtype": self.dtype, "shape": list(self.shape)}


Tensors = Mapping[str, TensorInfo]
# A tensor of the graph; in ``EstimatorSpec(export_outputs=...)``, the key of a prediction.
T = TypeVar("T", TensorInfo, str)


def _check_output(output: Any, outputs: Any) -> None:
    """Raise unless outputs of a signature are names of predictions, or tensors."""
    kind = type(output).__name__
    if not isinstance(outputs, Mapping):
        raise TypeError(
            f"'tensors' of {kind} must be a dictionary of predictions by their names in "
            f"the signature, such as {{'chance': 'probabilities'}}; got {outputs!r}."
        )
    for name, value in outputs.items():
        if not (isinstance(name, str) and isinstance(value, str | TensorInfo)):
            raise TypeError(
                f"{kind} must name predictions by their keys, which are strings; got "
                f"{value!r} for {name!r}."
            )
    if not outputs:
        raise ValueError(f"{kind} must name at least one prediction; got none.")


@dataclass(frozen=True)
class ClassificationOutput(Generic[T]):
    """Classes and their scores (``tf.estimator.export.ClassificationOutput``).

    Attributes
    ----------
    classes : TensorInfo, or str
        Strings of shape (n_rows, n_classes). None leaves them out.
    scores : TensorInfo, or str
        Floats of the same shape. None leaves them out, but not both.

    Raises
    ------
    TypeError, ValueError
        If it does not name predictions, or none.

    Examples
    --------
    >>> from skest.export import ClassificationOutput
    >>> output = ClassificationOutput(scores="probabilities")
    """

    classes: T | None = None
    scores: T | None = None
    method: ClassVar[str] = "classify"

    def __post_init__(self) -> None:
        _check_output(self, self.outputs)

    @property
    def outputs(self) -> dict[str, T]:
        """The tensors by name."""
        named = {"classes": self.classes, "scores": self.scores}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class RegressionOutput(Generic[T]):
    """Numbers (``tf.estimator.export.RegressionOutput``).

    Attributes
    ----------
    value : TensorInfo, or str
        Floats of shape (n_rows, n_numbers).

    Raises
    ------
    TypeError, ValueError
        If it does not name predictions, or none.

    Examples
    --------
    >>> from skest.export import RegressionOutput
    >>> output = RegressionOutput("predictions")
    """

    value: T
    method: ClassVar[str] = "regress"

    def __post_init__(self) -> None:
        _check_output(self, self.outputs)

    @property
    def outputs(self) -> dict[str, T]:
        """The tensor by name."""
        return {"outputs": self.value}


@dataclass(frozen=True)
class PredictOutput(Generic[T]):
    """Any tensors (``tf.estimator.export.PredictOutput``).

    Attributes
    ----------
    tensors : dict of str to TensorInfo, or to str
        By their names in the signature.

    Raises
    ------
    TypeError, ValueError
        If it does not name predictions, or none.

    Examples
    --------
    >>> from skest.export import PredictOutput
    >>> output = PredictOutput({"chance": "probabilities"})
    """

    tensors: dict[str, T]
    method: ClassVar[str] = "predict"

    def __post_init__(self) -> None:
        _check_output(self, self.tensors)

    @property
    def outputs(self) -> dict[str, T]:
        """The tensors by name."""
        return self.tensors


ExportOutput = (
    ClassificationOutput[TensorInfo]
    | RegressionOutput[TensorInfo]
    | PredictOutput[TensorInfo]
)


class Signature(NamedTuple):
    """A way to ask a graph.

    Attributes
    ----------
    method : {"classify", "regress", "predict"}
        Kind of the request, as in TensorFlow Serving.
    inputs, outputs : dict of str to TensorInfo
        Tensors by name.
    """

    method: str
    inputs: dict[str, TensorInfo]
    outputs: dict[str, TensorInfo]

    def to_json(self) -> dict[str, Any]:
        """Return a description that JSON can hold."""
        return {
            "method": self.method,
            "inputs": {name: info.to_json() for name, info in self.inputs.items()},
            "outputs": {name: info.to_json() for name, info in self.outputs.items()},
        }


def signatures(head: Head, predictions: Any, inputs: Tensors) -> dict[str, Signature]:
    """Return all signatures of a model.

    Parameters
    ----------
    head : Head
        What the model predicts.
    predictions : dict of str to TensorInfo
        The predictions of the head by key; for a `MultiHead`, dictionaries by head.
    inputs : dict of str to TensorInfo
        What the graph takes.

    Returns
    -------
    dict of str to Signature
        The names of `_export_outputs`.

    Examples
    --------
    >>> from skest.export.signatures import TensorInfo, signatures
    >>> from skest.heads import RegressionHead
    >>> x = TensorInfo("x", "float32", (None, 3))
    >>> y = TensorInfo("predictions", "float32", (None, 1))
    >>> found = signatures(RegressionHead(), {"predictions": y}, {"x": x})
    >>> list(found), found["serving_default"].method
    (['serving_default', 'regression', 'predict'], 'regress')
    """
    return {
        name: Signature(output.method, dict(inputs), output.outputs)
        for name, output in _export_outputs(head, predictions).items()
    }


def model_signatures(
    head: Head | None, predictions: Any, inputs: Tensors, given: Any = None
) -> dict[str, Signature]:
    """Return the signatures of a model that may have a head.

    Parameters
    ----------
    head : Head or None
        What says how predictions are called.
    predictions : dict of str to TensorInfo
        By key; of a `MultiHead`, dictionaries by head.
    inputs : dict of str to TensorInfo
        What the model takes.
    given : dict or None
        ``export_outputs`` of an `EstimatorSpec`, see `_given_signatures`.

    Returns
    -------
    dict of str to Signature
        Those of `given`, else of the head, else "serving_default" and "predict" with all
        predictions. "predict" is always there.
    """
    if head is None:
        whole = Signature("predict", dict(inputs), dict(predictions))
        found = {_DEFAULT: whole, "predict": whole}
    else:
        found = signatures(head, predictions, inputs)
    if not given:
        return found
    own = _given_signatures(given, found["predict"].outputs, inputs)
    return {**own, "predict": own.get("predict", found["predict"])}


def _given_signatures(
    given: Mapping[str, Any], predictions: Tensors, inputs: Tensors
) -> dict[str, Signature]:
    """Return the signatures that a specification asks for.

    Parameters
    ----------
    given : dict of str to ClassificationOutput, RegressionOutput or PredictOutput
        ``export_outputs`` of an `EstimatorSpec`: they name predictions by key. The only
        one is "serving_default", too.
    predictions : dict of str to TensorInfo
        What there is, by key.
    inputs : dict of str to TensorInfo
        What the graph takes.

    Raises
    ------
    ExportError
        If there is no such prediction, classes are no strings, or scores or numbers no
        floats.
    """
    found = {
        name: Signature(
            output.method, dict(inputs), _resolved(name, output, predictions)
        )
        for name, output in given.items()
    }
    return {_DEFAULT: next(iter(found.values())), **found}


def _resolved(name: str, output: Any, predictions: Tensors) -> dict[str, TensorInfo]:
    resolved: dict[str, TensorInfo] = {}
    for part, key in output.outputs.items():
        if key not in predictions:
            raise ExportError(
                f"The signature {name!r} of 'export_outputs' names the prediction {key!r}, "
                f"but there are {', '.join(map(repr, predictions))}."
            )
        info = resolved[part] = predictions[key]
        if output.method == "predict":
            continue
        kind = "string" if part == "classes" else "float"
        if not info.dtype.startswith(kind):
            raise ExportError(
                f"The signature {name!r} of 'export_outputs' takes {key!r} for its "
                f"{part!r}, which must be of type {kind}; it is {info.dtype}."
            )
    return resolved


@singledispatch
def _export_outputs(head: Any, predictions: Any) -> dict[str, ExportOutput]:
    """Return what a head exports, by the name of the signature.

    Parameters
    ----------
    head : Head
        One of `skest.heads`.
    predictions : dict
        See `signatures`.

    Returns
    -------
    dict of str to ClassificationOutput, RegressionOutput or PredictOutput
        "serving_default", which is the first of the others; "classification" of classes;
        "regression" of numbers, and of two classes the probability of the second;
        "predict". Of a `MultiHead`, "serving_default" is that of the first head, each
        has "<head>" and "<head>/<name>", and "predict" has the keys "<head>/<key>".

    Raises
    ------
    ExportError
        If the head is none of skest.heads.
    """
    raise ExportError(
        f"{type(head).__name__} has no signatures. Use one of the heads of skest.heads."
    )


@_export_outputs.register
def _(head: SingleTaskHead, predictions: Tensors) -> dict[str, ExportOutput]:
    outputs = {
        **_of_head(head, predictions),
        "predict": PredictOutput(dict(predictions)),
    }
    return {_DEFAULT: next(iter(outputs.values())), **outputs}


@_export_outputs.register
def _(head: MultiHead, predictions: Mapping[str, Tensors]) -> dict[str, ExportOutput]:
    found: dict[str, ExportOutput] = {}
    together: dict[str, TensorInfo] = {}
    for part in head.heads:
        name = str(part.name)
        outputs = _export_outputs(part, predictions[name])
        default = outputs.pop(_DEFAULT)
        found |= {_DEFAULT: found.get(_DEFAULT, default), name: default}
        found |= {f"{name}/{kind}": output for kind, output in outputs.items()}
        together |= {f"{name}/{key}": info for key, info in predictions[name].items()}
    return {**found, "predict": PredictOutput(together)}


@singledispatch
def _of_head(head: Any, predictions: Tensors) -> dict[str, ExportOutput]:
    """Return what a head has beside "predict"."""
    return {}


@_of_head.register
def _(head: SingleLabelHead, predictions: Tensors) -> dict[str, ExportOutput]:
    classes, scores = PredictionKeys.ALL_CLASSES, PredictionKeys.PROBABILITIES
    if classes not in predictions:  # there are too many of them
        classes, scores = (
            PredictionKeys.TOP_K_CLASSES,
            PredictionKeys.TOP_K_PROBABILITIES,
        )
    found: dict[str, ExportOutput] = {
        "classification": ClassificationOutput(
            predictions[classes], predictions[scores]
        )
    }
    if PredictionKeys.LOGISTIC in predictions:
        probability = predictions[PredictionKeys.LOGISTIC]
        found["regression"] = RegressionOutput(probability)
    return found


@_of_head.register
def _(head: MultiLabelHead, predictions: Tensors) -> dict[str, ExportOutput]:
    classes, scores = PredictionKeys.CLASSES, PredictionKeys.PROBABILITIES
    return {
        "classification": ClassificationOutput(
            predictions[classes], predictions[scores]
        )
    }


@_of_head.register
def _(head: RegressionHead, predictions: Tensors) -> dict[str, ExportOutput]:
    return {"regression": RegressionOutput(predictions[PredictionKeys.PREDICTIONS])}
