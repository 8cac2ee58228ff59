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
from skest.export.onnx.graph import Graph, to_model
from skest.export.onnx.tracing import Traceable, traced
from skest.heads import BinaryClassHead

pytest.importorskip("onnxscript")
onnxruntime = pytest.importorskip("onnxruntime")


def run(network, x, axes=(0,), function=None):
    """Compute something of a network in ONNX Runtime, for other rows than it was shown."""
    graph = Graph("own")
    sizes = [None if i in axes else n for i, n in enumerate(x.shape)]
    value = graph.input("x", x.numpy().dtype, sizes)
    function = function or (lambda network, x: {"y": network(x)})
    network.eval()
    with torch.no_grad():
        found = traced(function, network, graph, [Traceable(value, x, axes)])
        graph.output("y", *found["y"])
        expected = function(network, x[:1])["y"].numpy()
    model = to_model(graph)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (y,) = session.run(["y"], {"x": x[:1].numpy()})
    np.testing.assert_allclose(y, expected, atol=1e-5)


class Own(nn.Module):
    """What modules of users have, and a bag of ids."""

    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(6, 4, mode="mean", padding_idx=0)
        self.cross = nn.Linear(4, 4)
        self.deep = nn.Sequential(nn.GELU(), nn.BatchNorm1d(4), nn.Dropout(0.5))

    def forward(self, ids):
        x = self.bag(ids)
        return self.deep(x * self.cross(x) + x)


IDS = torch.tensor([[1, 5, 0], [2, 0, 0], [0, 0, 0]])


def test_a_module_and_torch_says_nothing_that_is_not_about_it(monkeypatch):
    shown = []
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: shown.append(record))
    logger.addHandler(handler)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            run(Own(), IDS, (0, 1))
            logger.warning("of use")
    finally:
        logger.removeHandler(handler)
    assert [record.getMessage() for record in shown] == ["of use"]
    assert not [w for w in warned if "LeafSpec" in str(w.message)]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mean", "max", "sum"])
def test_embedding_bags(mode):
    run(nn.EmbeddingBag(6, 3, mode=mode, padding_idx=None), IDS, (0, 1))


@pytest.mark.slow
def test_a_transformer():
    x = torch.randn(3, 1, 4).repeat(1, 5, 1)
    run(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), x)


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Inverse(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 4), Unique())

    def forward(self, x):
        return self.inner(x)


class Unique(nn.Module):
    def forward(self, x):
        return torch.bernoulli(x.sigmoid())


class Offsets(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(6, 2)

    def forward(self, x):
        return self.bag(x.flatten().long(), torch.arange(len(x)))


@pytest.mark.parametrize(
    ("network", "match"),
    [
        (
            Branch(),
            "module Branch cannot be written as ONNX, because torch cannot trace",
        ),
        pytest.param(
            *(Inverse(), "module Inverse at 'inner.1' needs the operator 'Bernoulli'"),
            marks=pytest.mark.slow,
        ),
        (Offsets(), "nn.EmbeddingBag 'bag' takes its ids with offsets"),
        (
            nn.Sequential(nn.EmbeddingBag(4, 2, max_norm=1.0)),
            "nn.EmbeddingBag '0' has a max_norm",
        ),
    ],
)
def test_what_cannot_be_written(network, match):
    x = torch.rand(3, 4)
    with pytest.raises(ExportError, match=match):
        run(network, x)


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (lambda network, x: {"y": "text"}, "result 'y' is a str, which cannot be"),
        (lambda network, x: {"y": x.sum()}, "result 'y' is one number for the batch"),
        pytest.param(
            *(lambda network, x: {"y": x.sum(0)}, "'y' has 4 rows, whatever the batch"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_results(function, match):
    with pytest.raises(ExportError, match=match):
        run(nn.Identity(), torch.rand(3, 4), function=function)


def test_without_onnxscript(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ImportError, match=r"pip install onnxscript"):
        run(nn.Identity(), torch.rand(3, 4))


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


def noisy_model_fn(features, labels, mode):
    network = Noisy()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    return BinaryClassHead().create_estimator_spec(
        features, mode, network, labels, optimizer
    )


def trained():
    config = skest.RunConfig(random_seed=0)
    estimator = skest.Estimator(noisy_model_fn, config=config)
    return estimator.train(lambda: [(NUMBERS, LABELS)] * 5)


def test_training_goes_on_as_if_nothing_was_exported(tmp_path):
    estimator, other = trained(), trained()
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    model = export.load(estimator.export(tmp_path))
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
