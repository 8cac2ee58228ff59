# SPDX-License-Identifier: Apache-2.0
"""What a fit says of itself that ended before it had learned all: warnings."""

from typing import Any

from sklearn.exceptions import ConvergenceWarning

from skest._interrupts import INTERRUPTED
from skest._warnings import warn
from skest.estimator import Estimator
from skest.training import INPUT_ENDED

__all__ = ["warn_if_interrupted", "warn_unless_converged"]


def warn_if_interrupted(owner: object, estimator: Estimator) -> None:
    """Warn if a training has just been interrupted; its owner is fitted nevertheless.

    Parameters
    ----------
    owner : SkestEstimator
        Whose training it was.
    estimator : Estimator
        What was trained, as the training left it.
    """
    if estimator.stop_reason != INTERRUPTED:
        return
    checkpoint = estimator.checkpoint
    n_steps = 0 if checkpoint is None else checkpoint.global_step
    warn(
        f"The training of this {type(owner).__name__} was {INTERRUPTED} after {n_steps} "
        "steps; it keeps what it has learned. A search or a cross-validation goes on with "
        "its next fit and counts this one: press Ctrl-C until it raises KeyboardInterrupt "
        "to end that, too."
    )


def warn_unless_converged(owner: Any, estimator: Estimator, n_epochs: int) -> None:
    """Warn if the last epoch came before those without improvement were too many.

    A schedule of the learning rate is meant to last as long as it does.

    Parameters
    ----------
    owner : SkestEstimator
        Whose training it was.
    estimator : Estimator
        What was trained, as the training left it.
    n_epochs : int
        After how many epochs it had to end.
    """
    if estimator.stop_reason != INPUT_ENDED or _has_schedule(owner):
        return
    warn(
        f"The training of this {type(owner).__name__} has not converged in "
        f"max_iter={n_epochs} epochs. Increase 'max_iter' or 'tol', or let all of them "
        "pass without a warning: n_iter_no_change=numpy.inf.",
        ConvergenceWarning,
    )


def _has_schedule(owner: Any) -> bool:
    settings = owner.get_params(deep=False)
    rates = (value for name, value in settings.items() if "learning_rate" in name)
    return settings.get("lr_scheduler") is not None or any(map(callable, rates))
