# SPDX-License-Identifier: Apache-2.0
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from skest.execution import GraphStep, Inference
from skest.networks import Dropout
from tests.execution._steps import batches, make_spec, mlp, run_both


class Fussy(nn.Module):
    """Fails where operations are recorded."""

    def forward(self, x):
        if _get_current_dispatch_mode() is not None:
            raise TypeError("no modes here")
        return x


@pytest.mark.parametrize("dropout", [nn.Dropout, Dropout])
def test_a_step_that_cannot_be_recorded_is_taken_eagerly(dropout):
    def make():
        network = mlp(nn.BatchNorm1d(5), dropout(0.5), Fussy())
        if dropout is Dropout:
            network[3].generator = torch.Generator().manual_seed(2)
        return make_spec(network)

    step, reports = run_both(make, batches(5))
    assert step.n_replayed == 0
    assert reports == [
        "Training steps are taken eagerly: it cannot be recorded: TypeError."
    ]


def test_a_step_that_fails_in_any_case_fails():
    step = GraphStep(make_spec(mlp()), eager_steps=1, report=pytest.fail)
    step(torch.ones(2, 3), torch.ones(2, 1))
    step(torch.ones(4, 3), torch.ones(4, 1))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        step(torch.ones(2, 4), torch.ones(2, 1))


class Branches(nn.Module):
    """Chooses a layer by the numbers of the batch."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)

    def forward(self, x):
        return torch.cond(x.sum() > 0, self.a, self.b, (x,))


def test_a_step_with_branches_of_torch_is_taken_eagerly():
    step, reports = run_both(lambda: make_spec(mlp(Branches())), batches(6))
    assert step.n_replayed == 0
    (report,) = reports
    assert "taken eagerly: it cannot be recorded" in report


def test_predictions_with_branches_of_torch_are_computed_eagerly():
    network = mlp(Branches()).eval()
    infer = Inference(lambda data, option: network(data), eager_calls=1)
    with torch.no_grad():
        for x, _ in batches(6):
            assert torch.equal(infer(x, None), network(x))
