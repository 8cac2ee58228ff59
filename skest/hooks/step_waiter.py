# SPDX-License-Identifier: Apache-2.0
"""`GlobalStepWaiterHook`."""

import logging
import time
from collections.abc import Callable

from skest._checks import check_integer, check_positive
from skest.checkpoint_store import DirectoryStore
from skest.hooks.base import Hook, Run

__all__ = ["GlobalStepWaiterHook"]

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
