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
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from skest.exceptions import ExportError
from skest.export.onnx.columns import EveryId, Ids, Numbers, computed, encode
from skest.export.onnx.graph import IR_VERSION, OPSETS, Graph, Value
from skest.export.onnx.inputs import Inputs, InputSpec, demands
from skest.export.onnx.networks import Scope, network_output
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.encoding import Encoding, PartsEncoding
from skest.feature_columns.modules import (
    DenseFeatures,
    LinearFeatures,
    SequenceFeatures,
)
from skest.feature_columns.piecewise import PiecewiseLinearColumn
from skest.feature_columns.sources import Form, forms_of
from skest.feature_columns.table import Key, Table

_LOGGER = "torch.onnx._internal.exporter._registration"


@contextmanager
def _quiet_export() -> Iterator[None]:
    """Keep back messages of torch that are not about the user's module.

    That torchvision, of which nothing is needed, is not installed; and that torch calls
    something which torch will remove. All others are shown.
    """
    logger = logging.getLogger(_LOGGER)
    logger.addFilter(_is_of_use)
    try:
        with warnings.catch_warnings():
            message = r"`isinstance\(treespec, LeafSpec\)`"
            warnings.filterwarnings("ignore", message, FutureWarning)
            yield
    finally:
        logger.removeFilter(_is_of_use)


