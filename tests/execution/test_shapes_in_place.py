# SPDX-License-Identifier: Apache-2.0
"""Steps in which tensors change their shape in place."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from skest import RNNClassifier
from skest.execution import GraphStep
from skest.execution.recording import Recorder
from tests.execution._steps import batches, make_spec, mlp, run_both


class Changed(nn.Module):
    """Looks at a square matrix, and changes its shape afterwards."""

    def __init__(self, change, *, has_gradient):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 8, bias=False)
        self.change = change
        self.has_gradient = has_gradient

    def forward(self, x):
        with torch.set_grad_enabled(self.has_gradient):
            square = x @ self.layer.weight.t()
            column = square[:, 0] * 1 if self.has_gradient else square[:, 0]
            self.change(square)
        total = square.sum(dim=-1).flatten()[: len(x)]
        return (self.layer(x) * column[:, None]).sum(1, keepdim=True) + total[:, None]


CHANGES = {
    "transpose_": lambda x: x.transpose_(0, 1),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
    "t_": lambda x: x.t_(),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "squeeze_": lambda x: x.unsqueeze_(0).squeeze_(0).t_(),
    "as_strided_": lambda x: x.as_strided_((8, 8), (1, 8)),
}


@pytest.mark.parametrize("has_gradient", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_shape_that_changes_is_another_look_at_the_tensor(name, has_gradient):
    def make():
        return make_spec(Changed(CHANGES[name], has_gradient=has_gradient))

    step, reports = run_both(make, batches(12))
    assert (step.n_replayed, reports) == (9, [])


def test_memory_that_changes_stays_eager():
    def loss(labels, logits, features):
        squares = (logits - labels).square().detach()
        return squares.resize_(4, 1).mean() + logits.mean()

    step, reports = run_both(lambda: make_spec(mlp(), loss=loss), batches(6))
    assert step.n_replayed == 0
    assert reports == [
        "Training steps are taken eagerly: 'aten::resize_' changes the shape of a "
        "tensor in place."
    ]


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
def test_an_output_of_another_shape_is_an_obstacle():
    x = torch.ones(3)
    with Recorder([x]) as recorder:
        torch.add(x, 1, out=torch.ones(2))
    assert "changes the shape of a tensor in place" in recorder.recording.obstacle
    with Recorder([x]) as recorder:
        torch.add(x, 1, out=torch.empty(0))
    assert recorder.recording.obstacle is None


def test_a_constant_whose_shape_changes_stays_eager():
    reports = []
    network = nn.Linear(3, 1)
    network.register_buffer("matrix", torch.ones(2, 2))
    spec = make_spec(network, loss=lambda y, z, x: (z * network.matrix.t_()[0]).mean())
    step = GraphStep(spec, eager_steps=1, report=reports.append, is_watched=False)
    for batch in batches(4):
        step(*batch)
    assert reports == [
        "Training steps are taken eagerly: 'aten::t_' changes the shape of a tensor in "
        "place."
    ]


def test_rows_of_a_recurrent_layer_of_as_many_steps():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.head = nn.GRU(4, 5, batch_first=True), nn.Linear(5, 1)

        def forward(self, x):
            return self.head(self.layer(x)[0][:, -1])

    generator = torch.Generator().manual_seed(0)
    data = [
        (torch.randn(4, 4, 4, generator=generator), torch.ones(4, 1)) for _ in range(8)
    ]
    step, reports = run_both(lambda: make_spec(Last()), data)
    assert (step.n_replayed, reports) == (5, [])


@pytest.mark.parametrize("cell_type", ["simple_rnn", "gru"])
def test_recurrent_estimators_are_replayed_without_warnings(cell_type, monkeypatch):
    steps = []
    call = GraphStep.__call__

    def noted(step, *batch):
        steps.append(step)
        return call(step, *batch)

    monkeypatch.setattr(GraphStep, "__call__", noted)
    random = np.random.default_rng(0)
    words = [list(random.choice(list("abc"), 4)) for _ in range(64)]
    X, y = pd.DataFrame({"words": words}), random.integers(0, 2, 64)

    def predicted(execution):
        model = RNNClassifier(
            (4,),
            cell_type=cell_type,
            batch_size=16,
            max_iter=12,
            early_stopping=False,
            n_iter_no_change=np.inf,
            random_state=0,
            execution=execution,
        )
        return model.fit(X, y).predict_proba(X)

    expected = predicted("eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = predicted("graph")
    assert steps[-1].n_replayed > 0
    np.testing.assert_array_equal(found, expected)
