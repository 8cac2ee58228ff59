# SPDX-License-Identifier: Apache-2.0
import pytest

from skest.export.serving.requests import Limits
from skest.export.serving.server import ModelServer
from tests.export import _models
from tests.export.serving._clients import Client


@pytest.fixture(scope="package", autouse=True)
def without_trials():
    """Each takes a process: tests/export/test_trial.py has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("skest.export.runtime.try_out", lambda *_: None)
        yield


@pytest.fixture(scope="package")
def described():
    """A manifest with a signature for every method."""
    found = _models.manifest()
    inputs = found["signatures"]["predict"]["inputs"]
    outputs = found["signatures"]["predict"]["outputs"]
    found["signatures"]["classification"] = {
        "method": "tensorflow/serving/classify",
        "inputs": inputs,
        "outputs": {
            "classes": {
                "tensor": "probabilities",
                "dtype": "float32",
                "shape": [None, 2],
            },
            "scores": outputs["probabilities"],
        },
    }
    found["signatures"]["regression"] = {
        "method": "tensorflow/serving/regress",
        "inputs": inputs,
        "outputs": {"outputs": outputs["labels"]},
    }
    found["signatures"]["two"] = {
        "method": "tensorflow/serving/regress",
        "inputs": inputs,
        "outputs": {"outputs": outputs["probabilities"]},
    }
    return found


@pytest.fixture(scope="package")
def server(tmp_path_factory, described):
    base = tmp_path_factory.mktemp("served")
    _models.write(base / "1700000001", described={**described, "files": {}})
    limits = Limits(max_request_bytes=2**20, max_rows=1000, max_cells=10_000)
    with ModelServer({"census": base}, port=0, limits=limits) as server:
        yield server


@pytest.fixture
def ask(server):
    client = Client(server)
    yield client
    client.close()