def _is_of_use(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("torchvision is not installed")


class _GatheredBag(nn.Module):
    """An `nn.EmbeddingBag` for ids of shape (n_rows, n_values), without a loop."""

    def __init__(self, bag: nn.EmbeddingBag, path: str) -> None:
        super().__init__()
        self.weight = bag.weight
        self._mode, self._padding, self._path = bag.mode, bag.padding_idx, path

    def forward(
        self,
        ids: Tensor,
        offsets: Tensor | None = None,
        per_sample_weights: Tensor | None = None,
    ) -> Tensor:
        """Combine the rows of each example."""
        if ids.ndim != 2 or offsets is not None:
            raise ExportError(
                f"The nn.EmbeddingBag {self._path!r} takes its ids with offsets, which "
                "an exported graph cannot do. Give it ids of shape (n_rows, n_values) "
                "and a padding_idx."
            )
        rows = self.weight[ids]
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.unsqueeze(-1)
        if self._padding is None:
            present = torch.ones_like(ids, dtype=torch.bool)
        else:
            present = ids != self._padding
        mask = present.unsqueeze(-1)
        if self._mode == "max":
            lowest = torch.where(mask, rows, torch.finfo(rows.dtype).min)
            return torch.where(mask.any(1), lowest.amax(1), 0)
        total = torch.where(mask, rows, 0).sum(1)
        if self._mode == "sum":
            return total
        return total / mask.sum(1).clamp(min=1).to(total.dtype)


def replace_embedding_bags(network: nn.Module) -> nn.Module:
    """Replace every `nn.EmbeddingBag` in a network, which changes.

    torch writes it as a loop over the rows, which no exported graph may have.

    Parameters
    ----------
    network : torch.nn.Module
        A copy that nobody else uses.

    Returns
    -------
    torch.nn.Module
        The same network; what replaces it if it is an `nn.EmbeddingBag` itself.

    Raises
    ------
    ExportError
        If one scales its vectors to a `max_norm`; in a call of the network, if one takes
        offsets.

    Examples
    --------
    >>> import torch
    >>> from skest.export.onnx.tracing import replace_embedding_bags
    >>> bag = torch.nn.EmbeddingBag(3, 2, mode="sum")
    >>> ids = torch.tensor([[0, 2], [1, 1]])
    >>> torch.equal(replace_embedding_bags(bag)(ids), bag(ids))
    True
    """
    for path, module in list(network.named_modules()):
        if not isinstance(module, nn.EmbeddingBag):
            continue
        if module.max_norm is not None:
            raise ExportError(
                f"The nn.EmbeddingBag {path!r} has a max_norm, which changes its table "
                "while it predicts. Scale the table after training instead."
            )
        if path == "":
            return _GatheredBag(module, path)
        network.set_submodule(path, _GatheredBag(module, path))
    return network


# What branches, loops, draws or has lists for values: no row of a batch has its own then.
_REFUSED = ("Bernoulli", "If", "Loop", "Multinomial", "Random", "Scan", "Sequence")
# torch writes on which modules a node is here.
_SCOPES = "pkg.torch.onnx.name_scopes"
# torch can trace one module at a time.
_TRACING = threading.Lock()


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


def traced(
    function: Callable[..., Mapping[str, Tensor]],
    network: nn.Module,
    graph: Graph,
    values: Sequence[Value],
    example: Sequence[Tensor],
    open_axes: Sequence[Sequence[int]],
) -> dict[Any, Traced]:
    """Add what a function of a network computes to a graph.

    Parameters
    ----------
    function : callable
        ``function(network, *tensors) -> dict of tensors``, which have a row each for one
        of the batch.
    network : torch.nn.Module
        In evaluation mode; it stays as it is.
    graph : Graph
        Gets the nodes.
    values : sequence of Value
        What the tensors are there.
    example : sequence of Tensor
        Tensors to trace the function with, at least two long in every open axis.
    open_axes : sequence of sequences of int
        The axes of each tensor that may have any length.

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
    >>> from skest.export.onnx.tracing import traced
    >>> graph = Graph("own")
    >>> x = graph.input("x", np.float32, (None, 2))
    >>> network = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Tanh()).eval()
    >>> found = traced(
    ...     lambda network, x: {"y": network(x)},
    ...     network, graph, [x], [torch.ones(2, 2)], [[0]],
    ... )
    >>> _ = graph.output("y", *found["y"])
    >>> [node.op for node in graph.nodes]
    ['Gemm', 'Tanh', 'Identity']
    """
    _check_installed()
    own = replace_embedding_bags(copy.deepcopy(network).cpu())
    name = type(network).__name__
    with _TRACING, torch.no_grad():
        results = _check_results(function(own, *example))
        model = _model_of(
            _TracedFunction(own, function), tuple(example), open_axes, name
        )
    _check_operators(model, name)
    outputs = _grafted(model, graph, values, name)
    return {
        key: _typed(value, result, declared, key)
        for (key, result), value, declared in zip(
            results.items(), outputs, model.graph.output, strict=True
        )
    }


class _TracedFunction(nn.Module):
    """A function of a network as a module.

    Parameters
    ----------
    network : torch.nn.Module
        In evaluation mode.
    function : callable
        ``function(network, *tensors) -> dict of tensors``.
    """

    def __init__(self, network: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.network = network
        self._function = function

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return what the function does; clones, for a result may be an input."""
        return tuple(
            value.clone() for value in self._function(self.network, *tensors).values()
        )


def _check_installed() -> None:
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "Exporting a network of your own needs the package onnxscript; install it by "
            "`pip install onnxscript`."
        ) from error


def _check_results(results: Any) -> Mapping[str, Tensor]:
    """Return results; raise ExportError for one that has no row for each of the batch."""
    for key, value in results.items():
        if not isinstance(value, Tensor):
            raise ExportError(
                f"The result {key!r} is a {type(value).__name__}, which cannot be "
                "exported. Return tensors."
            )
        if value.ndim == 0:
            raise ExportError(
                f"The result {key!r} is one number for the batch. An exported model "
                "returns something for every row."
            )
    return results


def _model_of(
    module: nn.Module, example: tuple[Tensor, ...], open_axes: Any, name: str
) -> Any:
    """Return what torch writes, as an ``onnx.ModelProto`` without functions."""
    from onnx import inliner

    dynamic = torch.export.Dim.DYNAMIC
    axes = tuple(dict.fromkeys(own, dynamic) for own in open_axes)
    try:
        with _quiet_export():
            program = torch.export.export(
                module.eval(), example, dynamic_shapes=(axes,), strict=False
            )
            written = torch.onnx.export(
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
    if written is None:
        raise ExportError(f"torch wrote nothing for the module {name}.")
    return inliner.inline_local_functions(written.model_proto)


def _check_operators(model: Any, name: str) -> None:
    """Refuse what is not among the operators of exported graphs."""
    versions = {entry.domain: entry.version for entry in model.opset_import}
    if versions.get("") != OPSETS[""] or model.ir_version > IR_VERSION + 4:
        raise ExportError(
            f"torch wrote the module {name} for operator set {versions.get('')}, not "
            f"{OPSETS['']}. Use operations that this one has."
        )
    for node in model.graph.node:
        if node.domain or node.op_type.startswith(_REFUSED):
            raise ExportError(
                f"The module {_module_of(node, name)} needs the operator "
                f"{node.op_type!r}, which exported graphs do not have: they neither "
                "branch nor loop nor draw. Compute it in another way."
            )


def _module_of(node: Any, name: str) -> str:
    """Return the class of the network, and the path of the module inside."""
    scopes = next((p.value for p in node.metadata_props if p.key == _SCOPES), "")
    paths = [p.strip(" '\"[]") for p in scopes.split(",")]
    inside = [p.removeprefix("network.") for p in paths if p.startswith("network.")]
    # The last one is the operation itself.
    path = inside[-1] if inside else ""
    return f"{name} at {path!r}" if path else name


def _grafted(
    model: Any, graph: Graph, values: Sequence[Value], name: str
) -> list[Value]:
    """Add the nodes of a model to a graph; return its outputs there."""
    from onnx import numpy_helper

    found: dict[str, Value] = {"": None}  # type: ignore[dict-item]
    for declared, value in zip(model.graph.input, values, strict=True):
        found[declared.name] = value
    for tensor in model.graph.initializer:
        path = tensor.name.removeprefix("network.")
        array = numpy_helper.to_array(tensor)
        is_weight = path != tensor.name
        found[tensor.name] = (
            graph.weight(path, array) if is_weight else graph.constant(array)
        )
    with graph.scope(name):
        for node in model.graph.node:
            inputs = [found[n] for n in node.input]
            for key, output in zip(
                node.output, _added(node, graph, inputs), strict=True
            ):
                found[key] = output
    return [found[output.name] for output in model.graph.output]


def _added(node: Any, graph: Graph, inputs: list[Any]) -> Sequence[Value]:
    """Add a node; the types of values inside are the business of torch."""
    from onnx import helper, numpy_helper

    given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Constant":
        (value,) = given.values()
        is_tensor = hasattr(value, "data_type")
        return [graph.constant(numpy_helper.to_array(value) if is_tensor else value)]
    if node.op_type == "ConstantOfShape":
        fill = given.get("value")
        array = np.zeros(1, np.float32) if fill is None else numpy_helper.to_array(fill)
        return [graph.add("Expand", graph.constant(array.reshape(())), inputs[0])]
    attributes = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in given.items()
    }
    outputs = [(np.float32, 0)] * len(node.output)
    return graph.add_many(
        node.op_type, *inputs, outputs=outputs, domain=node.domain, **attributes
    )


def _typed(value: Value, result: Tensor, declared: Any, key: Any) -> Traced:
    """Return a result with its type, from that for the example, and its shape."""
    dtype = np.dtype(str(result.dtype).removeprefix("torch."))
    sizes = declared.type.tensor_type.shape.dim
    shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in sizes)
    if shape[0] is not None:
        raise ExportError(
            f"The result {key!r} has {shape[0]} rows, whatever the batch has. An exported "
            "model returns something for every row."
        )
    return Traced(Value(value.graph, value.name, dtype, result.ndim), shape)


#: Name of the input of a model whose features are one array.
BARE = "x"


@dataclass(frozen=True)
class Traceable:
    """An encoded feature, as `skest.export.onnx.tracing.traced` takes it.

    Attributes
    ----------
    value : Value
        The tensor in the graph.
    example : Tensor
        Some rows of it.
    open_axes : tuple of int
        Axes of any length.
    """

    value: Value
    example: Tensor
    open_axes: tuple[int, ...]


@dataclass(frozen=True)
class SpecInputs:
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
    is_bare : bool
        Whether the network takes one tensor, not a dictionary.
    """

    specs: list[InputSpec]
    encoded: Any
    traceable: dict[Any, Traceable]
    is_bare: bool

    @property
    def is_for_canned(self) -> bool:
        """Whether it can only be written directly: nothing could be traced."""
        return not self.traceable

    @property
    def is_matrix_or_encoded(self) -> bool:
        """Whether networks of skest take it: a matrix, or encoded columns."""
        return not self.is_bare or self.encoded.ndim == 2

    def assembled(self, tensors: Any) -> Any:
        """Return tensors in the order of `traceable` as the network takes them."""
        if self.is_bare:
            return tensors[0]
        return dict(zip(self.traceable, tensors, strict=True))


def _columns_of_encode(
    own: Callable[..., Any],
) -> FeatureColumns | dict[str, FeatureColumns]:
    """Return the feature columns whose method ``encode`` a function is.

    Those of a canned network of several parts, such as wide & deep, come by part.

    Raises
    ------
    ExportError
        If it is another function.
    """
    if isinstance(own, Encoding):
        return own.columns
    if isinstance(own, PartsEncoding):
        return own.parts
    function = own.func if isinstance(own, partial) else own
    columns = getattr(function, "__self__", None)
    if isinstance(columns, FeatureColumns) and function == columns.encode:
        return columns
    raise ExportError(
        f"The 'encode' of the EstimatorSpec, {_called(function)}, cannot be exported. "
        "Use FeatureColumns.encode, or functools.partial of it with a dtype; or leave it "
        "out and give tensors as features."
    )


def _called(function: Any) -> str:
    """Return the name of a function, not all that is bound to it."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def spec_inputs(
    graph: Graph,
    own: Callable[..., Any] | None,
    features: Any,
    dtype: np.dtype,
    forms: Mapping[Key, Form] | None,
    input_rank: int,
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
    input_rank : {1, 2}
        Of raw columns with one value for each row.

    Raises
    ------
    ExportError
        If `own` is not the method of `FeatureColumns`, or a feature is no tensor.
    """
    if own is None:
        return _plain(graph, features, dtype)
    columns = _columns_of_encode(own)
    if forms is None:
        forms = _forms_of_columns(columns, features)
    if isinstance(columns, dict):
        given = [column for part in columns.values() for column in part.active]
        inputs = Inputs(graph, given, dtype, forms, input_rank)
        by_part = {name: encode(part, inputs, dtype) for name, part in columns.items()}
        return SpecInputs(inputs.specs, by_part, {}, False)
    inputs = Inputs(graph, columns.active, dtype, forms, input_rank)
    encoded = encode(columns, inputs, dtype)
    traceable = _of_columns(columns, encoded, own(features))
    return SpecInputs(inputs.specs, encoded, traceable, False)


def _forms_of_columns(
    columns: FeatureColumns | dict[str, FeatureColumns], features: Any
) -> dict[Key, Form]:
    """Return what the cells of categories are."""
    table = Table(features)
    parts = columns.values() if isinstance(columns, dict) else [columns]
    wanted = [d for part in parts for column in part.active for d in demands(column)]
    return forms_of({d.key: table.cells(d.key) for d in wanted if not d.is_number})


def _of_columns(
    columns: FeatureColumns, encoded: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[Any, Traceable]:
    found: dict[Any, Traceable] = {}
    for key, (example, open_axes) in _trial_tensors(columns, encoded, tensors).items():
        entry = encoded[key]
        if isinstance(entry, EveryId):
            continue  # only modules of skest take it
        value = computed([entry]) if isinstance(entry, Numbers) else entry
        value = entry.values if isinstance(entry, Ids) else value
        found[key] = Traceable(value.cast(_numpy(example)), example, open_axes)
    return found


def _trial_tensors(
    columns: FeatureColumns, encoded: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    """Return tensors to trace a network with, and their axes of any length.

    Parameters
    ----------
    columns : FeatureColumns
        Fitted.
    encoded : dict
        What they encode in a graph.
    tensors : dict of str to Tensor
        What they encode of some rows.
    """
    # A piecewise-linear column has one weight, its fraction, for each element of a cell.
    weights = {
        getattr(column, "weight_key", None)
        for column in columns.active
        if not isinstance(column, PiecewiseLinearColumn)
    }
    found: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
    for key, tensor in tensors.items():
        entry = encoded[key]
        fill, is_open = 0, tensor.ndim == 3 or key in weights
        if isinstance(entry, Ids | EveryId):  # the latter come as those that are not 0
            fill, is_open = -1, isinstance(entry, EveryId) or entry.width is None
        axes = (0, 1) if is_open else (0,)
        found[key] = (_enough_rows(tensor, is_open, fill), axes)
    return found


def _enough_rows(tensor: Tensor, is_open: bool = False, fill: int = 0) -> Tensor:
    """Return rows of which torch does not take the numbers 0 and 1 for special cases."""
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
        name = str(key)
        kind = dtype.name if tensor.is_floating_point() else "int64"
        shape = (None, *tensor.shape[1:])
        specs.append(InputSpec(name, key, kind, shape, None))
        value = graph.input(name, kind, shape).cast(_numpy(tensor))
        found[key] = Traceable(value, _enough_rows(tensor), (0,))
    values = {key: entry.value for key, entry in found.items()}
    return SpecInputs(specs, values[BARE] if is_bare else values, found, is_bare)


def _tensor(cells: Any, key: Any, dtype: np.dtype) -> Tensor:
    if isinstance(cells, Mapping):
        raise ExportError(
            f"The feature {key!r} is a dictionary of features, and each input of a graph "
            "is one tensor. Let 'input_fn' give one dictionary of arrays, "
            'under names such as "outer_inner".'
        )
    array = cells if isinstance(cells, Tensor) else np.asarray(cells)
    if not isinstance(array, Tensor):
        if array.dtype.kind not in "biuf":
            raise ExportError(
                f"The feature {key!r} holds {array.dtype}, not numbers, and the model has "
                "no 'encode'. Encode it by FeatureColumns."
            )
        array = torch.as_tensor(array)
    if array.ndim == 0:
        raise ExportError(f"The feature {key!r} has no rows.")
    floating = getattr(torch, dtype.name)
    return array.to(floating) if array.is_floating_point() else array


def _numpy(tensor: Tensor) -> np.dtype:
    return np.dtype(str(tensor.dtype).removeprefix("torch."))


_KNOWN = (DenseFeatures, LinearFeatures, SequenceFeatures)


def trace_around_known_parts(
    function: Callable[[Any], Any],
    network: nn.Module,
    graph: Graph,
    given: SpecInputs,
) -> dict[Any, Traced]:
    """Add what a function of the logits gives to a graph.

    Parameters
    ----------
    function : callable
        ``function(network(features)) -> dict of tensors``.
    network : torch.nn.Module
        In evaluation mode; it stays as it is.
    graph : Graph
        Gets the nodes.
    given : SpecInputs
        What the network takes.

    Returns
    -------
    dict of Traced
        By key.

    Raises
    ------
    ExportError, ImportError
        As `skest.export.onnx.tracing.traced`.
    """
    parts = _known_parts(network, given)
    around = copy.deepcopy(network)
    slots: dict[str, Any] = {}
    entries = list(given.traceable.values())
    layout = []
    for path, example in parts.items():
        around = _with_stub(around, path, slots)
        part = network.get_submodule(path)
        scope = Scope(graph, f"{path}." if path else "")
        values = network_output(part, scope, given.encoded)
        layout.append((path, isinstance(example, tuple)))
        entries += _as_entries(values, example)

    def run(own: nn.Module, *tensors: Tensor) -> dict[Any, Tensor]:
        left = iter(tensors[len(given.traceable) :])
        for path, is_pair in layout:
            slots[path] = (next(left), next(left)) if is_pair else next(left)
        return function(own(given.assembled(tensors[: len(given.traceable)])))

    return traced(
        run,
        around,
        graph,
        [entry.value for entry in entries],
        [entry.example for entry in entries],
        [entry.open_axes for entry in entries],
    )


def _as_entries(values: Any, example: Any) -> list[Traceable]:
    pairs = (
        zip(values, example, strict=True)
        if isinstance(example, tuple)
        else [(values, example)]
    )
    return [
        Traceable(value, tensor, (0, 1) if tensor.ndim == 3 else (0,))
        for value, tensor in pairs
    ]


def _known_parts(network: nn.Module, given: SpecInputs) -> dict[str, Any]:
    """Return what modules of skest give that take all the encoded features, by path."""
    if given.is_bare:
        return {}
    example = {key: entry.example for key, entry in given.traceable.items()}
    found: dict[str, Any] = {}
    calls: dict[str, int] = {}

    def note(path: str, arguments: Any, result: Any) -> None:
        calls[path] = calls.get(path, 0) + 1
        features = arguments[0] if arguments else None
        if isinstance(features, Mapping) and all(
            features.get(key) is tensor for key, tensor in example.items()
        ):
            found[path] = result

    handles = [
        module.register_forward_hook(
            lambda _, arguments, result, path=path: note(path, arguments, result)
        )
        for path, module in network.named_modules()
        if type(module) in _KNOWN
    ]
    try:
        with torch.no_grad():
            network(example)
    except KeyError as error:
        raise ExportError(
            f"The module {type(network).__name__} takes the feature {error}, which only "
            "modules of skest.feature_columns can look up in an exported graph."
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return {path: result for path, result in found.items() if calls[path] == 1}


class _Given(nn.Module):
    """Stands for a module whose result is known."""

    def __init__(self, read: Callable[[], Any]) -> None:
        super().__init__()
        self._read = read

    def forward(self, *arguments: Any) -> Any:
        """Return the result."""
        return self._read()


def _with_stub(network: nn.Module, path: str, slots: Mapping[str, Any]) -> nn.Module:
    # A function is not copied with its module, so that it reads these very slots.
    stub = _Given(lambda: slots[path])
    if path == "":
        return stub
    network.set_submodule(path, stub)
    return network
