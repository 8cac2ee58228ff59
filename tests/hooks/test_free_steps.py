# SPDX-License-Identifier: Apache-2.0
"""How many steps each hook leaves free, and that it acts behind them as ever."""

import sys
from types import SimpleNamespace

import pytest
import torch

from skest.adapters.epochs import EpochHook
from skest.hooks import (
    CheckpointListener,
    CheckpointSaverHook,
    EarlyStoppingHook,
    EpochwiseHook,
    Hook,
    LoggingHook,
    NanLossHook,
    StepCounterHook,
    StopAtStepHook,
)


def make_run(step=0, **fields):
    given = {"loss": torch.tensor(0.5), "table": None, "steps_per_epoch": None}
    return SimpleNamespace(
        global_step=step, start_step=0, stop_reason=None, **{**given, **fields}
    )


@pytest.mark.parametrize(
    ("hook", "free"),
    [
        (Hook(), [0, 0, 0]),
        (NanLossHook(), 3 * [sys.maxsize]),
        (StopAtStepHook(last_step=30), [30, 26, 18]),
        (StepCounterHook(every_steps=10), [10, 6, 1]),
        (StepCounterHook(None, every_secs=10), 3 * [sys.maxsize]),
        (LoggingHook(every_steps=10), [1, 1, 1]),  # its first line is of the first step
        (EarlyStoppingHook(lambda run: None, None, run_every_steps=5), [1, 1, 1]),
        (CheckpointSaverHook(), 3 * [sys.maxsize]),
        (CheckpointSaverHook(listeners=[CheckpointListener()]), [0, 0, 0]),
        (EpochwiseHook(), [0, 0, 0]),  # of a stream
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_steps_before_a_hook_has_to_be_called(hook, free):
    hook.begin(make_run())
    hook.before_step(make_run())
    assert [hook.free_steps(make_run(step)) for step in (0, 4, 12)] == free


def test_losses_on_a_device_are_noted_one_by_one():
    on_device = SimpleNamespace(is_cpu=False)
    assert NanLossHook().free_steps(make_run(loss=on_device)) == 0
    assert NanLossHook().free_steps(make_run(loss=None)) == 0


def test_a_checkpoint_is_saved_behind_the_steps_that_were_left_free():
    saved = []
    run = make_run(loss_is_nan=False, should_stop=False)
    run.save_checkpoint = lambda: saved.append(run.global_step)
    hook = CheckpointSaverHook(save_steps=10)
    hook.begin(run)
    assert hook.free_steps(run) == 10
    run.global_step = 10
    hook.after_steps(run, 10 * [torch.tensor(0.5)])
    assert saved == [0, 10]


def test_an_epoch_ends_behind_the_steps_that_were_left_free():
    hook = EpochHook(40, 10, tol=0.0, n_iter_no_change=5)
    run = make_run(steps_per_epoch=4)
    hook.begin(run)
    assert hook.free_steps(run) == 0  # it is told of the first step
    hook.before_step(run)
    hook.after_step(run, torch.tensor(1.0))
    assert hook.free_steps(run) == 3
    hook.after_steps(run, [torch.tensor(x) for x in (2.0, 3.0, 4.0)])
    assert hook.loss_curve == [2.5]
    assert hook.free_steps(run) == 0
