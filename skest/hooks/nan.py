# SPDX-License-Identifier: Apache-2.0
"""`NanLossHook`."""

import logging
import math
from typing import Any

from skest.exceptions import NanLossDuringTrainingError
from skest.hooks.base import Hook, Run
from skest.hooks.batch_report import report_on_batch

__all__ = ["NanLossHook"]

_logger = logging.getLogger("skest")


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
        From the step whose loss is NaN. One with a number for its loss and NaN for its
        gradients is found when a checkpoint of it should be saved.

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
        """Look at the loss."""
        if not math.isnan(loss.item()):
            return
        message = f"The loss of step {run.global_step} is NaN."
        if run.batch is not None:
            raw, _ = run.raw_batch or (None, None)
            try:
                message += " " + report_on_batch(*run.batch, raw)
            except Exception as error:  # of cells of any kind; the loss matters more
                _logger.debug("There is no report on the batch: %s", error)
        if self._fail:
            raise NanLossDuringTrainingError(message)
        _logger.error(message)
        run.request_stop("the loss is NaN")
