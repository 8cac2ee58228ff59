# SPDX-License-Identifier: Apache-2.0
"""Networks of the user's in an ONNX graph: traced by torch, between columns and head.

torch writes the module as a graph of its own, whose nodes are then added to the rest. The
modules of skest in it that look up feature columns stay as `skest.export.onnx.networks`
writes them: what torch traces has inputs in their place.
"""

import copy
import logging
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from skest.core.checks import needing
from skest.exceptions import ExportError
from skest.export.onnx.columns import EveryId, Ids, encode_all
from skest.export.onnx.graph import OPSETS, Graph, Value
from skest.export.onnx.inputs import InputSpec, demands
from skest.export.onnx.networks import Scope, network_output, numpy_dtype
from skest.export.onnx.numbers import as_value
from skest.feature_columns import modules
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.encoding import Encoding, PartsEncoding
from skest.feature_columns.numeric_vectors import PiecewiseLinearColumn
from skest.feature_columns.sources import Form, forms_of
from skest.feature_columns.table import Key, Table

#: Name of the input of a model whose features are one array.
BARE = "x"

# What branches, loops, draws or has lists for values: no row of a batch has its own then.
_REFUSED = ("Bernoulli", "If", "Loop", "Multinomial", "Random", "Scan", "Sequence")
# torch can trace one module at a time.
_TRACING = threading.Lock()
_LOOKS_UP = (modules.DenseFeatures, modules.LinearFeatures, modules.SequenceFeatures)


class Traced(NamedTuple):
    """A result in the graph.

    Attributes
    ----------
    value : Value
        The tensor.
    shape : tuple of int or None
        None is open; the first is the number of rows.
    """

    value: Value
    shape: tuple[int | None, ...]


class Traceable(NamedTuple):
    """What a network takes.

    Attributes
    ----------
    value : Value
        The tensor in the graph.
    example : Tensor
        Some rows of it, at least two long in every open axis.
    open_axes : tuple of int
        Axes of any length.
    """

    value: Value
    example: Tensor
    open_axes: tuple[int, ...] = (0,)


class SpecInputs(NamedTuple):
    """What a network gets.

    Attributes
    ----------
    specs : list of InputSpec
        Inputs of the graph.
    encoded : Value, or dict of Value, Ids and EveryId
        For networks that are written directly.
    traceable : dict of Traceable
        For others, under the keys of the encoded features; none of a model whose columns
        come by part, which is canned.
    """

    specs: list[InputSpec]
    encoded: Any
    traceable: dict[Any, Traceable]


def traced(
    function: Callable[[Any], Mapping[Any, Any]],
    network: nn.Module,
    graph: Graph,
    given: SpecInputs,
) -> dict[Any, Traced]:
    """Add what a function of the logits gives to a graph.

    Parameters
    ----------
    function : callable
        ``function(network(features)) -> dict of tensors``, which have a row each for one
        of the batch.
    network : torch.nn.Module
        In evaluation mode; it stays as it is. The modules of skest in it that look up
        columns are taken to get the encoded features as they are: of others, the test of
        the export says that numbers differ.
    graph : Graph
        Gets the nodes.
    given : SpecInputs
        What the network takes.

    Returns
    -------
    dict of Traced
        What the function returns.

    Raises
    ------
    ExportError
        If torch cannot trace the function, it returns something else than tensors, or
        it needs an operator that exported graphs do not have.
    ImportError
        If onnxscript is not installed.

    Examples
    --------
    >>> import numpy as np, pytest, torch
    >>> _ = pytest.importorskip("onnxscript")
    >>> from skest.export.onnx.graph import Graph
    >>> from skest.export.onnx.tracing import SpecInputs, Traceable, traced
    >>> graph = Graph("own")
    >>> x = graph.input("x", np.float32, (None, 2))
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Tanh()).eval()
    >>> given = SpecInputs([], x, {"x": Traceable(x, torch.ones(2, 2))})
    >>> found = traced(lambda logits: {"y": logits}, network, graph, given)
    >>> _ = graph.output("y", *found["y"])
    >>> [node.op_type for node in graph.nodes]
    ['Gemm', 'Tanh', 'Identity']
    """
    with needing("onnxscript", "Exporting a network of your own"):
        import onnxscript  # noqa: F401
    name, is_bare = type(network).__name__, isinstance(given.encoded, Value)
    # A copy, since the look-ups in it are replaced.
    network, entries = copy.deepcopy(network).cpu(), dict(given.traceable)
    # One array has no columns to look up.
    if not is_bare:
        network = _without_known_parts(network, graph, given.encoded, entries)
    whole = _Traced(function, network, BARE if is_bare else None)
    with _TRACING, torch.no_grad():
        results, model = _written(whole, entries, name)
    outputs = _grafted(model, graph, [entry.value for entry in entries.values()], name)
    return {
        key: _typed(value, result, declared, key)
        for (key, result), value, declared in zip(
            results.items(), outputs, model.graph.output, strict=True
        )
    }


