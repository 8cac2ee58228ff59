# SPDX-License-Identifier: Apache-2.0
"""Learning rates as functions of the step, and schedulers for every optimizer."""

import math
from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler

from skest.optimizers import make_optimizer
from skest.optimizers.row_sparse import RowSparse
from skest.optimizers.schedules import (
    FunctionLR,
    make_lr_schedulers,
    missing_function_lrs,
)


def sgd(lr=0.5):
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=lr)


def halving(step):
    return 0.5**step


def run(optimizer, scheduler, n_steps):
    """The rates of the next steps."""
    rates = []
    for _ in range(n_steps):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        scheduler.step()
    return rates


def test_what_is_no_rate_is_refused_with_its_step():
    for rate, error in [
        (-0.1, ValueError),
        (math.nan, ValueError),
        (math.inf, ValueError),
        (None, TypeError),
        ("0.1", TypeError),
        (True, TypeError),
        ([0.1], TypeError),
    ]:
        optimizer = sgd()
        scheduler = FunctionLR(
            optimizer, lambda step, rate=rate: rate if step == 2 else 0.1
        )
        run(optimizer, scheduler, 1)
        with pytest.raises(error, match="'learning_rate' of step 2 .* a finite number"):
            run(optimizer, scheduler, 1)


def test_a_function_and_a_scheduler_for_one_optimizer_are_refused():
    for wrap in [False, True]:
        inner = make_optimizer("adam", [torch.zeros(1, requires_grad=True)], halving)
        scheduler = lr_scheduler.StepLR(inner, 2)
        with pytest.raises(ValueError, match=r"has a StepLR .* as well. Give only one"):
            missing_function_lrs([RowSparse(inner) if wrap else inner], [scheduler])


def test_a_scheduler_that_waits_for_a_metric_is_refused():
    for given in [
        lr_scheduler.ReduceLROnPlateau,
        partial(lr_scheduler.ReduceLROnPlateau, patience=3),
        lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer),
    ]:
        with pytest.raises(
            ValueError, match="cannot be ReduceLROnPlateau.*CosineAnnealing"
        ):
            make_lr_schedulers(given, [sgd()])


def test_what_makes_no_scheduler_is_refused():
    for given, match in [
        (lr_scheduler.StepLR(sgd(), 2), "'lr_scheduler' must .* class.*functools.part"),
        ("cosine", "'lr_scheduler' must be a class .* got 'cosine'"),
        (0.5, "'lr_scheduler' must be a class .* got 0.5"),
        (lambda optimizer: None, "be or return a .*LRScheduler; got None"),
    ]:
        with pytest.raises(TypeError, match=match):
            make_lr_schedulers(given, [sgd()])
