# SPDX-License-Identifier: Apache-2.0
import warnings

import pytest
import torch

from skest import RunConfig
from skest.distributed.ps.worker import Rewind
from skest.engine.loop import move_to_step
from skest.hooks.base import Run
from skest.optimizers.row_sparse import RowSparse
from skest.optimizers.schedules import FunctionLR
from skest.spec import EstimatorSpec
from tests.integration.test_schedules import SCHEDULERS

SCHEDULES = SCHEDULERS | {
    "function": lambda optimizer: FunctionLR(optimizer, lambda step: 0.1 / (1 + step))
}


def run_at(step, make, *, has_rows=False):
    """Return a run that has come to a step, and what takes it back."""
    network = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.5)
    if has_rows:
        optimizer = RowSparse(optimizer)
    spec = EstimatorSpec(
        "train",
        network=network,
        loss=lambda labels, logits, features: logits.mean(),
        optimizer=optimizer,
        lr_scheduler=make(optimizer),
    )
    run = Run(spec, RunConfig())
    rewind = Rewind(run)
    move_to_step(run, step)
    return run, rewind


def options(run):
    (group,) = run.spec.optimizers[0].param_groups
    return {key: value for key, value in group.items() if key != "params"}


@pytest.mark.parametrize("has_rows", [False, True])
@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_are_those_of_the_step(name, has_rows):
    run, rewind = run_at(8, SCHEDULES[name], has_rows=has_rows)
    for step in (5, 3):
        rewind.to(run, step)
        assert run.global_step == step
        assert options(run) == options(run_at(step, SCHEDULES[name])[0])
    move_to_step(run, 7)
    assert options(run) == options(run_at(7, SCHEDULES[name])[0])


def test_nothing_goes_back_behind_the_start():
    run, _ = run_at(4, SCHEDULES["exponential"])
    at_start = options(run)
    rewind = Rewind(run)
    move_to_step(run, 6)
    rewind.to(run, 2)
    assert run.global_step == 2
    assert options(run) == at_start


def test_what_hooks_set_without_a_schedule_is_kept():
    run, _ = run_at(3, SCHEDULES["function"])
    rewind = Rewind(run)
    (group,) = run.spec.optimizers[0].param_groups
    group["momentum"] = 0.7
    rewind.to(run, 1)
    assert (group["momentum"], group["lr"]) == (0.7, 0.05)


def test_steps_of_servers_are_steps():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_at(2, SCHEDULES["exponential"])
