# SPDX-License-Identifier: Apache-2.0
"""An exported model of one feature: it gives the double."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.export import _models

_SHAPE = {"dtype": "float64", "shape": [None, 1]}


def write(directory, factor=2.0, graph=None, **changes):
    """Write the model; it multiplies by `factor`, or does what a graph does."""
    described = {
        "schema": "skest.export/1",
        "files": {},
        "features": {"x": _SHAPE},
        "signatures": {
            "serving_default": {
                "method": "tensorflow/serving/regress",
                "inputs": {"x": {"tensor": "x"}},
                "outputs": {"outputs": {"tensor": "y", **_SHAPE}},
            }
        },
        **changes,
    }
    recorded = {
        "signature": "serving_default",
        "inputs": {"x": [1.0, -2.0]},
        "outputs": {"outputs": [[factor], [-2 * factor]]},
    }
    return _models.write(directory, graph or _doubling(factor), described, recorded)


def _doubling(factor):
    nodes = [helper.make_node("Mul", ["x", "factor"], ["y"], "multiply")]
    return graph_of(nodes, {"factor": np.array(factor, np.float64)}, ["N", 1])


def graph_of(nodes, arrays, shape):
    """Return a graph from a column of numbers "x" to "y"."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "model",
        [value("x", TensorProto.DOUBLE, ["N", 1])],
        [value("y", TensorProto.DOUBLE, shape)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
