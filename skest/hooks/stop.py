# SPDX-License-Identifier: Apache-2.0
"""`StopAtStepHook`."""

from typing import Any

from skest.hooks.base import Hook, Run

__all__ = ["StopAtStepHook"]


class StopAtStepHook(Hook):
    """Stops training after a number of steps, or at a global step.

    Parameters
    ----------
    num_steps : int, default=None
        Steps from the beginning of the run.
    last_step : int, default=None
        Global step to stop at. Exactly one of both must be given.

    Raises
    ------
    ValueError
        If none or both are given.

    Notes
    -----
    As ``tf.estimator.StopAtStepHook``.

    Examples
    --------
    >>> from skest.hooks import StopAtStepHook
    >>> hook = StopAtStepHook(num_steps=100)
    """

    def __init__(
        self, num_steps: int | None = None, last_step: int | None = None
    ) -> None:
        if (num_steps is None) == (last_step is None):
            raise ValueError(
                "Exactly one of 'num_steps' and 'last_step' must be given; "
                f"got {num_steps!r} and {last_step!r}."
            )
        self._num_steps = num_steps
        self._last_step = last_step
        self._stop_at = 0

    def begin(self, run: Run) -> None:
        """Compute the step to stop at."""
        if self._num_steps is not None:
            self._stop_at = run.start_step + self._num_steps
        elif self._last_step is not None:
            self._stop_at = self._last_step
        self._stop_if_reached(run)

    def after_step(self, run: Run, loss: Any) -> None:
        """Ask to stop if the step is reached."""
        self._stop_if_reached(run)

    def _stop_if_reached(self, run: Run) -> None:
        if run.global_step >= self._stop_at:
            run.request_stop(f"reached step {self._stop_at}")
