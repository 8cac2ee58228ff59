# SPDX-License-Identifier: Apache-2.0
"""`spec_onnx`: the model that a ``model_fn`` describes as one ONNX graph."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from skest.exceptions import ExportError
from skest.export.graph import Graph
from skest.export.heads_onnx import with_classes
from skest.export.inputs import Form
from skest.export.known_parts import trace_around_known_parts
from skest.export.nets_onnx import network_output
from skest.export.onnx_graph import (
    OnnxGraph,
    dtype_of,
    finished,
    head_outputs,
    info_of,
    type_name,
)
from skest.export.scope import Scope
from skest.export.signatures import TensorInfo, model_signatures
from skest.export.spec_inputs import SpecInputs, spec_inputs
from skest.export.torch_bridge import Traced
from skest.feature_columns.table import Key
from skest.heads.base import Head
from skest.spec import EstimatorSpec

__all__ = ["spec_onnx"]

_LOGITS = "logits"


def spec_onnx(
    spec: EstimatorSpec,
    features: Any,
    *,
    head: Head | None = None,
    classes: Any = None,
    forms: Mapping[Key, Form] | None = None,
    input_rank: int = 2,
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
        See `skest.export.onnx_graph.build_onnx`.
    forms : dict of Form, default=None
        What is known about raw columns; None is what `features` are.
    input_rank : {1, 2}, default=2
        Dimensions of inputs of `FeatureColumns` with one value for each row: (n,) or
        (n, 1).
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
    >>> from skest.export.spec_onnx import spec_onnx
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Tanh())
    >>> spec = EstimatorSpec(
    ...     "infer", network=network, predictions=lambda z: {"twice": 2 * z[:, 0]}
    ... )
    >>> graph = spec_onnx(spec, {"x": np.zeros((2, 2), "float32")}["x"])
    >>> [input.name for input in graph.inputs], list(graph.signatures["predict"].outputs)
    (['x'], ['twice'])
    """
    if input_rank not in (1, 2):
        raise ValueError(f"'input_rank' must be 1 or 2; got {input_rank!r}.")
    network = spec.network
    if network is None or spec.predictions is None:
        raise ValueError("An export needs an EstimatorSpec of mode 'infer'.")
    network.eval()
    dtype = dtype_of(network)
    graph = Graph(name)
    given = spec_inputs(graph, spec.encode, features, dtype, forms, input_rank)
    inputs = {s.name: info_of(s, input_rank) for s in given.specs}
    owner = getattr(spec.predictions, "__self__", None)
    predictions: Any
    if isinstance(owner, Head):
        head = owner
        logits = _logits(network, graph, given)
        predictions = head_outputs(graph, owner, logits, classes)
    else:
        values = _traced_predictions(spec, network, graph, given)
        predictions = _declared(graph, values, head, classes)
    found = model_signatures(head, predictions, inputs, spec.export_outputs)
    return finished(graph, given.specs, found)


def _logits(network: nn.Module, graph: Graph, given: SpecInputs) -> Any:
    """Return the logits: written directly if all modules are known, else traced."""
    if given.is_matrix_or_encoded:
        try:
            return network_output(network, Scope(graph), given.encoded)
        except (ExportError, NotImplementedError):
            if given.is_for_canned:
                raise
            # Otherwise, it is a module that only torch knows.
    found = trace_around_known_parts(_named_logits, network, graph, given)
    values = {key: entry.value for key, entry in found.items()}
    return values.get(_LOGITS, values)


def _named_logits(logits: Any) -> Mapping[Any, Any]:
    return logits if isinstance(logits, Mapping) else {_LOGITS: logits}


def _traced_predictions(
    spec: EstimatorSpec, network: nn.Module, graph: Graph, given: SpecInputs
) -> dict[str, Traced]:
    function: Any = spec.predictions
    found = trace_around_known_parts(function, network, graph, given)
    wrong = [key for key in found if not isinstance(key, str)]
    if wrong:
        raise ExportError(
            f"The prediction {wrong[0]!r} cannot be exported: names of outputs are "
            "strings."
        )
    return found


def _declared(
    graph: Graph, values: Mapping[str, Traced], head: Head | None, classes: Any
) -> dict[str, TensorInfo]:
    """Declare predictions as outputs; those of classes have their names beside them."""
    every = dict(values)
    if head is not None:
        own = {key: value for key, (value, _) in values.items()}
        named = with_classes(head, own, classes)
        every |= {k: Traced(value, (None, size)) for k, (value, size) in named.items()}
    return {
        key: TensorInfo(graph.output(key, value, shape), type_name(value.dtype), shape)
        for key, (value, shape) in every.items()
    }
