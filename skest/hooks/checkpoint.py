# SPDX-License-Identifier: Apache-2.0
"""`CheckpointSaverHook` and its listeners."""

import copy
from collections.abc import Iterable
from typing import Any

from skest.core.checks import Several, check_all
from skest.hooks.base import Hook, Run, Timer, check_overrides


class CheckpointListener:
    """Code that runs around every checkpoint; override what is needed.

    As ``tf.estimator.CheckpointSaverListener``, but all methods take the `Run`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Refuse methods that take something else, before training calls them."""
        super().__init_subclass__(**kwargs)
        check_overrides(cls, CheckpointListener)

    def begin(self, run: Run) -> None:
        """Run once, before the first step."""

    def wants_checkpoint(self, run: Run) -> bool:
        """Tell after a step whether a checkpoint is wanted now, out of turn."""
        return False

    def before_save(self, run: Run) -> None:
        """Run before a checkpoint is saved."""

    def after_save(self, run: Run) -> bool | None:
        """Run after a checkpoint was saved; returning True asks to stop training."""

    def end(self, run: Run) -> None:
        """Run once, after the last checkpoint."""


class CheckpointSaverHook(Hook):
    """Saves a checkpoint at the start, at every interval and at the end.

    Parameters
    ----------
    save_steps : int, default=None
        Steps between two checkpoints.
    save_secs : float, seconds, default=None
        Time between two checkpoints. With neither, there is one at the end only.
    listeners : CheckpointListener or iterable of them, default=()
        Called around every save.

    Raises
    ------
    ValueError
        If both intervals are given, or one is not positive.
    TypeError
        If a listener is none.

    Notes
    -----
    As ``tf.estimator.CheckpointSaverHook``, but nothing is saved when the loss is NaN.

    Examples
    --------
    >>> from skest.hooks import CheckpointSaverHook
    >>> hook = CheckpointSaverHook(save_steps=100)
    """

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        listeners: Several[CheckpointListener] = (),
    ) -> None:
        self._intervals = (save_steps, save_secs)
        self._timer = self._new_timer()
        self.listeners = check_all(listeners, CheckpointListener, "listeners")
        self._saved_step: int | None = None
        self._saved_as_finished = False

    def with_listeners(
        self, listeners: Iterable[CheckpointListener]
    ) -> "CheckpointSaverHook":
        """Return such a hook with further listeners."""
        extended = copy.copy(self)
        extended.listeners = [*self.listeners, *listeners]
        return extended

    @property
    def is_for_the_end(self) -> bool:
        """Whether it does nothing between the first step and the last."""
        return self._timer is None and not self.listeners

    def begin(self, run: Run) -> None:
        """Save the state that training starts from, unless it is a checkpoint."""
        self._timer, self._saved_step = self._new_timer(), None
        for listener in self.listeners:
            listener.begin(run)
        if self._timer is not None:
            self._timer.mark(run.global_step)
            self._save(run, is_saved=run.saved_step == run.global_step)

    def after_step(self, run: Run, loss: Any) -> None:
        """Save if it is due, or a listener wants it."""
        if self._timer is not None and self._timer.is_due(run.global_step):
            self._timer.mark(run.global_step)
            self._save(run)
        elif self.listeners and any(
            listener.wants_checkpoint(run) for listener in self.listeners
        ):
            self._save(run)

    def end(self, run: Run) -> None:
        """Save the last state unless that is done."""
        if self._saved_step != run.global_step:
            self._save(run)
        elif not self._saved_as_finished:
            run.save_checkpoint()  # the same variables; only the run is over now
        for listener in self.listeners:
            listener.end(run)

    def _new_timer(self) -> Timer | None:
        steps, secs = self._intervals
        return None if steps is None and secs is None else Timer(steps, secs)

    def _save(self, run: Run, *, is_saved: bool = False) -> None:
        if run.loss_is_nan:
            return  # the last checkpoint before it stays
        for listener in self.listeners:
            listener.before_save(run)
        self._saved_as_finished = run.should_stop
        if not is_saved:
            run.save_checkpoint()
        self._saved_step = run.global_step
        for listener in self.listeners:
            if listener.after_save(run) is True:
                run.request_stop(f"{type(listener).__name__} asked to stop")
