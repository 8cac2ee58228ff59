# SPDX-License-Identifier: Apache-2.0
"""An exported model of one feature: it gives the double."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.export import _models

_SHAPE = {"dtype": "float64", "shape": [None, 1]}


def write(directory, factor=2.0, **changes):
    """Write the model; it multiplies by `factor`."""
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
    return _models.write(directory, _graph(factor), described, recorded)


def _graph(factor):
    nodes = [helper.make_node("Mul", ["x", "factor"], ["y"], "multiply")]
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["N", 1])
        for name in ("x", "y")
    ]
    initializers = [numpy_helper.from_array(np.array(factor, np.float64), "factor")]
    graph = helper.make_graph(nodes, "model", tensors[:1], tensors[1:], initializers)
    opsets = [helper.make_opsetid("", 18)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
