# SPDX-License-Identifier: Apache-2.0
"""`StepCounterHook`."""

import logging
from typing import Any

from skest.hooks.base import Hook, Run
from skest.hooks.timer import Timer

__all__ = ["StepCounterHook"]

_logger = logging.getLogger("skest")


class StepCounterHook(Hook):
    """Measures steps per second and logs them (logger "skest", level INFO).

    `LoggingHook`, which every training has by default, logs the speed beside the loss;
    this hook is for code that wants to have the number, and never waits for the device.

    Parameters
    ----------
    every_steps : int, default=100
        Steps between two measurements.
    every_secs : float, seconds, default=None
        Time between two measurements. Exactly one of both must be given, so set
        `every_steps` to None to use it.

    Attributes
    ----------
    steps_per_sec : float or None
        The last measurement.

    Raises
    ------
    ValueError
        If none or both are given, or the one given is not positive.

    Notes
    -----
    As ``tf.estimator.StepCounterHook``.

    Examples
    --------
    >>> from skest.hooks import StepCounterHook
    >>> hook = StepCounterHook(every_steps=10)
    """

    def __init__(
        self, every_steps: int | None = 100, every_secs: float | None = None
    ) -> None:
        self._interval = (every_steps, every_secs)
        self._timer = Timer(*self._interval)
        self.steps_per_sec: float | None = None

    def begin(self, run: Run) -> None:
        """Start the clock."""
        self._timer, self.steps_per_sec = Timer(*self._interval), None
        self._timer.mark(run.global_step)

    def after_step(self, run: Run, loss: Any) -> None:
        """Measure if it is due."""
        if not self._timer.is_due(run.global_step):
            return
        self._timer.mark(run.global_step)
        if self._timer.steps_per_sec is not None:
            self.steps_per_sec = self._timer.steps_per_sec
            _logger.info(
                "step %d: %.1f global_step/sec", run.global_step, self.steps_per_sec
            )
