# SPDX-License-Identifier: Apache-2.0
"""What a fit that Ctrl-C ended says of itself."""

from skest._interrupts import INTERRUPTED
from skest._warnings import warn
from skest.estimator import Estimator

__all__ = ["warn_if_interrupted"]


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
