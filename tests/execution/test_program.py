# SPDX-License-Identifier: Apache-2.0
import pytest
import torch

from skest.execution.program import Program
from skest.execution.recording import Recorder
from skest.execution.simplification import Storages


def program_of(function, *inputs):
    with Recorder(inputs) as recorder:
        outputs = [recorder.value_of(function(*inputs))]
    calls = recorder.recording.calls
    return Program(recorder.recording.inputs, calls, outputs, [], Storages(calls))


@pytest.mark.parametrize("has_gradients", [False, True])
def test_autograd_takes_no_part_and_is_as_it_was_afterwards(has_gradients):
    weight = torch.ones(2, 2, requires_grad=True)
    program = program_of(lambda x: torch.linalg.inv(x * weight), torch.eye(2))
    with torch.set_grad_enabled(has_gradients):
        (inverse,) = program(2 * torch.eye(2))
        assert torch.is_grad_enabled() is has_gradients
        assert (weight * 2).requires_grad is has_gradients
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            program(torch.zeros(2, 2))
        assert torch.is_grad_enabled() is has_gradients
        assert (weight * 2).requires_grad is has_gradients
    assert not inverse.requires_grad
    assert torch.equal(inverse, torch.eye(2) / 2)