class _Traced(nn.Module):
    """A function of a network as a module; the names of its parameters are kept."""

    def __init__(
        self, function: Callable[..., Any], network: nn.Module, key: Any
    ) -> None:
        super().__init__()
        self.function = function
        self.network = network
        self.key = key

    def results(self, features: Mapping[Any, Tensor]) -> Mapping[Any, Any]:
        """Return what the function gives."""
        taken = features if self.key is None else features[self.key]
        found: Mapping[Any, Any] = self.function(self.network(taken))
        return found

    def forward(self, features: Mapping[Any, Tensor]) -> tuple[Tensor, ...]:
        """Return clones of it, for a result may be an input."""
        return tuple(value.clone() for value in self.results(features).values())


class _Given(nn.Module):
    """Stands for a module whose result is among the features."""

    def __init__(self, keys: list[str]) -> None:
        super().__init__()
        self.keys = keys

    def forward(self, features: Mapping[Any, Tensor]) -> Any:
        """Return the result."""
        found = [features[key] for key in self.keys]
        return found[0] if len(found) == 1 else tuple(found)


def _without_known_parts(
    network: nn.Module, graph: Graph, encoded: Any, entries: dict[Any, Traceable]
) -> nn.Module:
    """Return a network whose look-ups read their results, which become entries."""
    example = {key: entry.example for key, entry in entries.items()}
    # As a list, for modules are replaced on the way.
    for path, part in list(network.named_modules()):
        # Not subclasses, which may look up otherwise.
        if type(part) not in _LOOKS_UP:
            continue
        values = network_output(part, Scope(graph, f"{path}." if path else ""), encoded)
        with torch.no_grad():
            results = part(example)
        if not isinstance(results, tuple):  # else outputs and lengths of sequences
            values, results = (values,), (results,)
        keys = [f"{path}:{i}" for i in range(len(results))]
        for key, value, tensor in zip(keys, values, results, strict=True):
            # (n_rows, n_steps, size) of sequences, else (n_rows, size).
            axes = (0, 1) if tensor.ndim == 3 else (0,)
            entries[key] = Traceable(value, tensor, axes)
        # The network itself looks up columns: there is no parent to set it in.
        if path == "":
            return _Given(keys)
        network.set_submodule(path, _Given(keys))
    return network


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep back what torch says of itself, and that torchvision is not installed."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def _written(
    module: _Traced, entries: Mapping[Any, Traceable], name: str
) -> tuple[Mapping[Any, Tensor], Any]:
    """Return what a function gives, and its graph as an ``onnx.ModelProto``."""
    from onnx import inliner

    example = {key: entry.example for key, entry in entries.items()}
    axes = {
        # Not Dim.AUTO, which fixes an axis without a word where the module does.
        key: dict.fromkeys(entry.open_axes, torch.export.Dim.DYNAMIC)
        for key, entry in entries.items()
    }
    try:
        results = module.results(example)
        for key, value in results.items():
            if not (isinstance(key, str) and isinstance(value, Tensor) and value.ndim):
                raise ExportError(
                    f"The result {key!r} cannot be exported: it is {value!r}. Return "
                    "tensors by names, with something for every row."
                )
        with _quiet():
            # Not strict: Dynamo would refuse Python that it does not understand.
            program = torch.export.export(
                module.eval(), (example,), dynamic_shapes=(axes,), strict=False
            )
            written: Any = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=OPSETS[""],
                external_data=False,
                verbose=False,
            )
    except ExportError:
        raise
    except Exception as error:  # what torch raises is of many classes
        reason = str(error).strip().partition("\n")[0]
        raise ExportError(
            f"The module {name} cannot be written as ONNX, because torch cannot trace "
            f"it: {type(error).__name__}: {reason} Use operations on tensors of any "
            "number of rows, and no branches that depend on values."
        ) from error
    # torch calls some of what it writes as functions of the model; a graph here has nodes.
    model = inliner.inline_local_functions(written.model_proto)
    versions = {entry.domain: entry.version for entry in model.opset_import}
    if versions.get("") != OPSETS[""]:
        raise ExportError(
            f"torch wrote the module {name} for operator set {versions.get('')}, not "
            f"{OPSETS['']}. Use operations that this one has."
        )
    for node in model.graph.node:
        if node.domain or node.op_type.startswith(_REFUSED):
            raise ExportError(
                f"The module {name} needs the operator {node.op_type!r}, which exported "
                "graphs do not have: they neither branch nor loop nor draw. Compute it in "
                "another way; in place of an nn.EmbeddingBag, sum or average rows of an "
                "nn.Embedding."
            )
    return results, model


