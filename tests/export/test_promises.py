# SPDX-License-Identifier: Apache-2.0
"""What exports promise of every module and every estimator."""

import ast
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import skest
from skest import export
from skest.heads import BinaryClassHead

TESTS = Path(__file__).parents[1]
EXPORT = TESTS.parent / "skest" / "export"


def test_no_module_unpickles():
    for path in sorted(EXPORT.rglob("*.py")):
        assert_unpickles_nothing(path)


def assert_unpickles_nothing(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imports = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom))
    names = {
        name
        for node in imports
        for name in (getattr(node, "module", None), *(a.name for a in node.names))
        if name
    }
    roots = {name.partition(".")[0] for name in names}
    assert not roots & {"pickle", "cloudpickle", "joblib", "dill", "shelve", "marshal"}
    calls = {ast.unparse(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    assert not calls & {"torch.load", "np.load", "eval", "exec"}


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
    pytest.importorskip("onnxscript")
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
