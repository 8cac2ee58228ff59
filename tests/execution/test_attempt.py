# SPDX-License-Identifier: Apache-2.0
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from skest.execution import GraphStep, Inference
from skest.execution.choice import reason_to_stay_eager
from skest.execution.recording import NotRecordableError, Recorder
from skest.networks import Dropout
from tests._control_flow import Branches, Loop
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


@pytest.mark.parametrize("module", [Branches(), Loop()])
def test_compilers_work_beside_a_recorder_and_after_it(module):
    x = torch.ones(4, 5)
    program = torch.export.export(module, (x,), strict=False).module()
    is_inside, is_left = Event(), Event()

    def refuse():
        with pytest.raises(NotRecordableError, match="calls Python"), Recorder([x]):
            is_inside.set()
            assert is_left.wait(60)
            module(x)

    with ThreadPoolExecutor() as threads:
        with Recorder([]):
            refused = threads.submit(refuse)
            assert is_inside.wait(60)
        exported = torch.export.export(module, (x,), strict=False).module()
        is_left.set()
        refused.result()
    for found in (module, exported, torch.export.export(module, (x,)).module()):
        assert torch.equal(found(x), program(x))


@pytest.mark.parametrize("is_in_place", [False, True])
def test_steps_of_compiled_modules_are_taken_eagerly(is_in_place):
    def make():
        layer = nn.Linear(5, 5)
        if is_in_place:
            layer.compile(backend="aot_eager")
            return make_spec(mlp(layer))
        return make_spec(mlp(torch.compile(layer, backend="aot_eager")))

    step, (report,) = run_both(make, batches(6))
    assert step.n_replayed == 0
    assert report.endswith("torch.compile was called for a module.")
    assert reason_to_stay_eager(make()) == "torch.compile was called for a module"
