# SPDX-License-Identifier: Apache-2.0
"""Hooks: code that runs around the steps of training, evaluation and prediction."""

from skest.hooks.base import Hook, Run
from skest.hooks.checkpoint import CheckpointListener, CheckpointSaverHook
from skest.hooks.epochwise import EpochwiseHook
from skest.hooks.logging import LoggingHook
from skest.hooks.nan import NanLossHook
from skest.hooks.stop import StopAtStepHook
from skest.hooks.timer import Timer

__all__ = [
    "CheckpointListener",
    "CheckpointSaverHook",
    "EpochwiseHook",
    "Hook",
    "LoggingHook",
    "NanLossHook",
    "Run",
    "StopAtStepHook",
    "Timer",
]
