# SPDX-License-Identifier: Apache-2.0
"""Modules of the user's in an exported graph: traced by torch, grafted onto the rest.

torch writes the module as a graph of its own, whose nodes are then added to that of the
columns and the head. Those parts that `skest.export.nets_onnx` knows stay as it writes
them.
"""

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from skest.exceptions import ExportError
from skest.export.embedding_bags import replace_embedding_bags
from skest.export.graph import Graph, Value
from skest.export.operators import ALLOWED_OPERATORS, IR_VERSION, OPSETS
from skest.export.quiet_export import quiet_export

__all__ = ["Traced", "traced"]

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
    >>> from skest.export.graph import Graph
    >>> from skest.export.torch_bridge import traced
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
        with quiet_export():
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
        if (node.domain, node.op_type) not in ALLOWED_OPERATORS:
            raise ExportError(
                f"The module {_module_of(node, name)} needs the operator "
                f"{node.op_type!r}, which exported graphs do not have: they neither "
                "branch nor loop. Compute it in another way."
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
