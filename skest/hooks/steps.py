# SPDX-License-Identifier: Apache-2.0
"""`StopAtStepHook` and `GlobalStepWaiterHook`: when a training ends and begins."""

import logging
import time
from collections.abc import Callable
from typing import Any

from skest.checkpoints.store import DirectoryStore
from skest.core.checks import check_integer, check_positive
from skest.hooks.base import Hook, Run


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


_SECS_BETWEEN_LINES = 30.0

_logger = logging.getLogger("skest")


class GlobalStepWaiterHook(Hook):
    """Waits before the first step until others have trained up to a global step.

    It delays a worker beside others that train the same model. Alone it would wait for
    ever; a request to stop, such as Ctrl-C, ends the waiting.

    Parameters
    ----------
    wait_until_step : int
        The global step to wait for; 0 waits for nothing.
    read_step : callable, default=None
        Returns the present global step. None reads that of the latest checkpoint in
        ``model_dir``.
    poll_secs : float, seconds, default=0.5
        Time between two looks.

    Raises
    ------
    ValueError
        If `wait_until_step` is negative or `poll_secs` not positive; in training, if
        there is neither `read_step` nor a ``model_dir``.
    TypeError
        If one of them is no number.

    Notes
    -----
    As ``tf.estimator.GlobalStepWaiterHook``.

    Examples
    --------
    >>> from skest.hooks import GlobalStepWaiterHook
    >>> hook = GlobalStepWaiterHook(wait_until_step=1000)
    """

    def __init__(
        self,
        wait_until_step: int,
        read_step: Callable[[], int | None] | None = None,
        poll_secs: float = 0.5,
    ) -> None:
        check_integer(wait_until_step, "wait_until_step", "GlobalStepWaiterHook", 0)
        check_positive(poll_secs, "poll_secs", "GlobalStepWaiterHook")
        self._wait_until = wait_until_step
        self._given = read_step
        self._read_step = read_step
        self._poll_secs = poll_secs

    def begin(self, run: Run) -> None:
        """Find out how to see the others."""
        if self._given is not None:
            self._read_step = self._given
        elif run.model_dir is not None:
            self._read_step = DirectoryStore(run.model_dir).latest_step
        else:
            raise ValueError(
                "GlobalStepWaiterHook reads the step of checkpoints in model_dir, but "
                "the Estimator keeps them in memory. Give it a model_dir, or pass "
                "'read_step'."
            )

    def before_step(self, run: Run) -> None:
        """Wait, the first time."""
        read_step, self._read_step = self._read_step, None
        if read_step is None:
            return
        said_at = -_SECS_BETWEEN_LINES
        while not run.should_stop:
            if max(run.global_step, read_step() or 0) >= self._wait_until:
                break
            if time.monotonic() - said_at >= _SECS_BETWEEN_LINES:
                said_at = time.monotonic()
                _logger.info("Waiting for global step %d.", self._wait_until)
            time.sleep(self._poll_secs)