def _grafted(
    model: Any, graph: Graph, values: Sequence[Value], name: str
) -> list[Value]:
    """Add the nodes of a model to a graph; return its outputs there."""
    from onnx import helper, numpy_helper

    # ONNX names an optional input that is left out "".
    found: dict[str, Any] = {"": None}
    for declared, value in zip(model.graph.input, values, strict=True):
        found[declared.name] = value
    for tensor in model.graph.initializer:
        # `_Traced` is one more module around the user's, whose weights keep their names.
        path = tensor.name.removeprefix("network.")
        array = numpy_helper.to_array(tensor)
        is_weight = path != tensor.name
        found[tensor.name] = (
            graph.weight(path, array) if is_weight else graph.constant(array)
        )
    with graph.scope(name):
        for node in model.graph.node:
            inputs = [found[name] for name in node.input]
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            # The types of values inside are the business of torch, and nobody asks for
            # them here: `_typed` sets those of the results.
            outputs = [(np.float32, 0)] * len(node.output)
            added = graph.add_many(node.op_type, *inputs, outputs=outputs, **attributes)
            found |= zip(node.output, added, strict=True)
    return [found[output.name] for output in model.graph.output]


def _typed(value: Value, result: Tensor, declared: Any, key: Any) -> Traced:
    """Return a result with its type, from that for the example, and its shape."""
    sizes = declared.type.tensor_type.shape.dim
    shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in sizes)
    if shape[0] is not None:
        raise ExportError(
            f"The result {key!r} has {shape[0]} rows, whatever the batch has. An exported "
            "model returns something for every row."
        )
    # `_grafted` knows no types; those of the example are the same.
    return Traced(
        Value(value.graph, value.name, numpy_dtype(result.dtype), result.ndim), shape
    )


def spec_inputs(
    graph: Graph,
    own: Callable[..., Any] | None,
    features: Any,
    dtype: np.dtype,
    forms: Mapping[Key, Form] | None,
) -> SpecInputs:
    """Declare the inputs of a model.

    Parameters
    ----------
    graph : Graph
        Gets the inputs.
    own : callable or None
        The ``encode`` of the specification.
    features : raw features
        Some rows.
    dtype : numpy.dtype
        Floating type of the network.
    forms : dict of Form or None
        What is known about raw columns; None is what `features` are.

    Raises
    ------
    ExportError
        If `own` is not the method of `FeatureColumns`, or a feature is no tensor.
    """
    if own is None:
        return _plain(graph, features, dtype)
    parts = _parts_of_encode(own)
    if forms is None:
        table = Table(features)
        # Columns of numbers say what they are; of categories the data tell.
        every = [demands(column) for part in parts.values() for column in part.active]
        wanted = {d.key for of_column in every for d in of_column if not d.is_number}
        forms = forms_of({key: table.cells(key) for key in wanted})
    specs, encoded = encode_all(graph, parts, dtype, forms)
    if None not in parts:
        return SpecInputs(specs, encoded, {})
    only = encoded[None]
    return SpecInputs(specs, only, _of_columns(parts[None], only, own(features)))


