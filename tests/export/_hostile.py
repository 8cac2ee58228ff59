# SPDX-License-Identifier: Apache-2.0
"""Graphs of allowed operators that end the process of an engine, or hold it for long."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.export import _models

_SHAPE = {"dtype": "float64", "shape": [None, 1]}


def _one_hot_of_no_depth():
    nodes = [
        helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.INT64),
        helper.make_node("OneHot", ["whole", "empty", "two"], ["y"]),
    ]
    return nodes, {"empty": np.zeros(0, np.int64), "two": np.array([0.0, 1.0])}


def _much_memory():
    large = helper.make_tensor("value", TensorProto.DOUBLE, [1], [1.0])
    nodes = [
        helper.make_node("ConstantOfShape", ["sizes"], ["large"], value=large),
        helper.make_node("ReduceSum", ["large"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["x", "sum"], ["y"]),
    ]
    return nodes, {"sizes": np.array([2**32], np.int64)}


def _much_time():
    nodes = [helper.make_node("Mul", ["x", "matrix"], ["p0"])]
    nodes += [
        helper.make_node("MatMul", [f"p{i}", f"p{i}"], [f"p{i + 1}"]) for i in range(64)
    ]
    nodes.append(helper.make_node("ReduceSum", ["p64"], ["y"]))
    return nodes, {"matrix": np.ones((2000, 2000)) / 2000}


GRAPHS = {"ends": _one_hot_of_no_depth, "memory": _much_memory, "time": _much_time}


def write(directory, kind):
    """Write a version whose graph is one of `GRAPHS`."""
    nodes, arrays = GRAPHS[kind]()
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "model",
        [value("x", TensorProto.DOUBLE, ["N", 1])],
        [value("y", TensorProto.DOUBLE, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opsets = [helper.make_opsetid("", 18)]
    signature = {
        "method": "tensorflow/serving/regress",
        "inputs": {"x": {"tensor": "x"}},
        "outputs": {"outputs": {"tensor": "y", **_SHAPE}},
    }
    described = {
        "schema": "skest.export/1",
        "files": {},
        "features": {"x": _SHAPE},
        "signatures": {"serving_default": signature},
    }
    recorded = {
        "signature": "serving_default",
        "inputs": {"x": [1.0]},
        "outputs": {"outputs": [[2.0]]},
    }
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return _models.write(directory, model, described, recorded)
