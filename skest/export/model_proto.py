# SPDX-License-Identifier: Apache-2.0
"""`to_model`: a graph as a model of the package onnx, the only module that needs it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from skest.export.graph import STRING, Graph, Tensor

__all__ = ["IR_VERSION", "OPSETS", "to_model"]

#: Versions of the operator sets; a model names those that it uses. With these, every
#: ONNX Runtime from 1.17 on runs it, and networks of float32 run from 1.15 on.
OPSETS = {"": 18, "ai.onnx.ml": 2, "com.microsoft": 1}
IR_VERSION = 8

# The name of the first dimension of inputs and outputs: rows.
_ROWS = "N"


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
            "An ONNX graph needs the package onnx; install skest[onnx]."
        ) from error
    nodes = graph.nodes
    used = {name for node in nodes for name in node.inputs}
    proto = helper.make_graph(
        [
            helper.make_node(
                node.op,
                node.inputs,
                node.outputs,
                name=node.name,
                domain=node.domain,
                **{key: _attribute(value) for key, value in node.attributes.items()},
            )
            for node in nodes
        ],
        graph.name,
        [_value_info(tensor) for tensor in graph.inputs],
        [_value_info(tensor) for tensor in graph.outputs],
        [
            numpy_helper.from_array(array, name)
            for name, array in graph.initializers.items()
            if name in used
        ],
    )
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


def _attribute(value: Any) -> Any:
    return _onnx_type(value) if isinstance(value, np.dtype) else value


def _value_info(tensor: Tensor) -> Any:
    from onnx import helper

    sizes = [
        size if size is not None else f"{tensor.name}_{axis}" if axis else _ROWS
        for axis, size in enumerate(tensor.shape)
    ]
    return helper.make_tensor_value_info(tensor.name, _onnx_type(tensor.dtype), sizes)
