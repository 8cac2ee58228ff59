# SPDX-License-Identifier: Apache-2.0
"""What the tasks of a cluster do in `train_and_evaluate`."""

import logging
import time
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from skest._interrupts import INTERRUPTED
from skest.checkpoint_store import DirectoryStore
from skest.distributed.end_of_training import EndOfTraining
from skest.distributed.strategy_choice import strategy_of
from skest.estimator import Estimator
from skest.exceptions import CorruptCheckpointError
from skest.run_config import RunConfig
from skest.strategies import DataParallel, LocalSGD
from skest.train_eval_evaluation import (
    Evaluation,
    finish_evaluations,
    went_through_input,
)
from skest.train_eval_record import Record

__all__ = ["Role", "evaluate_along", "role_of", "wait_before_training"]

_logger = logging.getLogger("skest")

_PAUSE = 0.5
_SECONDS_BETWEEN_STARTS = 5.0
_SECONDS_TO_NOTE_END = 30.0  # the last checkpoint comes first


class Role(Enum):
    """What a process does."""

    ALONE = "train, evaluate and export"
    TRAIN = "train only"
    EVALUATE = "evaluate and export only"


def role_of(config: RunConfig) -> Role:
    """Return what the process with a configuration does."""
    if config.task_type == "evaluator":
        return Role.EVALUATE
    if not config.cluster_spec or config.task_type == "master":
        return Role.ALONE
    in_step = isinstance(strategy_of(config), DataParallel | LocalSGD)
    return Role.ALONE if in_step and config.is_chief else Role.TRAIN


def wait_before_training(config: RunConfig) -> None:
    """Wait as long as ``max_worker_delay_secs`` says, if this is a worker."""
    if config.task_type == "worker" and not config.is_chief:
        delay = _SECONDS_BETWEEN_STARTS * (config.task_id + 1)
        time.sleep(min(delay, config.max_worker_delay_secs or 0.0))


def evaluate_along(
    estimator: Estimator,
    evaluations: Sequence[Evaluation],
    max_steps: int | None,
    start_delay_secs: float,
) -> None:
    """Evaluate and export checkpoints of a training until it ends, and the last one.

    Parameters
    ----------
    estimator : Estimator
        Its ``model_dir`` is that of the chief.
    evaluations : sequence of Evaluation
        What to do.
    max_steps : int or None
        Global step at which training ends.
    start_delay_secs : float, seconds
        How long to wait before the first evaluation, unless training ends earlier.

    Raises
    ------
    ValueError
        If there is no ``model_dir``.
    """
    if estimator.model_dir is None:
        raise ValueError(
            "An evaluator reads checkpoints from 'model_dir', and 'estimator' has none. "
            "Give all tasks the same model_dir."
        )
    training = _Training(estimator.model_dir, max_steps, start_delay_secs)
    is_done = went_through_input(estimator, max_steps)
    while not is_done and training.is_early():
        time.sleep(_PAUSE)
    while not is_done:
        is_done = training.has_ended()  # asked first: no checkpoint comes behind it
        if not is_done:
            _evaluate_newest(training, evaluations)
            time.sleep(_PAUSE)
    if training.reason != INTERRUPTED:
        finish_evaluations(estimator, [*evaluations], max_steps, training.has_changed)


class _Training:
    """A training that another process leads, as its ``model_dir`` shows it."""

    def __init__(self, model_dir: Path, max_steps: int | None, delay: float) -> None:
        self.store = DirectoryStore(model_dir)
        self._model_dir = model_dir
        self._max_steps = max_steps
        self._end = EndOfTraining(model_dir)
        self._delay = delay
        self._start = time.monotonic()
        self._reached_at: float | None = None

    @property
    def has_changed(self) -> bool:
        """Whether the chief has done anything since this was made."""
        return self._end.has_changed

    @property
    def reason(self) -> str | None:
        """Why it ended, if it has."""
        return self._end.reason()

    def is_early(self) -> bool:
        """Tell whether it is too early for an evaluation."""
        return time.monotonic() - self._start < self._delay and not self.has_ended()

    def has_ended(self) -> bool:
        """Tell whether there will be no more checkpoints."""
        if self._end.reason() is not None:
            return True
        step, before = self.store.latest_step(), self._end.old_reason()
        if step is None:
            return False
        if self._max_steps is not None and step >= self._max_steps:
            if self._reached_at is None:
                self._reached_at = time.monotonic()
            is_late = time.monotonic() - self._reached_at > _SECONDS_TO_NOTE_END
            return before is not None or is_late
        if before is None or before == INTERRUPTED:
            return False
        # Is it the end of this training, which was missed, or of the one before? The chief
        # has time to begin, and an end that was evaluated is of the one before.
        is_known = Record(self._model_dir, step).is_of(self._max_steps)
        return time.monotonic() - self._start >= self._delay and not is_known


def _evaluate_newest(training: _Training, evaluations: Sequence[Evaluation]) -> None:
    """Evaluate the newest checkpoint, as far as that is due and was not done."""
    step, path = training.store.latest_step(), training.store.latest_path()
    if step is None or path is None or training.store.latest_step() != step:
        return  # a newer one has just come
    due = [evaluation for evaluation in evaluations if evaluation.is_due(step)]
    try:
        for evaluation in due:
            evaluation.run(step, is_final=False, path=path)
    except (OSError, ValueError) as error:
        if path.exists() and not isinstance(error, CorruptCheckpointError):
            raise
        _logger.warning(
            "%s is not evaluated: it is deleted or damaged. %s", path, error
        )
