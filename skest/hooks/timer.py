# SPDX-License-Identifier: Apache-2.0
"""`Timer`: every so many steps or seconds."""

import time
from collections.abc import Callable

__all__ = ["Timer"]


class Timer:
    """Says when something that happens every n steps or seconds is due.

    Parameters
    ----------
    every_steps : int, default=None
        Steps between two events.
    every_secs : float, seconds, default=None
        Time between two events. Exactly one of both must be given.
    clock : callable, default=time.monotonic
        Gives the time in seconds.

    Attributes
    ----------
    steps_per_sec : float or None
        Speed between the last two events; None before the second, and when training
        went back between them.

    Raises
    ------
    ValueError
        If none or both are given, or the one given is not positive.

    Notes
    -----
    As ``tf.estimator.SecondOrStepTimer``.
    """

    def __init__(
        self,
        every_steps: int | None = None,
        every_secs: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if (every_steps is None) == (every_secs is None):
            raise ValueError(
                "Exactly one of 'every_steps' and 'every_secs' must be given; got "
                f"{every_steps!r} and {every_secs!r}."
            )
        interval = every_secs if every_steps is None else every_steps
        if interval is None or interval <= 0:
            name = "every_secs" if every_steps is None else "every_steps"
            raise ValueError(f"'{name}' must be positive; got {interval}.")
        self._every_steps = every_steps
        self._every_secs = every_secs
        self._clock = clock
        self.steps_per_sec: float | None = None
        self._last_step: int | None = None
        self._last_time = 0.0

    def is_due(self, step: int) -> bool:
        """Tell whether the event is due at `step`.

        It is, the first time asked, and when training went back behind the last event.
        """
        if self._last_step is None or step < self._last_step:
            return True
        if step == self._last_step:
            return False
        if self._every_steps is not None:
            return step - self._last_step >= self._every_steps
        return self._every_secs is not None and (
            self._clock() - self._last_time >= self._every_secs
        )

    def mark(self, step: int) -> tuple[int, float]:
        """Note that the event happens now.

        Returns
        -------
        steps, seconds : int, float
            Passed since the last event; zeros if there was none.
        """
        now = self._clock()
        if self._last_step is None:
            passed = (0, 0.0)
        else:
            passed = (step - self._last_step, now - self._last_time)
        self._last_step, self._last_time = step, now
        steps, seconds = passed
        is_speed = seconds > 0 and steps >= 0
        self.steps_per_sec = steps / seconds if is_speed else None
        return passed
