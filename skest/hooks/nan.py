# SPDX-License-Identifier: Apache-2.0
"""`NanLossHook`."""

import logging
import math
from typing import Any

from skest.exceptions import NanLossDuringTrainingError
from skest.hooks.base import Hook, Run, nan_steps
from skest.hooks.batch_report import report_on_batch

__all__ = ["NanLossHook"]

_logger = logging.getLogger("skest")

_LOSSES_AT_ONCE = 10  # on devices that are to be waited for
_REASON = "the loss is NaN"


class NanLossHook(Hook):
    """Stops training when the loss is NaN, and tells what in the batch may be the cause.

    Parameters
    ----------
    fail_on_nan_loss : bool, default=True
        Raise an error; otherwise log it and stop. The state after it is not saved either
        way.

    Raises
    ------
    NanLossDuringTrainingError
        From the step whose loss is NaN, or on a GPU up to nine steps later: to look at a
        loss waits for the device, so ten are looked at together, and the others when
        something should be saved or training ends. The step that is named is the first.
        One with a number for its loss and NaN for its gradients is found when a
        checkpoint of it should be saved.

    Notes
    -----
    As ``tf.estimator.NanTensorHook``: an infinite loss passes.

    Examples
    --------
    >>> from skest.hooks import NanLossHook
    >>> hook = NanLossHook(fail_on_nan_loss=False)
    """

    def __init__(self, fail_on_nan_loss: bool = True) -> None:
        self._fail = fail_on_nan_loss

    def after_step(self, run: Run, loss: Any) -> None:
        """Look at the loss, or note it to look at several together."""
        if loss.is_cpu:
            if math.isnan(loss.item()):
                self._tell(run, run.global_step, run.batch, run.n_taken)
            return
        run.unread_losses[run.global_step] = (loss, run.batch, run.n_taken)
        if len(run.unread_losses) >= _LOSSES_AT_ONCE:
            self._look(run)

    def end(self, run: Run) -> None:
        """Look at what is left."""
        if run.unread_losses and run.stop_reason != _REASON:
            self._look(run)

    def _look(self, run: Run) -> None:
        found = nan_steps(run.unread_losses)
        if not found:
            run.unread_losses.clear()
            return
        _, batch, n_taken = run.unread_losses[found[0]]
        self._tell(run, found[0], batch, n_taken)

    def _tell(
        self, run: Run, step: int, batch: tuple[Any, Any] | None, n_taken: int
    ) -> None:
        message = f"The loss of step {step} is NaN."
        if batch is not None:
            raw, _ = run.raw_batch_of(n_taken) or (None, None)
            try:
                message += " " + report_on_batch(*batch, raw)
            except Exception as error:  # of cells of any kind; the loss matters more
                _logger.debug("There is no report on the batch: %s", error)
        if self._fail:
            raise NanLossDuringTrainingError(message)
        _logger.error(message)
        run.request_stop(_REASON)
