# SPDX-License-Identifier: Apache-2.0
"""Models whose ids the client computes: of the server, clients send raw values to both."""

import numpy as np
import pandas as pd
import pytest

import skest
from skest import feature_columns as fc
from skest.export.serving.server import ModelServer
from tests.export.serving._clients import Client

pytest.importorskip("onnxruntime")

ROWS = [
    {"age": 0.1, "city": "Łódź", "level": 3, "tags": "a|b"},
    {"age": 0.7, "city": None, "level": 0, "tags": None},
    {"age": 0.2, "city": "never seen \U0001d518", "level": 6, "tags": "a||zz"},
    {"age": 0.0, "city": "", "level": -1, "tags": ""},
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}
DATATYPES = {"age": "FP64", "city": "BYTES", "level": "INT64", "tags": "BYTES"}


@pytest.fixture(scope="module")
def model():
    X = pd.DataFrame(
        {
            "age": np.linspace(0, 1, 40),
            "city": ["Rome", "Łódź", None, ""] * 10,
            "level": np.arange(40) % 7,
            "tags": ["a|b", "b", None, "c|a|a"] * 10,
        }
    )
    hashed = fc.categorical_column_with_hash_bucket
    columns = [
        fc.numeric_column("age"),
        fc.embedding_column(hashed("city", 20), 3),
        fc.indicator_column(hashed("level", 5)),
        fc.indicator_column(hashed("tags", 11, delimiter="|")),
        fc.indicator_column(fc.crossed_column(["city", "level"], 50)),
    ]
    model = skest.DNNClassifier(
        (8,), feature_columns=columns, max_iter=3, random_state=0
    )
    return model.fit(X, np.where(X["level"] % 2, "odd", "even"))


@pytest.fixture(scope="module")
def client(model, tmp_path_factory):
    """A client of a server that has the model twice, by where hashes are computed."""
    base = tmp_path_factory.mktemp("models")
    paths = {name: base / name for name in ("client", "graph")}
    for name, path in paths.items():
        model.export(path, hashing=name)
    with ModelServer(paths, port=0) as server:
        client = Client(server)
        yield client
        client.close()


@pytest.fixture(scope="module")
def expected(model):
    return model.predict_proba(pd.DataFrame(COLUMNS))


def tensors():
    return [
        {"name": name, "datatype": DATATYPES[name], "shape": [len(ROWS), 1], "data": v}
        for name, v in COLUMNS.items()
    ]


def probabilities(client, name, form):
    """Ask one of the models in one of the ways there are."""
    if form == "examples":
        status, answer = client(f"/v1/models/{name}:classify", {"examples": ROWS})
        assert status == 200, answer
        assert {label for row in answer["results"] for label, _ in row} == {
            "even",
            "odd",
        }
        return [[score for _, score in row] for row in answer["results"]]
    if form == "tensors":
        parameters = {"signature": "predict"}
        document = {"inputs": tensors(), "parameters": parameters}
        status, answer = client(f"/v2/models/{name}/infer", document)
        assert status == 200, answer
        (found,) = (o for o in answer["outputs"] if o["name"] == "probabilities")
        return np.reshape(found["data"], found["shape"])
    given = {"instances": ROWS} if form == "rows" else {"inputs": COLUMNS}
    path = f"/v1/models/{name}:predict"
    status, answer = client(path, {"signature_name": "predict", **given})
    assert status == 200, answer
    if form == "rows":
        return [row["probabilities"] for row in answer["predictions"]]
    return answer["outputs"]["probabilities"]


@pytest.mark.parametrize("form", ["rows", "columns", "examples", "tensors"])
def test_answers_are_those_of_the_estimator(client, expected, form):
    for name in ("client", "graph"):
        found = probabilities(client, name, form)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_what_the_server_says_of_the_inputs(client):
    for name in ("client", "graph"):
        _, answer = client(f"/v2/models/{name}")
        told = {tensor["name"]: tensor["datatype"] for tensor in answer["inputs"]}
        assert told == DATATYPES | {"age": "FP32"}
        _, answer = client(f"/v1/models/{name}/metadata")
        signatures = answer["metadata"]["signature_def"]["signature_def"]
        inputs = signatures["serving_default"]["inputs"]
        assert set(inputs) == set(ROWS[0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"city": 1.5}, "'city' takes texts; got 1.5"),
        ({"level": "three"}, "'level' takes numbers; got 'three'"),
        ({"level": 0.5}, "'level' takes whole numbers of dtype int64; got 0.5"),
        ({"level": 2**63}, "got 9223372036854775808"),
        ({"tags": [{"a": "b"}]}, "'tags' takes texts"),
    ],
)
def test_wrong_values_of_raw_columns_are_named(client, changes, message):
    for name in ("client", "graph"):
        rows = {"instances": [{**ROWS[0], **changes}]}
        status, answer = client(f"/v1/models/{name}:predict", rows)
        assert status == 400, (name, answer)
        assert message in answer["error"]


def test_missing_columns_are_named(client):
    for name in ("client", "graph"):
        path = f"/v1/models/{name}:predict"
        status, answer = client(path, {"instances": [{"age": 1.0, "level": 1}]})
        assert status == 400
        assert "'city'" in answer["error"] and "'tags'" in answer["error"]
        assert "_ids_" not in answer["error"]
