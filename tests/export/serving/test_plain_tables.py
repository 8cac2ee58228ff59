# SPDX-License-Identifier: Apache-2.0
"""Models of tables of numbers, asked in every way by the names of their columns."""

import numpy as np
import pandas as pd
import pytest

import skest
from skest import export
from skest.export.serving.server import ModelServer
from tests.export.serving._clients import Client

# One column is called as the input that they are the columns of.
X = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 3)), columns=list("axz"))
Y = np.where(X["a"] > 0, "yes", "no")
ROWS = X[:2].to_dict("records")
COLUMNS = X[:2].to_dict("list")


@pytest.fixture(scope="module")
def models():
    return {
        "classes": skest.DNNClassifier((4,), max_iter=2, random_state=0).fit(X, Y),
        "numbers": skest.DNNRegressor((4,), max_iter=2, random_state=0).fit(X, X["z"]),
    }


@pytest.fixture(scope="module")
def paths(models, tmp_path_factory):
    paths = {name: tmp_path_factory.mktemp(name) for name in models}
    for name, model in models.items():
        model.export(paths[name])
    return paths


@pytest.fixture(scope="module")
def ask(paths):
    with ModelServer(paths, port=0) as server:
        client = Client(server)
        yield client
        client.close()


def test_by_name(models, paths):
    model = export.load(paths["classes"])
    expected = models["classes"].predict(X[:2])
    assert model("predict", **COLUMNS)["labels"].ravel().tolist() == expected.tolist()
    whole = model("predict", x=X[:2].to_numpy())
    assert whole["labels"].ravel().tolist() == expected.tolist()
    with pytest.raises(ValueError, match=r"no features \['b'\]; it takes \['a', 'x', "):
        model("predict", **COLUMNS, b=[1, 2])


def test_examples_may_lack_values(ask):
    path = "/v1/models/numbers:regress"
    _, found = ask(path, {"examples": [{"a": 1, "z": 2}, {"a": 1, "x": None, "z": 2}]})
    assert found["results"][0] == found["results"][1]
    status, found = ask(path, {"examples": [{"b": 1}]})
    assert status == 400 and "none of the features ['a', 'x', 'z']" in found["error"]
