# SPDX-License-Identifier: Apache-2.0
"""An exported network for `benchmarks.serve`, written by hand."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper


def write(directory: Path, numbers: Sequence[str], levels: Mapping[str, int]) -> Path:
    """Write a version whose network has layers of 128 and 64, and two classes."""
    directory.mkdir(parents=True)
    model = _graph(numbers, levels).SerializeToString()
    (directory / "model.onnx").write_bytes(model)
    digest = hashlib.sha256(model).hexdigest()
    features = {name: {"dtype": "float64", "shape": [None, 1]} for name in numbers}
    features |= {name: {"dtype": "string", "shape": [None, 1]} for name in levels}
    scores = {"tensor": "probabilities", "dtype": "float32", "shape": [None, 2]}
    inputs = {name: {"tensor": name} for name in features}
    manifest = {
        "schema": "skest.export/1",
        "files": {"model.onnx": {"size": len(model), "sha256": digest}},
        "features": features,
        "signatures": {
            name: {
                "method": f"tensorflow/serving/{method}",
                "inputs": inputs,
                "outputs": {key: scores},
            }
            for name, method, key in (
                ("serving_default", "classify", "scores"),
                ("predict", "predict", "predictions"),
            )
        },
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def _graph(numbers: Sequence[str], levels: Mapping[str, int]) -> Any:
    rng = np.random.default_rng(0)
    weights: dict[str, Any] = {}
    nodes = []

    def add(
        operator: str, inputs: Sequence[str], output: str, **attributes: Any
    ) -> None:
        nodes.append(
            helper.make_node(operator, inputs, [output], f"make_{output}", **attributes)
        )

    def normal(name: str, *shape: int) -> str:
        weights[name] = rng.normal(0, 0.1, shape).astype(np.float32)
        return name

    add("Concat", numbers, "raw", axis=1)
    add("Cast", ["raw"], "numbers", to=TensorProto.FLOAT)
    add("Sub", ["numbers", normal("mean", len(numbers))], "centred")
    add("Div", ["centred", normal("scale", len(numbers))], "standardised")
    hidden, width = ["standardised"], len(numbers)
    for name, n_levels in levels.items():
        words = [f"{name}_{level}" for level in range(n_levels)]
        dimension = min(16, round(6 * n_levels**0.25))
        add(
            *("LabelEncoder", [name], f"{name}_id"),
            domain="ai.onnx.ml",
            keys_strings=words,
            values_int64s=list(range(1, n_levels + 1)),
            default_int64=0,
        )
        table = normal(f"{name}_table", n_levels + 1, dimension)
        add("Gather", [table, f"{name}_id"], f"{name}_rows")
        add("Flatten", [f"{name}_rows"], f"{name}_vector", axis=1)
        hidden.append(f"{name}_vector")
        width += dimension
    add("Concat", hidden, "layer_0", axis=1)
    for i, units in enumerate((128, 64, 2), start=1):
        parts = [
            f"layer_{i - 1}",
            normal(f"w_{i}", width, units),
            normal(f"b_{i}", units),
        ]
        add("Gemm", parts, f"sum_{i}")
        add("Relu", [f"sum_{i}"], f"layer_{i}")
        width = units
    add("Softmax", ["sum_3"], "probabilities", axis=1)
    del nodes[-2]  # no activation of the logits
    tensors = [
        *((name, TensorProto.DOUBLE) for name in numbers),
        *((name, TensorProto.STRING) for name in levels),
    ]
    graph = helper.make_graph(
        nodes,
        "model",
        [helper.make_tensor_value_info(*tensor, ["N", 1]) for tensor in tensors],
        [helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid(*opset) for opset in (("", 18), ("ai.onnx.ml", 2))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
