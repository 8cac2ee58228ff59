# SPDX-License-Identifier: Apache-2.0
"""The requests in docs/serving.md, sent as they stand there."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from skest import DNNClassifier
from skest.export.serving.server import ModelServer
from tests.export.serving._clients import Client

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"
CURL = re.compile(r"# (.*)\ncurl -d '([^']*)' \\\n +localhost:8501(\S+)")

pytestmark = pytest.mark.skipif(
    not PAGE.exists(), reason="tests run outside a checkout"
)
pytest.importorskip("onnxruntime")


def named(nest):
    """Names and strings of a nest, by where they are; numbers are the model's."""
    if isinstance(nest, dict):
        return {name: named(value) for name, value in nest.items()}
    if isinstance(nest, list):
        return [named(value) for value in nest]
    return nest if isinstance(nest, str) else None


def test_the_requests_are_answered_as_the_page_says(tmp_path):
    people = pd.DataFrame(
        {"age": [39, 25, 60, 61] * 9, "education": ["Bachelors", None, "PhD", ""] * 9}
    )
    settings = {"optimizer": "adagrad", "learning_rate": 0.05, "max_iter": 30}
    model = DNNClassifier((4,), **settings, random_state=0)
    model.fit(people, ["<=50K", "<=50K", ">50K", "<=50K"] * 9).export(tmp_path)
    requests = CURL.findall(PAGE.read_text(encoding="utf-8"))
    assert len(requests) == 4
    with ModelServer({"census": tmp_path}, port=0) as server:
        client = Client(server)
        for comment, body, path in requests:
            status, answer = client(path, body=body.encode())
            assert status == 200, answer
            told = re.search(r"\{.*\}", comment)
            if told is None:
                assert answer["model_name"] == "census"
                continue
            expected = json.loads(told[0].replace(", ...", ""))
            if "outputs" in expected:  # of which the page shows some
                kept = expected["outputs"].keys()
                answer = {"outputs": {k: answer["outputs"][k] for k in kept}}
            assert named(answer) == named(expected)
        client.close()
