# SPDX-License-Identifier: Apache-2.0
"""Modules of the user's, traced by torch and grafted onto a graph."""

import logging
import sys
import warnings

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import skest
from skest import export
from skest.exceptions import ExportError
from skest.heads import BinaryClassHead

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
NUMBERS = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
LABELS = (NUMBERS[:, 0] > 0).astype(np.int64)


class Noisy(nn.Module):
    """What predicts in another way than it trains, and has to be traced."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(8, 1)

    def forward(self, x):
        x = self.norm(self.first(x))
        return self.out(self.drop(x * x.sigmoid()))


class Branch(Noisy):
    def forward(self, x):
        return super().forward(x if x.sum() > 0 else -x)


class Drawing(Noisy):
    def forward(self, x):
        return super().forward(torch.bernoulli(x.sigmoid()))


class Bag(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(6, 1)

    def forward(self, x):
        return self.bag(x.long().clamp(0, 5))


def trained(network=Noisy, predictions=None):
    def model_fn(features, labels, mode):
        own = network()
        optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
        if predictions is None:
            return BinaryClassHead().create_estimator_spec(
                features, mode, own, labels, optimizer
            )
        return skest.EstimatorSpec(
            mode,
            network=own,
            loss=lambda y, z, x: (z**2).mean(),
            predictions=predictions,
            optimizer=optimizer,
        )

    config = skest.RunConfig(random_seed=0)
    estimator = skest.Estimator(model_fn, config=config)
    return estimator.train(lambda: [(NUMBERS, LABELS)] * 5)


def test_training_goes_on_as_if_nothing_was_exported(tmp_path, caplog):
    estimator, other = trained(), trained()
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        model = export.load(estimator.export(tmp_path))
    # torch says nothing that is not about the network.
    assert not [w for w in warned if "LeafSpec" in str(w.message)]
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    (expected,) = estimator.predict(lambda: [NUMBERS], yield_single_examples=False)
    found = model("predict", x=NUMBERS)["probabilities"]
    np.testing.assert_allclose(found, expected["probabilities"], atol=1e-5)
    graph = onnx.load(model.path / "model.onnx").graph
    names = [node.name for node in graph.node]
    assert all(names) and len(set(names)) == len(names)
    assert all(v.type.HasField("tensor_type") for v in (*graph.input, *graph.output))
    for one in (estimator, other):
        one.train(lambda: [(NUMBERS, LABELS)] * 5)
    variables = other.checkpoint.variables
    for name, value in estimator.checkpoint.variables.items():
        assert torch.equal(value, variables[name]), name


@pytest.mark.parametrize(
    ("network", "match"),
    [
        (Branch, "module Branch cannot be written as ONNX, because torch cannot trace"),
        pytest.param(
            *(Drawing, "module Drawing needs the operator 'Bernoulli'"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *(Bag, "module Bag needs the operator .* in place of an nn.EmbeddingBag"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_cannot_be_written(tmp_path, network, match):
    with pytest.raises(ExportError, match=match):
        trained(network).export(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("predictions", "match"),
    [
        (lambda z: {"y": z.sum()}, "result 'y' cannot be exported: it is tensor"),
        pytest.param(
            lambda z: {"y": z.sum(0)},
            "'y' has 1 rows, whatever the batch",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_results(tmp_path, predictions, match):
    with pytest.raises(ExportError, match=match):
        trained(predictions=predictions).export(tmp_path)


def test_without_onnxscript(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install onnxscript"):
        trained().export(tmp_path)
