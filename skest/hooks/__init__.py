# SPDX-License-Identifier: Apache-2.0
"""Hooks: code that runs around the steps of training, evaluation and prediction."""

from typing import TYPE_CHECKING, Any

from skest._former_names import no_attribute
from skest.hooks.base import Hook, Run
from skest.hooks.checkpoint import CheckpointListener, CheckpointSaverHook
from skest.hooks.early_stopping import EarlyStoppingHook, make_early_stopping_hook
from skest.hooks.epochwise import EpochwiseHook
from skest.hooks.final_ops import FinalOpsHook
from skest.hooks.in_memory_evaluator import InMemoryEvaluatorHook
from skest.hooks.logging import LoggingHook
from skest.hooks.lr_schedule import LRScheduleHook
from skest.hooks.metric_stopping import (
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from skest.hooks.nan import NanLossHook
from skest.hooks.profiler import ProfilerHook
from skest.hooks.step_counter import StepCounterHook
from skest.hooks.step_waiter import GlobalStepWaiterHook
from skest.hooks.stop import StopAtStepHook
from skest.hooks.summary_saver import SummarySaverHook
from skest.hooks.timer import Timer

__all__ = [
    "CheckpointListener",
    "CheckpointSaverHook",
    "EarlyStoppingHook",
    "EpochwiseHook",
    "FinalOpsHook",
    "GlobalStepWaiterHook",
    "Hook",
    "InMemoryEvaluatorHook",
    "LRScheduleHook",
    "LoggingHook",
    "NanLossHook",
    "ProfilerHook",
    "Run",
    "StepCounterHook",
    "StopAtStepHook",
    "SummarySaverHook",
    "Timer",
    "make_early_stopping_hook",
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]


if not TYPE_CHECKING:  # which would take any name for one that is there

    def __getattr__(name: str) -> Any:
        raise no_attribute(__name__, name)
