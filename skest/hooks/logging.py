# SPDX-License-Identifier: Apache-2.0
"""`LoggingHook`."""

import logging
from typing import Any

from skest.hooks.base import Hook, Run
from skest.hooks.timer import Timer

__all__ = ["LoggingHook"]

_logger = logging.getLogger("skest")


class LoggingHook(Hook):
    """Logs the loss and the speed of training (logger "skest", level INFO).

    Parameters
    ----------
    every_steps : int, default=None
        Steps between two lines.
    every_secs : float, seconds, default=None
        Time between two lines. Exactly one of both must be given.

    Raises
    ------
    ValueError
        If none or both are given, or the one given is not positive.

    Examples
    --------
    >>> from skest.hooks import LoggingHook
    >>> hook = LoggingHook(every_steps=100)
    """

    def __init__(
        self, every_steps: int | None = None, every_secs: float | None = None
    ) -> None:
        self._interval = (every_steps, every_secs)
        self._timer = Timer(*self._interval)

    def begin(self, run: Run) -> None:
        """Start the clock."""
        self._timer = Timer(*self._interval)

    def after_step(self, run: Run, loss: Any) -> None:
        """Log a line if it is due."""
        if not self._timer.is_due(run.global_step):
            return
        self._timer.mark(run.global_step)
        # Reading the loss waits for the device, so it is read only for a line.
        if _logger.isEnabledFor(logging.INFO):
            rate = self._timer.steps_per_sec
            speed = "" if rate is None else f" ({rate:.1f} steps/s)"
            _logger.info("step %d: loss = %.6g%s", run.global_step, loss.item(), speed)

    def end(self, run: Run) -> None:
        """Log the loss of the last step."""
        if run.loss is not None and _logger.isEnabledFor(logging.INFO):
            _logger.info("step %d: final loss = %.6g", run.global_step, run.loss.item())
