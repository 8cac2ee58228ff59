# SPDX-License-Identifier: Apache-2.0
"""A model as one ONNX graph, from raw columns to classes and numbers."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from skest.exceptions import ExportError
from skest.export.onnx.columns import encode_all, given_parts
from skest.export.onnx.graph import STRING, Graph, Value, concat, to_model
from skest.export.onnx.heads import head_predictions, members_mean, with_classes
from skest.export.onnx.inputs import InputSpec
from skest.export.onnx.networks import Scope, network_output
from skest.export.onnx.tracing import SpecInputs, Traced, spec_inputs, traced
from skest.export.signatures import Signature, TensorInfo, model_signatures
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.sources import Form
from skest.feature_columns.table import Key
from skest.heads.base import Head
from skest.spec import EstimatorSpec


class OnnxGraph(NamedTuple):
    """A model as an ONNX graph.

    Attributes
    ----------
    model : onnx.ModelProto
        The graph. Its metadata have the following two as JSON, under
        "skest.features" and "skest.signatures".
    inputs : list of InputSpec
        What it takes.
    signatures : dict of str to Signature
        What it can be asked for.
    """

    model: Any
    inputs: list[InputSpec]
    signatures: dict[str, Signature]

    def runtime(self) -> dict[str, Any]:
        """Return what the manifest says about running the graph."""
        return {
            "format": "onnx",
            "opset": {entry.domain: entry.version for entry in self.model.opset_import},
            "ir_version": self.model.ir_version,
            # The oldest in which exports are tested, in tests/export/test_engines.py.
            "min_onnxruntime": "1.17",
            # Operators of the engine are all that runs.
            "trusted_code": False,
        }

    def engine(self) -> dict[str, str]:
        """Return the version of what runs it here."""
        import onnxruntime

        return {"onnxruntime": onnxruntime.__version__}


def build_onnx(
    columns: FeatureColumns | Mapping[str, FeatureColumns | None] | None,
    network: nn.Module,
    head: Head,
    *,
    classes: Any = None,
    logits_scale: tuple[np.ndarray, np.ndarray] | None = None,
    logits_range: tuple[np.ndarray, np.ndarray] | None = None,
    forms: Mapping[Key, Form] | None = None,
    name: str = "skest",
) -> OnnxGraph:
    """Write a model as one ONNX graph.

    It takes raw strings and numbers, and needs no Python to run: operator set 18,
    ai.onnx.ml 2, and com.microsoft 1 if strings are hashed, which ONNX Runtime has.

    Parameters
    ----------
    columns : FeatureColumns, dict of them, or None
        Fitted columns; by the name of the part if the network has several; None if it
        looks at no feature.
    network : torch.nn.Module
        Encoded features to logits: a network of `skest.networks` or `LinearFeatures`,
        with its variables.
    head : Head
        One of `skest.heads`.
    classes : array-like of shape (n_classes,), default=None
        The classes in the type of the labels, if the head does not name them; of a
        `MultiHead`, a dictionary by head.
    logits_scale : pair of ndarray of shape (n_logits,), default=None
        What logits are multiplied with, and what is added to them then.
    logits_range : pair of ndarray of shape (n_logits,), default=None
        The least and the largest values that they become.
    forms : dict of Form, default=None
        What is known about raw columns, see `skest.feature_columns.sources.forms_of`.
    name : str, default="skest"
        Name of the graph.

    Returns
    -------
    OnnxGraph

    Raises
    ------
    ExportError
        If a column, a part of the network or the head cannot be written as ONNX.
    ImportError
        If onnx is not installed.

    Examples
    --------
    >>> import pytest, torch
    >>> _ = pytest.importorskip("onnx")
    >>> from skest.export.onnx.model import build_onnx
    >>> from skest.feature_columns import (
    ...     FeatureColumns,
    ...     LinearFeatures,
    ...     categorical_column_with_vocabulary_list,
    ... )
    >>> from skest.heads import BinaryClassHead
    >>> city = categorical_column_with_vocabulary_list("city", ["Rome", "Oslo"])
    >>> columns = FeatureColumns([city])
    >>> graph = build_onnx(columns, LinearFeatures(columns), BinaryClassHead())
    >>> [spec.name for spec in graph.inputs], list(graph.signatures)
    (['city'], ['serving_default', 'classification', 'regression', 'predict'])
    """
    model = ScaledNetwork(columns, network, logits_scale, logits_range)
    return mean_onnx([[model]], [1], head, classes=classes, forms=forms, name=name)


@contextmanager
def _texts_explained() -> Iterator[None]:
    """Say which name or text it is that no graph can have."""
    # pandas and NumPy keep lone surrogates, which files with broken bytes have.
    try:
        yield
    except UnicodeEncodeError as error:
        raise ExportError(
            f"The model has a name or text {error.object!r}, which is not valid Unicode "
            "(it has a lone surrogate). Give the column or class another one, e.g. "
            "name.encode('utf-8', 'replace').decode(), and fit again."
        ) from error


class ScaledNetwork(NamedTuple):
    """A network with its columns, and what becomes of its logits; see `build_onnx`."""

    columns: Any
    network: nn.Module
    logits_scale: tuple[np.ndarray, np.ndarray] | None = None
    logits_range: tuple[np.ndarray, np.ndarray] | None = None


@_texts_explained()
def mean_onnx(
    groups: Sequence[Sequence[ScaledNetwork]],
    times: Sequence[int],
    head: Head,
    *,
    classes: Any = None,
    forms: Mapping[Key, Form] | None = None,
    name: str = "skest",
) -> OnnxGraph:
    """Write the mean of the predictions of several models as one ONNX graph.

    Parameters
    ----------
    groups : sequence of sequences of ScaledNetwork
        They take one table. Those of a group predict their mean.
    times : sequence of int
        How often the mean of each group counts.
    head, classes, forms, name
        See `build_onnx`.

    Returns
    -------
    OnnxGraph

    Raises
    ------
    ExportError, ImportError
        See `build_onnx`.
    """
    graph = Graph(name)
    models = [model for group in groups for model in group]
    dtype = _dtype_of(models[0].network)
    parts = {
        (i, part): columns
        for i, model in enumerate(models)
        for part, columns in given_parts(model.columns).items()
    }
    # All models read one set of inputs: what they have in common is encoded once.
    inputs, encoded = encode_all(graph, parts, dtype, forms or {})
    logits = []
    for i, model in enumerate(models):
        # Without columns there are no parts, but one input for the rows.
        own: Any = {key[1]: encoded[key] for key in parts if key[0] == i} or encoded
        scope = Scope(graph, f"{i}." if len(models) > 1 else "")
        # None is the name of the only part.
        logits.append(_scaled_logits(model, scope, own.get(None, own), dtype))
    left = iter(logits)
    means = [_mean(head, list(islice(left, len(group)))) for group in groups]
    # Greedy ensembles choose with replacement (Caruana et al., ICML 2004).
    repeated = [m for m, n in zip(means, times, strict=True) for _ in range(n)]
    # In two steps, as the estimators predict: folds of one first, then the ensemble.
    mean = _mean(head, repeated)
    predictions = head_predictions(head, mean, classes)
    return _finished(graph, head, _with_rows(predictions), inputs)


def _mean(head: Head, logits: Sequence[Any]) -> Any:
    """Return the logits that stand for the mean of several predictions."""
    if len(logits) == 1:
        return logits[0]
    # As the members of one network, of which the first axis is.
    return members_mean(head, concat([own.unsqueeze(0) for own in logits], axis=0))


def _scaled_logits(
    model: ScaledNetwork, scope: Scope, encoded: Any, dtype: np.dtype
) -> Any:
    logits = network_output(model.network, scope, encoded)
    # The network learned standardised numbers; these are those of `y`.
    if model.logits_scale is not None:
        scale, center = (np.asarray(values, dtype) for values in model.logits_scale)
        logits = logits * scale + center
    # As the estimator: no prediction far beyond the y that it was trained on.
    if model.logits_range is not None:
        low, high = (np.asarray(values, dtype) for values in model.logits_range)
        logits = logits.clip(low, high)
    return logits


def _with_rows(predictions: Mapping[str, tuple[Value, int]]) -> dict[str, Traced]:
    """Return predictions with their shapes; the number of rows is open."""
    return {key: Traced(v, (None, size)) for key, (v, size) in predictions.items()}


def _finished(
    graph: Graph,
    head: Head | None,
    values: Mapping[str, Traced],
    inputs: list[InputSpec],
    given: Any = None,
) -> OnnxGraph:
    """Return a graph with its outputs, and with a description in its metadata."""
    taken = {
        spec.name: TensorInfo(spec.name, spec.dtype, spec.shape) for spec in inputs
    }
    predictions = {
        key: TensorInfo(
            graph.output(key, value, shape),
            "string" if value.dtype == STRING else value.dtype.name,
            shape,
        )
        for key, (value, shape) in values.items()
    }
    found = model_signatures(head, predictions, taken, given)
    features = {spec.name: spec.to_json() for spec in inputs}
    described = {key: signature.to_json() for key, signature in found.items()}
    # In the file itself: it goes without its manifest to browsers and other servers.
    metadata = {
        "skest.features": json.dumps(features),
        "skest.signatures": json.dumps(described),
    }
    return OnnxGraph(to_model(graph, metadata), inputs, found)


def _dtype_of(network: nn.Module) -> np.dtype:
    """Return the floating type of a network."""
    # A network of no variable computes in what it is given, which is float32.
    floats = (p.dtype for p in network.parameters() if p.is_floating_point())
    name = str(next(floats, torch.float32)).removeprefix("torch.")
    if name not in ("float32", "float64"):
        raise ExportError(
            f"A network of {name} cannot be exported. Convert it with network.float()."
        )
    return np.dtype(name)


_LOGITS = "logits"


@_texts_explained()
def spec_onnx(
    spec: EstimatorSpec,
    features: Any,
    *,
    head: Head | None = None,
    classes: Any = None,
    forms: Mapping[Key, Form] | None = None,
    name: str = "skest",
) -> OnnxGraph:
    """Write the model of a specification as one ONNX graph.

    Parameters
    ----------
    spec : EstimatorSpec
        Of mode PREDICT, with the variables in its network. Its ``encode`` is that of
        `FeatureColumns`, or None.
    features : raw features
        Some rows, to read names, types and shapes from.
    head : Head, default=None
        What says how the predictions are called in signatures, if they do not come from
        a head; they have its keys.
    classes : array-like of shape (n_classes,), default=None
        See `skest.export.build_onnx`.
    forms : dict of Form, default=None
        What is known about raw columns; None is what `features` are.
    name : str, default="skest"
        Name of the graph.

    Returns
    -------
    OnnxGraph
        Its signatures are the ``export_outputs`` of the specification, else those of the
        head, else "serving_default" and "predict" with all predictions. "predict" is
        always there.

    Raises
    ------
    ExportError
        If a part of the model cannot be written as ONNX; it is named.
    ImportError
        If onnx is not installed; for networks of the user's, also onnxscript.

    Examples
    --------
    >>> import numpy as np, pytest, torch
    >>> _ = pytest.importorskip("onnxscript")
    >>> from skest import EstimatorSpec
    >>> from skest.export.onnx.model import spec_onnx
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Tanh())
    >>> spec = EstimatorSpec(
    ...     "infer", network=network, predictions=lambda z: {"twice": 2 * z[:, 0]}
    ... )
    >>> graph = spec_onnx(spec, {"x": np.zeros((2, 2), "float32")}["x"])
    >>> [input.name for input in graph.inputs], list(graph.signatures["predict"].outputs)
    (['x'], ['twice'])
    """
    network = spec.network
    # Moving averages in place of those of a batch, and no dropout.
    network.eval()
    dtype = _dtype_of(network)
    graph = Graph(name)
    given = spec_inputs(graph, spec.encode, features, dtype, forms)
    # The method of a head is known, and names classes, which torch has no type for.
    owner = getattr(spec.predictions, "__self__", None)
    if isinstance(owner, Head):
        head = owner
        logits = _logits(network, graph, given)
        values = _with_rows(head_predictions(head, logits, classes))
    else:
        function: Any = spec.predictions
        # A function of the user's may do anything with the logits: torch traces both.
        values = traced(function, network, graph, given)
        if head is not None:  # the names of classes belong to their ids
            values |= _with_rows(with_classes(head, values, classes))
    return _finished(graph, head, values, given.specs, spec.export_outputs)


def _logits(network: nn.Module, graph: Graph, given: SpecInputs) -> Any:
    """Return the logits: written directly if all modules are known, else traced."""
    try:
        return network_output(network, Scope(graph), given.encoded)
    except ExportError:
        # Of a canned network in parts nothing can be traced: the error says what is
        # wrong.
        if not given.traceable:
            raise
        # Otherwise, it is a module that only torch knows.
    found = traced(
        lambda logits: logits if isinstance(logits, Mapping) else {_LOGITS: logits},
        *(network, graph, given),
    )
    values = {key: entry.value for key, entry in found.items()}
    return values.get(_LOGITS, values)
