# SPDX-License-Identifier: Apache-2.0
import pytest

import skest
from tests.export.serving._clients import YES

INFER = "/v2/models/census/infer"
INPUTS = [
    {"name": "city", "shape": [3], "datatype": "BYTES", "data": ["red", None, "blue"]},
    {"name": "age", "shape": [3, 1], "datatype": "FP64", "data": [1, 0.5, -3]},
    {"name": "tags", "shape": [3, 1], "datatype": "INT64", "data": [[1], [0], [0]]},
]


def changed(at, **changes):
    inputs = [dict(tensor) for tensor in INPUTS]
    inputs[at].update(changes)
    return {"inputs": inputs}


def test_infer(ask):
    status, answer = ask(INFER, {"id": "abc", "inputs": INPUTS})
    assert status == 200
    assert answer["model_name"] == "census" and answer["id"] == "abc"
    assert answer["model_version"] == "1700000001"
    (scores,) = answer["outputs"]
    assert (scores["name"], scores["datatype"]) == ("scores", "FP32")
    assert scores["shape"] == [3, 2]
    assert scores["data"][1::2] == pytest.approx(YES, abs=1e-6)


def test_a_signature_and_outputs_are_chosen(ask):
    document = {
        "inputs": INPUTS,
        "parameters": {"signature": "predict"},
        "outputs": [{"name": "labels"}],
    }
    status, answer = ask(INFER, document)
    assert status == 200
    assert answer["outputs"] == [
        {
            "name": "labels",
            "shape": [3, 1],
            "datatype": "BYTES",
            "data": ["yes", "yes", "no"],
        }
    ]
    document["outputs"].insert(0, {"name": "probabilities"})
    _, answer = ask(INFER, document)
    assert [tensor["name"] for tensor in answer["outputs"]] == [
        "probabilities",
        "labels",
    ]
    assert "id" not in answer


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "'inputs' must be a list of JSON objects"),
        ({"inputs": INPUTS[:2]}, "['tags'] are missing"),
        ({"inputs": INPUTS + INPUTS[:1]}, "Input 3 must have as 'name' one of"),
        (changed(0, name="town"), "['city', 'age', 'tags'], each once; got 'town'"),
        (changed(0, shape=3), "'city' must have a 'shape' of whole numbers"),
        (changed(0, shape=[-3]), "'city' must have a 'shape' of whole numbers"),
        (changed(0, shape=[4]), "whole numbers, and as many values in a list 'data'"),
        (changed(0, data=["red", 1.5, "x"]), "'city' takes texts; got 1.5"),
        (changed(1, data=["1", 2, 3]), "'age' takes numbers; got '1'"),
        (changed(2, data=[1, 2, 0.5]), "'tags' takes whole numbers"),
        (changed(1, datatype="FP16"), "must have a 'datatype' of ['BYTES', 'BOOL'"),
        ({"inputs": INPUTS, "outputs": [{"name": "x"}]}, "no outputs ['x']; there are"),
        ({"inputs": INPUTS, "parameters": {"signature": "x"}}, "no signature 'x'"),
        ({"inputs": INPUTS, "parameters": 1}, "'parameters' must be a JSON object"),
    ],
)
def test_wrong_requests(ask, document, message):
    status, answer = ask(INFER, document)
    assert status == 400
    assert message in answer["error"]


def test_no_rows(ask):
    inputs = [{**tensor, "shape": [0, 1], "data": []} for tensor in INPUTS]
    status, answer = ask(INFER, {"inputs": inputs})
    assert status == 200
    assert (answer["outputs"][0]["shape"], answer["outputs"][0]["data"]) == ([0, 2], [])


@pytest.mark.parametrize("shape", [[10**15, 0], [0, 10**15], [2**40], [10**30, 0]])
def test_shapes_that_are_larger_than_their_data(ask, shape):
    status, answer = ask(INFER, changed(1, shape=shape, data=[]))
    assert status in (400, 413), answer


def test_metadata(ask):
    assert ask("/v2") == (
        200,
        {"name": "skest", "version": skest.__version__, "extensions": []},
    )
    _, answer = ask("/v2/models/census")
    assert answer["versions"] == ["1700000001"]
    assert answer["platform"] == "onnxruntime_onnx"
    assert answer["inputs"][1:] == [
        {"name": "age", "datatype": "FP64", "shape": [-1, 1]},
        {"name": "tags", "datatype": "INT64", "shape": [-1, -1]},
    ]
    assert answer["outputs"] == [
        {"name": "scores", "datatype": "FP32", "shape": [-1, 2]}
    ]
    assert "predict" in answer["parameters"]["signatures"]


def test_health(ask):
    assert ask("/v2/health/live") == (200, {"live": True})
    assert ask("/v2/health/ready") == (200, {"ready": True})
    ready = {"name": "census", "ready": True}
    assert ask("/v2/models/census/ready") == (200, ready)
