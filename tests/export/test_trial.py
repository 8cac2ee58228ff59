# SPDX-License-Identifier: Apache-2.0
import sys

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("onnxruntime")
from skest import export
from skest.exceptions import ArtifactError
from skest.export import runtime
from tests.export import _models
from tests.export.serving import _single
from tests.export.serving._clients import Client


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
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["sum", "matrix"], ["p0"]),
    ]
    nodes += [
        helper.make_node("MatMul", [f"p{i}", f"p{i}"], [f"p{i + 1}"]) for i in range(64)
    ]
    nodes.append(helper.make_node("ReduceSum", ["p64"], ["y"]))
    return nodes, {"matrix": np.ones((2000, 2000)) / 2000}


HOSTILE = {"ends": _one_hot_of_no_depth, "memory": _much_memory, "time": _much_time}


def write_hostile(directory, kind):
    """Write a version of allowed operators that ends the process, or holds it for long."""
    nodes, arrays = HOSTILE[kind]()
    return _single.write(directory, graph=_single.graph_of(nodes, arrays, None))


def test_a_version_that_passes_runs_here(tmp_path):
    model = export.load(_single.write(tmp_path / "1"), trial=True)
    assert model(x=[3.0])["outputs"].tolist() == [[6.0]]
    recorded = _models.warmup()
    recorded["outputs"]["labels"] = [["no"], ["yes"]]
    version = _models.write(tmp_path / "2", recorded=recorded)
    with pytest.raises(ArtifactError, match="^The model gives other 'labels' here"):
        export.load(version, trial=True)


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("ends", "ends the process with the status -"),
        ("memory", "takes more than [0-9]+ bytes of memory; if you trust it"),
        pytest.param(
            "time", "takes more than 1 seconds; if you trust", marks=pytest.mark.slow
        ),
    ],
)
def test_what_takes_too_much_is_refused(tmp_path, monkeypatch, kind, what):
    monkeypatch.setattr(runtime, "SECONDS", 1)
    monkeypatch.setattr(runtime, "MEMORY", 2**30)
    with pytest.raises(ArtifactError, match=f"a process of its own, it {what}"):
        export.load(write_hostile(tmp_path / "1", kind), trial=True)


def test_a_server_outlives_a_version_that_would_end_it(tmp_path, caplog):
    _single.write(tmp_path / "1")
    write_hostile(tmp_path / "2", "ends")
    with export.ModelServer({"double": tmp_path}, port=0) as server:
        ask = Client(server)
        answer = ask("/v1/models/double:predict", {"instances": [1]})
        assert answer == (200, {"predictions": [[2.0]]})
        _, found = ask("/v1/models/double")
        ask.close()
    states = {s["version"]: s["state"] for s in found["model_version_status"]}
    assert states == {"1": "AVAILABLE", "2": "END"}
    assert "tried in a process of its own, it ends the process" in caplog.text
