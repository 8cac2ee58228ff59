# SPDX-License-Identifier: Apache-2.0
"""Which hooks run around the steps of a training, and in which order."""

import logging

from skest.hooks.base import Hook
from skest.hooks.checkpoint import CheckpointListener, CheckpointSaverHook
from skest.hooks.early_stopping import EarlyStoppingHook
from skest.hooks.logging import LoggingHook
from skest.hooks.nan import NanLossHook
from skest.hooks.stop import StopAtStepHook
from skest.hooks.summary_saver import SummarySaverHook
from skest.run_config import RunConfig
from skest.spec import EstimatorSpec
from skest.summaries.writer import MISSING_TENSORBOARD, tensorboard_is_installed

__all__ = ["stop_hooks", "training_hooks"]

_logger = logging.getLogger("skest")

_OF_CHIEF = (CheckpointSaverHook, EarlyStoppingHook, SummarySaverHook)


def training_hooks(
    spec: EstimatorSpec,
    config: RunConfig,
    hooks: list[Hook],
    listeners: list[CheckpointListener],
    *,
    is_chief: bool = True,
) -> list[Hook]:
    """Return the caller's hooks, those of the model and those of the configuration.

    Processes beside the chief of a cluster neither save nor write summaries.

    What saves comes last, so that nothing is saved that another hook refuses, but for
    early stopping, which reads the evaluation of what was saved. Summaries show what
    other hooks make of the learning rates and gradients of a step.
    """
    others = [*hooks, *spec.training_hooks]
    if is_chief:
        others += spec.training_chief_hooks
    if not any(isinstance(hook, NanLossHook) for hook in others):
        others.append(NanLossHook())
    if config.log_step_count_steps is not None:
        others.append(LoggingHook(every_steps=config.log_step_count_steps))
    if not is_chief:
        return [h for h in others if not isinstance(h, _OF_CHIEF)]
    if config.save_summary_steps and config.model_dir is not None:
        others += _summary_hooks(config.save_summary_steps)
    savers = [hook for hook in others if isinstance(hook, CheckpointSaverHook)]
    if not savers:
        steps, secs = config.save_checkpoints_steps, config.save_checkpoints_secs
        if config.model_dir is None:
            steps = secs = None  # a copy in memory serves only the end of the call
        savers = [CheckpointSaverHook(steps or None, secs or None)]
    summaries = [hook for hook in others if isinstance(hook, SummarySaverHook)]
    late = [hook for hook in others if isinstance(hook, EarlyStoppingHook)]
    behind = SummarySaverHook | CheckpointSaverHook | EarlyStoppingHook
    others = [*(h for h in others if not isinstance(h, behind)), *summaries]
    return [*others, savers[0].with_listeners(listeners), *savers[1:], *late]


def _summary_hooks(steps: int) -> list[Hook]:
    """Return what writes summaries nobody asked for, if that is possible."""
    if tensorboard_is_installed():
        return [SummarySaverHook(save_steps=steps)]
    _logger.info("No summaries are written: %s", MISSING_TENSORBOARD)
    return []


def stop_hooks(steps: int | None, max_steps: int | None) -> list[Hook]:
    """Return what stops after `steps` steps, or at step `max_steps`."""
    if steps is None and max_steps is None:
        return []
    return [StopAtStepHook(num_steps=steps, last_step=max_steps)]
