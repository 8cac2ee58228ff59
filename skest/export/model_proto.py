# SPDX-License-Identifier: Apache-2.0
"""`to_model`: a graph as a model of the package onnx, the only module that needs it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from skest.export.graph import STRING, Graph, Node, Tensor
from skest.export.operators import IR_VERSION, OPSETS
from skest.export.unicode_names import explained_unicode

__all__ = ["to_model"]

# The name of the first dimension of inputs and outputs: rows.
_ROWS = "N"


@explained_unicode()
def to_model(graph: Graph, metadata: Mapping[str, str] | None = None) -> Any:
    """Return a graph as an ``onnx.ModelProto``.

    Parameters
    ----------
    graph : Graph
        With at least one output.
    metadata : dict of str to str, default=None
        Stored with the model.

    Raises
    ------
    ImportError
        If onnx is not installed.
    ExportError
        If a string in it is not valid Unicode.

    Examples
    --------
    >>> import numpy as np, pytest
    >>> _ = pytest.importorskip("onnx")
    >>> from skest.export.graph import Graph
    >>> from skest.export.model_proto import to_model
    >>> graph = Graph("doubled")
    >>> x = graph.input("x", np.float32, (None, 2))
    >>> _ = graph.output("y", x * 2, (None, 2))
    >>> [node.op_type for node in to_model(graph).graph.node]
    ['Mul', 'Identity']
    """
    try:
        from onnx import helper, numpy_helper
    except ImportError as error:
        raise ImportError(
            "An ONNX graph needs the package onnx; install it by "
            "`pip install onnx onnxruntime`."
        ) from error
    nodes = graph.nodes
    used = {name for node in nodes for name in node.inputs}
    proto = helper.make_graph(
        [],
        graph.name,
        [_value_info(tensor) for tensor in graph.inputs],
        [_value_info(tensor) for tensor in graph.outputs],
        [
            numpy_helper.from_array(array, name)
            for name, array in graph.initializers.items()
            if name in used
        ],
    )
    for node in nodes:
        _add_node(node, proto)
    domains = ["", *sorted({node.domain for node in nodes} - {""})]
    model = helper.make_model(
        proto,
        producer_name="skest",
        ir_version=IR_VERSION,
        opset_imports=[helper.make_opsetid(d, OPSETS[d]) for d in domains],
    )
    helper.set_model_props(model, dict(metadata or {}))
    return model


def _onnx_type(dtype: np.dtype) -> int:
    from onnx import TensorProto, helper

    is_text = dtype == STRING
    return TensorProto.STRING if is_text else helper.np_dtype_to_tensor_dtype(dtype)


def _add_node(node: Node, graph: Any) -> None:
    """Add a node in its place: to put one there would copy its vocabulary."""
    from onnx import AttributeProto, helper

    added = graph.node.add(
        op_type=node.op,
        domain=node.domain,
        name=node.name,
        input=node.inputs,
        output=node.outputs,
    )
    for name, value in sorted(node.attributes.items()):
        kinds = set(map(type, value)) if isinstance(value, tuple) else ()
        if kinds == {str}:
            words = map(str.encode, value)
            added.attribute.add(name=name, type=AttributeProto.STRINGS, strings=words)
        elif kinds == {int}:
            added.attribute.add(name=name, type=AttributeProto.INTS, ints=value)
        else:
            kind = _onnx_type(value) if isinstance(value, np.dtype) else value
            added.attribute.append(helper.make_attribute(name, kind))


def _value_info(tensor: Tensor) -> Any:
    from onnx import helper

    sizes = [
        size if size is not None else f"{tensor.name}_{axis}" if axis else _ROWS
        for axis, size in enumerate(tensor.shape)
    ]
    return helper.make_tensor_value_info(tensor.name, _onnx_type(tensor.dtype), sizes)