def _parts_of_encode(own: Any) -> dict[Any, FeatureColumns]:
    """Return the feature columns whose method ``encode`` a function is.

    Those of a canned network of several parts, such as wide & deep, come by part; others
    under None.
    """
    if isinstance(own, Encoding):
        return {None: own.columns}
    if isinstance(own, PartsEncoding):
        return own.parts
    # A bound method knows its columns; of any other callable nothing is known.
    function = own.func if isinstance(own, partial) else own
    columns = getattr(function, "__self__", None)
    if isinstance(columns, FeatureColumns) and function == columns.encode:
        return {None: columns}
    called = getattr(function, "__qualname__", type(function).__qualname__)
    raise ExportError(
        f"The 'encode' of the EstimatorSpec, {called}, cannot be exported. Use "
        "FeatureColumns.encode, or functools.partial of it with a dtype; or leave it out "
        "and give tensors as features."
    )


def _of_columns(
    columns: FeatureColumns, encoded: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[Any, Traceable]:
    # A piecewise-linear column has one weight, its fraction, for each element of a cell.
    weights = {
        getattr(column, "weight_key", None)
        for column in columns.active
        if not isinstance(column, PiecewiseLinearColumn)
    }
    found: dict[Any, Traceable] = {}
    for key, tensor in tensors.items():
        entry = encoded[key]
        if isinstance(entry, EveryId):
            continue  # only modules of skest take it
        if isinstance(entry, Ids):
            # -1 is no id, as feature columns pad lists of several lengths.
            fill, is_open, value = -1, entry.width is None, entry.values
        else:
            fill, is_open = 0, tensor.ndim == 3 or key in weights
            value = as_value(entry)
        example = _enough_rows(tensor, is_open, fill)
        axes = (0, 1) if is_open else (0,)
        found[key] = Traceable(value.cast(numpy_dtype(tensor.dtype)), example, axes)
    return found


def _enough_rows(tensor: Tensor, is_open: bool = False, fill: int = 0) -> Tensor:
    """Return rows of which torch does not take the numbers 0 and 1 for special cases."""
    # Repeated, not drawn: a network may refuse what its columns never give.
    rows = torch.cat([tensor, tensor, tensor])
    if len(rows) < 2:
        rows = F.pad(rows, (0, 0) * (rows.ndim - 1) + (0, 2))
    if not is_open:
        return rows
    return F.pad(rows, (0, 0) * (rows.ndim - 2) + (0, 2), value=fill)


def _plain(graph: Graph, features: Any, dtype: np.dtype) -> SpecInputs:
    """Declare an input for each tensor."""
    is_bare = not isinstance(features, Mapping)
    found: dict[Any, Traceable] = {}
    specs = []
    for key, cells in ({BARE: features} if is_bare else features).items():
        tensor = _tensor(cells, key, dtype)
        # Integers of any width come as int64, which is what JSON and Python have.
        kind = dtype.name if tensor.is_floating_point() else "int64"
        # Without columns nothing is known of missing values: none may be.
        specs.append(InputSpec(str(key), key, kind, (None, *tensor.shape[1:]), None))
        value = graph.input(str(key), kind, specs[-1].shape).cast(
            numpy_dtype(tensor.dtype)
        )
        found[key] = Traceable(value, _enough_rows(tensor))
    values = {key: entry.value for key, entry in found.items()}
    return SpecInputs(specs, values[BARE] if is_bare else values, found)


def _tensor(cells: Any, key: Any, dtype: np.dtype) -> Tensor:
    if isinstance(cells, Mapping):
        raise ExportError(
            f"The feature {key!r} is a dictionary of features, and each input of a graph "
            "is one tensor. Let 'input_fn' give one dictionary of arrays, "
            'under names such as "outer_inner".'
        )
    # A copy: arrays of pandas can't be written to, of which torch would warn.
    array = cells if isinstance(cells, Tensor) else np.array(cells)
    if isinstance(array, np.ndarray) and array.dtype.kind not in "biuf":
        raise ExportError(
            f"The feature {key!r} holds {array.dtype}, not numbers, and the model has "
            "no 'encode'. Encode it by FeatureColumns."
        )
    if array.ndim == 0:
        raise ExportError(f"The feature {key!r} has no rows.")
    tensor = torch.as_tensor(array)
    return tensor.to(getattr(torch, dtype.name) if tensor.is_floating_point() else None)
