# SPDX-License-Identifier: Apache-2.0
"""`build_onnx`: a model as one ONNX graph, from raw columns to classes and numbers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from skest.exceptions import ExportError
from skest.export.columns_onnx import encode
from skest.export.graph import STRING, Graph, Value
from skest.export.heads_onnx import split_logits, task_predictions
from skest.export.inputs import Form, Inputs, InputSpec
from skest.export.model_proto import to_model
from skest.export.nets_onnx import network_output
from skest.export.operators import IR_VERSION, OPSETS
from skest.export.scope import Scope
from skest.export.signatures import Signature, TensorInfo, signatures
from skest.export.warmup import looked_up_in_model
from skest.feature_columns.base import FeatureColumn
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.table import Key
from skest.heads.base import Head
from skest.heads.multi_head import MultiHead

__all__ = [
    "OnnxGraph",
    "build_onnx",
    "dtype_of",
    "finished",
    "head_outputs",
    "head_signatures",
    "info_of",
    "type_name",
]


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
        opsets = {entry.domain: entry.version for entry in self.model.opset_import}
        return {
            "format": "onnx",
            "opset": {domain: opsets[domain] for domain in OPSETS if domain in opsets},
            "ir_version": IR_VERSION,
            "min_onnxruntime": "1.17",
            "trusted_code": False,
        }

    @property
    def words(self) -> dict[str, list[Any]]:
        """Some of the words and integers that are looked up, by input."""
        return looked_up_in_model(self.model)

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
    forms: Mapping[Key, Form] | None = None,
    input_rank: int = 2,
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
    forms : dict of Form, default=None
        What is known about raw columns, see `skest.export.inputs.forms_of`.
    input_rank : {1, 2}, default=2
        Dimensions of inputs that have one value for each row: (n,) or (n, 1).
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
    >>> from skest.export.onnx_graph import build_onnx
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
    if input_rank not in (1, 2):
        raise ValueError(f"'input_rank' must be 1 or 2; got {input_rank!r}.")
    graph = Graph(name)
    dtype = dtype_of(network)
    inputs, encoded = _encoded(graph, columns, dtype, forms or {}, input_rank)
    logits = network_output(network, Scope(graph), encoded)
    if logits_scale is not None:
        scale, center = (np.asarray(values, dtype) for values in logits_scale)
        logits = logits * scale + center
    predictions = head_outputs(graph, head, logits, classes)
    found = head_signatures(head, predictions, inputs.specs, input_rank)
    return finished(graph, inputs.specs, found)


def head_outputs(graph: Graph, head: Head, logits: Any, classes: Any) -> Any:
    """Declare the predictions of a head as outputs.

    Parameters
    ----------
    graph : Graph
        Gets the outputs.
    head : Head
        One of `skest.heads`.
    logits : Value, or dict of Value
        Of the head; of a `MultiHead` also by the name of the head.
    classes
        See `build_onnx`.

    Returns
    -------
    dict of str to TensorInfo
        By key; of a `MultiHead` such dictionaries by head.
    """
    predictions = {
        part: _declared(graph, head, part, own_logits, classes)
        for part, own_logits in split_logits(head, logits).items()
    }
    return predictions if isinstance(head, MultiHead) else predictions[None]


def head_signatures(
    head: Head, predictions: Any, inputs: Sequence[InputSpec], input_rank: int
) -> dict[str, Signature]:
    """Return the signatures of a head, of what `head_outputs` returned."""
    taken = {spec.name: info_of(spec, input_rank) for spec in inputs}
    return signatures(head, predictions, taken)


def finished(
    graph: Graph, inputs: list[InputSpec], found: dict[str, Signature]
) -> OnnxGraph:
    """Return a graph that has its outputs, with a description in its metadata."""
    features = {spec.name: spec.to_json() for spec in inputs}
    described = {key: signature.to_json() for key, signature in found.items()}
    metadata = {
        "skest.features": json.dumps(features),
        "skest.signatures": json.dumps(described),
    }
    model = to_model(graph, metadata)
    return OnnxGraph(model, inputs, found)


def dtype_of(network: nn.Module) -> np.dtype:
    """Return the floating type of a network."""
    floats = (p.dtype for p in network.parameters() if p.is_floating_point())
    name = str(next(floats, torch.float32)).removeprefix("torch.")
    if name not in ("float32", "float64"):
        raise ExportError(
            f"A network of {name} cannot be exported. Convert it with network.float()."
        )
    return np.dtype(name)


def _encoded(
    graph: Graph,
    columns: Any,
    dtype: np.dtype,
    forms: Mapping[Key, Form],
    rank: int,
) -> tuple[Inputs, Any]:
    """Declare the inputs; return them, and what the network takes."""
    parts = columns if isinstance(columns, Mapping) else {None: columns}
    parts = {part: given for part, given in parts.items() if given is not None}
    if not parts:
        inputs = Inputs(graph, [], dtype, forms, rank)
        return inputs, {"rows": inputs.any_input()}
    all_columns: list[FeatureColumn] = [c for p in parts.values() for c in p.active]
    inputs = Inputs(graph, all_columns, dtype, forms, rank)
    encoded = {part: encode(given, inputs, dtype) for part, given in parts.items()}
    return inputs, encoded if isinstance(columns, Mapping) else encoded[None]


def _declared(
    graph: Graph, head: Any, part: str | None, logits: Value, classes: Any
) -> dict[str, TensorInfo]:
    """Declare the predictions of a head as outputs."""
    prefix = "" if part is None else f"{part}/"
    if part is not None:
        head = next(one for one in head.heads if one.name == part)
        classes = (classes or {}).get(part)
    found = {}
    with graph.scope(f"{prefix}head"):
        predictions = task_predictions(head, logits, classes)
    for key, (value, size) in predictions.items():
        shape = (None, size)
        output = graph.output(f"{prefix}{key}", value, shape)
        found[key] = TensorInfo(output, type_name(value.dtype), shape)
    return found


def info_of(spec: InputSpec, rank: int) -> TensorInfo:
    """Return an input as signatures have it."""
    is_flat = rank == 1 and spec.shape[1:] == (1,)
    return TensorInfo(spec.name, spec.dtype, spec.shape[:1] if is_flat else spec.shape)


def type_name(dtype: np.dtype) -> str:
    """Return the name of a type, "string" for text."""
    return "string" if dtype == STRING else dtype.name
