# SPDX-License-Identifier: Apache-2.0
"""A small exported model, written by hand: texts and numbers in, classes out."""

import hashlib
import json

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES = ["no", "yes"]
WORDS = ["red", "green", "blue"]


def graph():
    """Return p = sigmoid(age + weight of city + the sum over tags of lengths)."""
    nodes = [
        helper.make_node(
            *("LabelEncoder", ["city"], ["id"], "lookup"),
            domain="ai.onnx.ml",
            keys_strings=WORDS,
            values_int64s=[1, 2, 3],
            default_int64=0,
        ),
        helper.make_node("Gather", ["table", "id"], ["city_logit"], "gather"),
        helper.make_node("Cast", ["age"], ["age32"], "cast", to=TensorProto.FLOAT),
        helper.make_node(
            "Cast", ["tags"], ["tags32"], "cast_tags", to=TensorProto.FLOAT
        ),
        helper.make_node("ReduceSum", ["tags32", "axis"], ["tag_logit"], "sum"),
        helper.make_node("Add", ["city_logit", "age32"], ["partial"], "add"),
        helper.make_node("Add", ["partial", "tag_logit"], ["logits"], "add_tags"),
        helper.make_node("Sigmoid", ["logits"], ["p"], "sigmoid"),
        helper.make_node("Sub", ["one", "p"], ["q"], "other"),
        helper.make_node("Concat", ["q", "p"], ["probabilities"], "both", axis=1),
        helper.make_node(
            "ArgMax", ["probabilities"], ["best"], "best", axis=1, keepdims=1
        ),
        helper.make_node("Gather", ["classes", "best"], ["labels"], "name"),
    ]
    initializers = [
        numpy_helper.from_array(np.array([0, 1, -1, 0.5], np.float32), "table"),
        numpy_helper.from_array(np.array(1, np.float32), "one"),
        numpy_helper.from_array(np.array([1], np.int64), "axis"),
        helper.make_tensor(
            "classes", TensorProto.STRING, [2], [c.encode() for c in CLASSES]
        ),
    ]
    inputs = [
        helper.make_tensor_value_info("city", TensorProto.STRING, ["N", 1]),
        helper.make_tensor_value_info("age", TensorProto.DOUBLE, ["N", 1]),
        helper.make_tensor_value_info("tags", TensorProto.INT64, ["N", "W"]),
    ]
    outputs = [
        helper.make_tensor_value_info("labels", TensorProto.STRING, ["N", 1]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 2]),
    ]
    found = helper.make_graph(nodes, "model", inputs, outputs, initializers)
    opsets = [
        helper.make_opsetid(domain, version)
        for domain, version in [("", 18), ("ai.onnx.ml", 2)]
    ]
    return helper.make_model(found, opset_imports=opsets, ir_version=8)


def manifest():
    inputs = {name: {"tensor": name} for name in ("city", "age", "tags")}
    labels = {"tensor": "labels", "dtype": "string", "shape": [None, 1]}
    scores = {"tensor": "probabilities", "dtype": "float32", "shape": [None, 2]}
    return {
        "schema": "skest.export/1",
        "files": {},
        "parity": {"recorded": 2},
        "features": {
            "city": {"dtype": "string", "shape": [None, 1], "missing": ""},
            "age": {"dtype": "float64", "shape": [None, 1], "missing": "nan"},
            "tags": {
                "dtype": "int64",
                "shape": [None, None],
                "missing": 0,
                "delimiter": "|",
            },
        },
        "classes": {"head": CLASSES, "dtype": "string"},
        "signatures": {
            "serving_default": {
                "method": "tensorflow/serving/classify",
                "inputs": inputs,
                "outputs": {"scores": scores},
            },
            "predict": {
                "method": "tensorflow/serving/predict",
                "inputs": inputs,
                "outputs": {"labels": labels, "probabilities": scores},
            },
        },
    }


def warmup():
    return {
        "signature": "predict",
        "inputs": {"city": ["red", None], "age": [0.0, 1.0], "tags": [[1, 2], []]},
        "outputs": {
            "labels": [["yes"], ["yes"]],
            "probabilities": [[0.01798621, 0.98201376], [0.26894143, 0.7310586]],
        },
    }


def write(directory, model=None, described=None, recorded=None, more=()):
    """Write an export whose manifest lists what is in it, with `more` files."""
    directory.mkdir(parents=True, exist_ok=True)
    described = described or manifest()
    data = model if isinstance(model, bytes) else (model or graph()).SerializeToString()
    (directory / "model.onnx").write_bytes(data)
    (directory / "warmup.json").write_text(json.dumps(recorded or warmup()))
    for name, content in dict(more).items():
        (directory / name).write_bytes(content)
    for path in directory.iterdir():
        if path.is_file() and path.name != "manifest.json":
            described["files"][path.name] = entry(path.read_bytes())
    (directory / "manifest.json").write_text(json.dumps(described))
    return directory


def entry(data):
    return {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def load_graph(directory):
    return onnx.load(directory / "model.onnx")
