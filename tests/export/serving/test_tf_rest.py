# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.export.serving._clients import COLUMNS, ROWS, YES

PREDICT = "/v1/models/census:predict"
CLASSIFY = "/v1/models/census:classify"
REGRESS = "/v1/models/census:regress"


def yes(pairs):
    return [pair[1] for pair in pairs]


def test_predict_rows(ask):
    status, answer = ask(PREDICT, {"instances": ROWS})
    assert status == 200 and list(answer) == ["predictions"]
    assert yes(answer["predictions"]) == pytest.approx(YES, abs=1e-6)
    assert ask.response.headers["Content-Type"] == "application/json"


def test_predict_rows_of_several_outputs(ask):
    _, answer = ask(PREDICT, {"instances": ROWS, "signature_name": "predict"})
    first, _, last = answer["predictions"]
    assert first["labels"] == ["yes"] and last["labels"] == ["no"]
    assert first["probabilities"][1] == pytest.approx(YES[0], abs=1e-6)


def test_predict_columns(ask):
    _, answer = ask(PREDICT, {"inputs": COLUMNS})
    assert yes(answer["outputs"]) == pytest.approx(YES, abs=1e-6)
    _, answer = ask(PREDICT, {"inputs": COLUMNS, "signature_name": "predict"})
    assert answer["outputs"]["labels"] == [["yes"], ["yes"], ["no"]]
    assert yes(answer["outputs"]["probabilities"]) == pytest.approx(YES, abs=1e-6)


def test_classify(ask):
    _, answer = ask(CLASSIFY, {"examples": ROWS})
    assert [pair[0] for pair in answer["results"][0]] == ["", ""]
    assert [row[1][1] for row in answer["results"]] == pytest.approx(YES, abs=1e-6)
    _, answer = ask(CLASSIFY, {"examples": ROWS, "signature_name": "classification"})
    label, score = answer["results"][0][1]
    assert label == score == pytest.approx(YES[0], abs=1e-6)


def test_regress(ask):
    _, answer = ask(REGRESS, {"examples": ROWS, "signature_name": "regression"})
    assert answer == {"results": ["yes", "yes", "no"]}


def test_examples_are_lists_that_may_be_empty_or_left_out(ask):
    examples = [
        {"city": ["red"], "tags": [1]},
        {"city": []},
        {"city": "blue", "tags": [-2, -2]},
    ]
    _, answer = ask(CLASSIFY, {"examples": examples, "context": {"age": [0.5]}})
    scores = [row[1][1] for row in answer["results"]]
    assert scores == pytest.approx([0.9241418, 0.6224593, 0.0474259], abs=1e-6)


@pytest.mark.parametrize(
    ("path", "document", "message"),
    [
        (PREDICT, {}, "either 'instances' (rows) or 'inputs' (columns)"),
        (PREDICT, {"instances": []}, "'instances' must be a list of one row or more"),
        (PREDICT, {"instances": [ROWS[0], {}]}, "Row 1 lacks the features ['city',"),
        (PREDICT, {"inputs": [1]}, "'inputs' must have JSON objects with ['city',"),
        (PREDICT, {"inputs": {"city": ["x"]}}, "['age', 'tags'] are missing"),
        (PREDICT, {"inputs": {**COLUMNS, "age": [1]}}, "must have as many rows"),
        (PREDICT, {"inputs": {**COLUMNS, "age": ["a", "b", "c"]}}, "takes numbers"),
        (PREDICT, {"inputs": {**COLUMNS, "age": [10**400] * 3}}, "too large"),
        (
            PREDICT,
            {"instances": ROWS, "signature_name": "x"},
            "no signature 'x'; it has",
        ),
        (CLASSIFY, {"examples": [ROWS[0], {}]}, "Example 1 has none of the features"),
        (
            CLASSIFY,
            {"examples": ROWS, "signature_name": "predict"},
            "not for 'classify'",
        ),
        (REGRESS, {"examples": ROWS}, "not for 'regress'; these are: ['regression',"),
        (REGRESS, {"examples": ROWS, "signature_name": "two"}, "not one number"),
    ],
)
def test_wrong_requests(ask, path, document, message):
    status, answer = ask(path, document)
    assert status == 400
    assert message in answer["error"]


def test_the_status_of_a_model(ask):
    _, answer = ask("/v1/models/census")
    fine = {"error_code": "OK", "error_message": ""}
    state = {"version": "1700000001", "state": "AVAILABLE", "status": fine}
    assert answer == {"model_version_status": [state]}
    _, same = ask("/v1/models/census/versions/1700000001")
    assert same == answer


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/v1/models/other", "There is no model 'other'; there are ['census']"),
        ("/v1/models/census/versions/7", "'census' has no version 7."),
        ("/v1/models/census/metadata", "nothing to GET at this path"),
        ("/v1/models", "nothing to GET at this path"),
        ("/v2/models/x/ready", "There is no model 'x'"),
    ],
)
def test_what_is_not_there(ask, path, message):
    status, answer = ask(path)
    assert status == 404
    assert message in answer["error"]


def test_a_model_of_one_feature(tmp_path):
    from skest.export.serving.server import ModelServer
    from tests.export.serving import _clients, _single

    _single.write(tmp_path / "1")
    with ModelServer({"double": tmp_path}, port=0) as server:
        ask = _clients.Client(server)
        path = "/v1/models/double:predict"
        assert ask(path, {"instances": [1, 2.5]})[1] == {"predictions": [[2.0], [5.0]]}
        assert ask(path, {"instances": [{"x": 3}]})[1] == {"predictions": [[6.0]]}
        assert ask(path, {"inputs": [[1], [4]]})[1] == {"outputs": [[2.0], [8.0]]}
        assert ask(path, {"inputs": {"x": [1]}})[1] == {"outputs": [[2.0]]}
        examples = {"examples": [{"x": 1.5}]}
        assert ask("/v1/models/double:regress", examples)[1] == {"results": [3.0]}
        status, answer = ask(path, {"instances": [1e308]})
        assert status == 400 and "no finite number" in answer["error"]
        ask.close()
