# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch

import skest
from skest.exceptions import ExportError
from skest.heads import RegressionHead

CITY = np.array(["Rome", "Oslo"] * 10, object)
CLASSES = np.array(["a\ud800", "b"] * 10, object)


@pytest.mark.parametrize("format", ["onnx", "pt2"])
@pytest.mark.parametrize(
    ("X", "y"),
    [({"city": CITY}, CLASSES), ({"a\ud800": CITY}, [0, 1] * 10)],
    ids=["class", "column"],
)
def test_names_that_are_no_unicode_are_shown(tmp_path, X, y, format):
    pytest.importorskip("onnx")
    model = skest.LinearClassifier(max_iter=1).fit(X, y)
    with pytest.raises(ExportError, match=r"text '.*a\\ud800.*', which is not valid U"):
        model.export(tmp_path, format=format)
    assert list(tmp_path.iterdir()) == []


def model_fn(features, labels, mode, params):
    network = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return RegressionHead().create_estimator_spec(
        features, mode, network, labels, optimizer
    )


def test_hyperparameters_that_are_no_unicode_are_not_described(tmp_path):
    pytest.importorskip("onnxscript")
    X = np.zeros((4, 2), np.float32)
    estimator = skest.Estimator(model_fn, params={"note": "\ud800"})
    estimator.train(lambda: [(X, X[:, :1])]).export(tmp_path)
    assert skest.export.load(tmp_path).predict(X).shape == (4,)
    with pytest.raises(ValueError, match=r"text '.*\\ud800.*', which is not valid U"):
        skest.export.to_estimator(tmp_path, model_fn=model_fn)
