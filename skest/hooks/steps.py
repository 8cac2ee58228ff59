# SPDX-License-Identifier: Apache-2.0
"""Hooks that act at certain steps: save, stop, wait, set the rate."""

import copy
import logging
import time
from collections.abc import Callable, Iterable
from typing import Any

from skest.checkpoints.store import DirectoryStore
from skest.core.checks import (
    Several,
    check_all,
    check_exactly_one,
    check_integer,
    check_positive,
)
from skest.hooks.base import Hook, Run, Timer, check_overrides
from skest.optimizers.schedules import FunctionLR, RateFunction, is_scheduler_of

_logger = logging.getLogger("skest")

_SECS_BETWEEN_LINES = 30.0


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
        has_interval = save_steps is not None or save_secs is not None
        self._timer = Timer(save_steps, save_secs) if has_interval else None
        self.listeners = check_all(listeners, CheckpointListener, "listeners")
        self._saved_step: int | None = None
        self._saved_as_finished = False

    def with_listeners(
        self, listeners: Iterable[CheckpointListener]
    ) -> "CheckpointSaverHook":
        """Return such a hook with further listeners."""
        # The caller's hook stays as it is, for it may serve other calls of train.
        extended = copy.copy(self)
        extended.listeners = [*self.listeners, *listeners]
        return extended

    def begin(self, run: Run) -> None:
        """Save the state that training starts from, unless it is a checkpoint."""
        self._saved_step = None
        for listener in self.listeners:
            listener.begin(run)
        if self._timer is not None:
            self._timer = self._timer._restarted()
            self._timer.mark(run.global_step)
            # tf.estimator saves step 0, too: an evaluator has something to begin with.
            self._save(run, is_saved=run.saved_step == run.global_step)

    def after_step(self, run: Run, loss: Any) -> None:
        """Save if it is due, or a listener wants it."""
        if self._timer is not None and self._timer.is_due(run.global_step):
            self._timer.mark(run.global_step)
            self._save(run)
        elif any(listener.wants_checkpoint(run) for listener in self.listeners):
            self._save(run)

    def end(self, run: Run) -> None:
        """Save the last state unless that is done."""
        # After an error, `recorded` of engine/training.py saves; nothing does in
        # tf.estimator.
        if self._saved_step != run.global_step:
            self._save(run)
        # Else the next call would go on in the middle of an input that came to its end.
        elif not self._saved_as_finished:
            run.save_checkpoint()  # the same variables; only the run is over now
        for listener in self.listeners:
            listener.end(run)

    def _save(self, run: Run, *, is_saved: bool = False) -> None:
        # Here too, where `NanLossHook` is not used, or has not looked yet.
        if run.loss_is_nan:
            return  # the last checkpoint before it stays
        for listener in self.listeners:
            # Also if it is saved already: tf.estimator calls listeners at the start.
            listener.before_save(run)
        # A checkpoint of a training that is over says so: the next call starts its
        # input anew.
        self._saved_as_finished = run.should_stop
        if not is_saved:
            run.save_checkpoint()
        self._saved_step = run.global_step
        for listener in self.listeners:
            # As `after_save` of tf.estimator.CheckpointSaverListener; what is true but
            # not True, such as a result that a listener happens to return, asks for
            # nothing.
            if listener.after_save(run) is True:
                run.request_stop(f"{type(listener).__name__} asked to stop")


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
        check_exactly_one(num_steps=num_steps, last_step=last_step)
        self._num_steps = num_steps
        self._last_step = last_step
        self._stop_at = 0

    def begin(self, run: Run) -> None:
        """Compute the step to stop at."""
        if self._num_steps is not None:
            self._stop_at = run.start_step + self._num_steps
        elif self._last_step is not None:
            self._stop_at = self._last_step
        # A training that goes on from a checkpoint may be there already.
        self._stop_if_reached(run)

    def after_step(self, run: Run, loss: Any) -> None:
        """Ask to stop if the step is reached."""
        self._stop_if_reached(run)

    def _stop_if_reached(self, run: Run) -> None:
        # Not ==: in a cluster the global step counts the steps of all workers, and
        # leaps.
        if run.global_step >= self._stop_at:
            run.request_stop(f"reached step {self._stop_at}")


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
        self._read_step: Callable[[], int | None] | None = None
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
        # Once: a worker that has begun waits for nobody.
        read_step, self._read_step = self._read_step, None
        if read_step is None:
            return
        said_at = -_SECS_BETWEEN_LINES
        # Also Ctrl-C asks to stop, and is heard of here only.
        while not run.should_stop:
            # As GlobalStepWaiterHook of TensorFlow, which reads the variable of the
            # parameter servers.
            if max(run.global_step, read_step() or 0) >= self._wait_until:
                break
            if time.monotonic() - said_at >= _SECS_BETWEEN_LINES:
                said_at = time.monotonic()
                _logger.info("Waiting for global step %d.", self._wait_until)
            time.sleep(self._poll_secs)


class LRScheduleHook(Hook):
    """Sets the learning rate to a function of the global step.

    It changes the rate of a model whose ``model_fn`` is left as it is. A model function
    of one's own says the same with ``make_optimizer(..., learning_rate=function)``.

    Parameters
    ----------
    *functions : callable
        ``function(step) -> rate``, with `step` 0 for the first update; every rate must
        be a finite number >= 0. One function is for all optimizers of the model; of
        several, each is for the optimizer at its place, and None leaves that one alone.

    Raises
    ------
    TypeError
        If there is no function or one is not callable; in training, if a rate is no
        number.
    ValueError
        In training, if there are not as many functions as optimizers, if a scheduler of
        the model sets the rate, too, or if a rate is out of range.

    Examples
    --------
    >>> from skest.hooks import LRScheduleHook
    >>> hook = LRScheduleHook(lambda step: 0.1 * 0.5 ** (step / 1000))
    """

    def __init__(self, *functions: RateFunction | None) -> None:
        if not functions or not all(f is None or callable(f) for f in functions):
            raise TypeError(
                "LRScheduleHook takes functions of the global step that return a "
                f"learning rate; got {functions!r}."
            )
        self._functions = functions
        self._schedules: list[FunctionLR] = []

    def begin(self, run: Run) -> None:
        """Take over the rates."""
        optimizers, functions = run.spec.optimizers, self._functions
        if len(functions) == 1:
            # A linear and a deep part, say, have an optimizer each.
            functions = functions * len(optimizers)
        if len(functions) != len(optimizers):
            raise ValueError(
                f"LRScheduleHook got {len(functions)} functions, but the model has "
                f"{len(optimizers)} optimizer(s). Give one function for all of them, or "
                "one for each."
            )
        self._schedules = []
        for optimizer, function in zip(optimizers, functions, strict=True):
            if function is None:
                continue
            # Of two that set one number, the last would win without a word.
            for scheduler in run.spec.lr_schedulers:
                if is_scheduler_of(scheduler, optimizer):
                    raise ValueError(
                        "LRScheduleHook sets the learning rate of an optimizer that a "
                        f"{type(scheduler).__name__} of the model sets as well. Leave "
                        "out one of them."
                    )
            self._schedules.append(FunctionLR(optimizer, function))

    def before_step(self, run: Run) -> None:
        """Set the rates of the step."""
        for schedule in self._schedules:
            # To the step, not by one: a resumed training is in the middle of it.
            schedule.move_to(run.global_step)
