# SPDX-License-Identifier: Apache-2.0
"""Hooks: code that runs around the steps of training, evaluation and prediction.

The loop calls every hook with one `Run`, which tells the step and the model and takes
wishes: to stop, to save. What TensorBoard shows is written by hooks, through
`summaries`.
"""

from skest.hooks.base import EpochwiseHook, Hook, Run, Timer
from skest.hooks.early_stopping import (
    EarlyStoppingHook,
    make_early_stopping_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from skest.hooks.evaluation import FinalOpsHook, InMemoryEvaluatorHook
from skest.hooks.logging import (
    LoggingHook,
    ProfilerHook,
    ProgressBarHook,
    StepCounterHook,
)
from skest.hooks.nan import NanLossHook
from skest.hooks.steps import (
    CheckpointListener,
    CheckpointSaverHook,
    GlobalStepWaiterHook,
    LRScheduleHook,
    StopAtStepHook,
)
from skest.hooks.summary_saver import SummarySaverHook

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
    "ProgressBarHook",
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
