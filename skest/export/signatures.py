# SPDX-License-Identifier: Apache-2.0
"""Signatures: what an exported graph can be asked for, under which names.

They are those of ``tf.estimator``: ``serving_default``, ``predict``, and ``classification``
and ``regression`` where a head has classes or numbers. TensorFlow has all of them only for
models that parse ``tf.Example``; here, models that take raw columns have them, too. They
are descriptions of one graph, so that none of them is quicker than another.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from skest.exceptions import ExportError
from skest.heads.base import Head
from skest.heads.multi_head import MultiHead
from skest.keys import PredictionKeys

# tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
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


Tensors = Mapping[str, TensorInfo]


class _Output:
    """Names predictions by their keys."""

    method: ClassVar[str]

    def __post_init__(self) -> None:
        kind, outputs = type(self).__name__, self.outputs
        if not isinstance(outputs, Mapping):
            raise TypeError(
                f"'tensors' of {kind} must be a dictionary of predictions by their names "
                f"in the signature, such as {{'chance': 'probabilities'}}; got {outputs!r}."
            )
        for name, value in outputs.items():
            if not (isinstance(name, str) and isinstance(value, str)):
                raise TypeError(
                    f"{kind} must name predictions by their keys, which are strings; got "
                    f"{value!r} for {name!r}."
                )
        # As ClassificationOutput of TensorFlow, which wants scores or classes.
        if not outputs:
            raise ValueError(f"{kind} must name at least one prediction; got none.")

    @property
    def outputs(self) -> dict[str, str]:
        """The keys of predictions by name."""
        raise NotImplementedError


@dataclass(frozen=True)
class ClassificationOutput(_Output):
    """Classes and their scores (``tf.estimator.export.ClassificationOutput``).

    Attributes
    ----------
    classes : str
        Key of a prediction: strings of shape (n_rows, n_classes). None leaves them out.
    scores : str
        Key of floats of the same shape. None leaves them out, but not both.

    Raises
    ------
    TypeError, ValueError
        If it does not name predictions, or none.

    Examples
    --------
    >>> from skest.export import ClassificationOutput
    >>> output = ClassificationOutput(scores="probabilities")
    """

    classes: str | None = None
    scores: str | None = None
    method: ClassVar[str] = "classify"

    @property
    def outputs(self) -> dict[str, str]:
        """The keys of predictions by name."""
        # tf.saved_model.CLASSIFY_OUTPUT_CLASSES and CLASSIFY_OUTPUT_SCORES
        named = {"classes": self.classes, "scores": self.scores}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class RegressionOutput(_Output):
    """Numbers (``tf.estimator.export.RegressionOutput``).

    Attributes
    ----------
    value : str
        Key of a prediction: floats of shape (n_rows, n_numbers).

    Raises
    ------
    TypeError, ValueError
        If it does not name predictions, or none.

    Examples
    --------
    >>> from skest.export import RegressionOutput
    >>> output = RegressionOutput("predictions")
    """

    value: str
    method: ClassVar[str] = "regress"

    @property
    def outputs(self) -> dict[str, str]:
        """The key of the prediction by name."""
        # tf.saved_model.REGRESS_OUTPUTS
        return {"outputs": self.value}


@dataclass(frozen=True)
class PredictOutput(_Output):
    """Any tensors (``tf.estimator.export.PredictOutput``).

    Attributes
    ----------
    tensors : dict of str to str
        Keys of predictions by their names in the signature.

    Raises
    ------
    TypeError, ValueError
        If it does not name predictions, or none.

    Examples
    --------
    >>> from skest.export import PredictOutput
    >>> output = PredictOutput({"chance": "probabilities"})
    """

    tensors: dict[str, str]
    method: ClassVar[str] = "predict"

    @property
    def outputs(self) -> dict[str, str]:
        """The keys of predictions by name."""
        return self.tensors


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
            "inputs": {name: info._asdict() for name, info in self.inputs.items()},
            "outputs": {name: info._asdict() for name, info in self.outputs.items()},
        }


def model_signatures(
    head: Head | None, predictions: Tensors, inputs: Tensors, given: Any = None
) -> dict[str, Signature]:
    """Return the signatures of a model that may have a head.

    Parameters
    ----------
    head : Head or None
        What says how predictions are called.
    predictions : dict of str to TensorInfo
        By key; of a `MultiHead`, "<head>/<key>".
    inputs : dict of str to TensorInfo
        What the model takes.
    given : dict or None
        ``export_outputs`` of an `EstimatorSpec`: they name predictions by key. The first
        one is "serving_default", too.

    Returns
    -------
    dict of str to Signature
        Those of `given`, else of the head, else "serving_default" and "predict" with all
        predictions. "predict" is always there. Of a `MultiHead`, "serving_default" is
        that of the first head, each has "<head>" and "<head>/<name>", and "predict" has
        the keys "<head>/<key>".

    Raises
    ------
    ExportError
        If there is no such prediction, classes are no strings, or scores or numbers no
        floats.

    Examples
    --------
    >>> from skest.export.signatures import TensorInfo, model_signatures
    >>> from skest.heads import RegressionHead
    >>> x = TensorInfo("x", "float32", (None, 3))
    >>> y = TensorInfo("predictions", "float32", (None, 1))
    >>> found = model_signatures(RegressionHead(), {"predictions": y}, {"x": x})
    >>> list(found), found["serving_default"].method
    (['serving_default', 'regression', 'predict'], 'regress')
    """
    outputs: dict[str, tuple[str, Tensors]] = {}
    if isinstance(head, MultiHead):
        # As `export_outputs` of TensorFlow's MultiHead: of each head all that it has alone.
        for part in head.heads:
            name, prefix = str(part.name), f"{part.name}/"
            own = {
                key.removeprefix(prefix): info
                for key, info in predictions.items()
                if key.startswith(prefix)
            }
            of_part = {**_of_task(own), "predict": ("predict", own)}
            outputs[name] = next(iter(of_part.values()))
            outputs |= {f"{name}/{kind}": output for kind, output in of_part.items()}
    elif head is not None:
        outputs = _of_task(predictions)
    # _PREDICT_SERVING_KEY of tf.estimator (head/base_head.py).
    outputs["predict"] = "predict", predictions
    if given:
        # `export_outputs` of tf.estimator.EstimatorSpec take the place of all but
        # "predict".
        predict = outputs["predict"]
        outputs = {
            name: (output.method, _resolved(name, output, predictions))
            for name, output in given.items()
        }
        outputs.setdefault("predict", predict)
    # Of a MultiHead, its first head's, as in TensorFlow.
    outputs = {_DEFAULT: next(iter(outputs.values()))} | outputs
    return {
        name: Signature(method, dict(inputs), dict(tensors))
        for name, (method, tensors) in outputs.items()
    }


def _of_task(predictions: Tensors) -> dict[str, tuple[str, Tensors]]:
    """Return what a head for one target has beside "predict", by what it predicts."""
    found: dict[str, tuple[str, Tensors]] = {}
    for classes, scores in _CLASSES_AND_SCORES:
        if classes in predictions and scores in predictions and not found:
            both = {"classes": predictions[classes], "scores": predictions[scores]}
            found["classification"] = "classify", both
    # A head for two classes has both: as TensorFlow's BinaryClassHead, it gives the
    # chance of the second one as a number.
    for key in (PredictionKeys.LOGISTIC, PredictionKeys.PREDICTIONS):
        if key in predictions:
            found["regression"] = "regress", {"outputs": predictions[key]}
    return found


# All classes; the best of many; the labels of a row. "classes" alone are what is predicted.
_CLASSES_AND_SCORES = (
    (PredictionKeys.ALL_CLASSES, PredictionKeys.PROBABILITIES),
    (PredictionKeys.TOP_K_CLASSES, PredictionKeys.TOP_K_PROBABILITIES),
    (PredictionKeys.CLASSES, PredictionKeys.PROBABILITIES),
)


def _resolved(name: str, output: Any, predictions: Tensors) -> dict[str, TensorInfo]:
    resolved: dict[str, TensorInfo] = {}
    for part, key in output.outputs.items():
        if key not in predictions:
            raise ExportError(
                f"The signature {name!r} of 'export_outputs' names the prediction {key!r}, "
                f"but there are {', '.join(map(repr, predictions))}."
            )
        info = resolved[part] = predictions[key]
        # TensorFlow fixes the types of these two kinds of answers, of others none.
        if output.method == "predict":
            continue
        # As tf.estimator.export.ClassificationOutput: classes are strings, scores
        # floats.
        kind = "string" if part == "classes" else "float"
        if not info.dtype.startswith(kind):
            raise ExportError(
                f"The signature {name!r} of 'export_outputs' takes {key!r} for its "
                f"{part!r}, which must be of type {kind}; it is {info.dtype}."
            )
    return resolved
