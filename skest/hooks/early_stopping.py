# SPDX-License-Identifier: Apache-2.0
"""`EarlyStoppingHook`: stops training by a rule."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from skest.hooks.base import Hook, Run
from skest.hooks.timer import Timer

__all__ = [
    "EarlyStoppingHook",
    "HasEvalDir",
    "check_estimator",
    "make_early_stopping_hook",
]


class HasEvalDir(Protocol):
    """What early stopping needs of an Estimator."""

    def eval_dir(self, name: str | None = None) -> Path | None:
        """Return the directory for results of an evaluation, or None."""


class EarlyStoppingHook(Hook):
    """Stops training when a rule gives a reason to.

    The rule is asked before the first step, so that training that has been stopped does
    not begin again, and then behind whatever saves and evaluates at a step. Nothing of it
    is kept in checkpoints: it can be added to and removed from a training that goes on.

    Parameters
    ----------
    reason : callable
        ``reason(run)`` returns why to stop as a string, or None.
    run_every_secs : float, seconds, default=60
        Time between two questions in training, of which one follows the first step.
    run_every_steps : int, default=None
        Steps between two questions. Exactly one of both must be given, so set
        `run_every_secs` to None to use it.

    Raises
    ------
    ValueError
        If none or both are given, or the one given is not positive.

    Examples
    --------
    >>> import time
    >>> from skest.hooks import EarlyStoppingHook
    >>> deadline = time.monotonic() + 3600
    >>> def an_hour_has_passed(run):
    ...     return "an hour has passed" if time.monotonic() > deadline else None
    >>> hook = EarlyStoppingHook(an_hour_has_passed)
    """

    def __init__(
        self,
        reason: Callable[[Run], str | None],
        run_every_secs: float | None = 60,
        run_every_steps: int | None = None,
    ) -> None:
        if (run_every_secs is None) == (run_every_steps is None):
            raise ValueError(
                "Exactly one of 'run_every_secs' and 'run_every_steps' must be given; "
                f"got {run_every_secs!r} and {run_every_steps!r}. Pass "
                "run_every_secs=None to count steps."
            )
        self._reason = reason
        self._interval = (run_every_steps, run_every_secs)
        self._timer = Timer(*self._interval)

    def begin(self, run: Run) -> None:
        """Ask the rule whether training ended earlier."""
        self._timer = Timer(*self._interval)
        self._ask(run)

    def after_step(self, run: Run, loss: Any) -> None:
        """Ask the rule if it is time to."""
        if self._timer.is_due(run.global_step):
            self._timer.mark(run.global_step)
            self._ask(run)

    def _ask(self, run: Run) -> None:
        reason = self._reason(run)
        if reason is not None:
            run.request_stop(reason)


def make_early_stopping_hook(
    estimator: HasEvalDir,
    should_stop_fn: Callable[[], bool],
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Return a hook that stops training when a function returns True.

    Parameters
    ----------
    estimator : Estimator
        The one that is trained.
    should_stop_fn : callable
        ``should_stop_fn() -> bool``.
    run_every_secs, run_every_steps : float or int
        As for `EarlyStoppingHook`.

    Returns
    -------
    EarlyStoppingHook
        For the hooks of ``train`` or of a `skest.TrainSpec`.

    Raises
    ------
    TypeError
        If `estimator` is no Estimator or `should_stop_fn` no function.
    ValueError
        If none or both intervals are given, or the one given is not positive.

    Notes
    -----
    As ``tf.estimator.experimental.make_early_stopping_hook``, with two differences: the
    function is asked before the first step, too, and no variable is added to the
    checkpoint.

    Examples
    --------
    >>> import skest
    >>> from pathlib import Path
    >>> from skest.hooks import make_early_stopping_hook
    >>> estimator = skest.Estimator(lambda features, mode: None)
    >>> hook = make_early_stopping_hook(estimator, Path("enough").exists)
    """
    check_estimator(estimator)
    if not callable(should_stop_fn):
        raise TypeError(
            "'should_stop_fn' must be a function without arguments; got "
            f"{should_stop_fn!r}."
        )
    name = getattr(should_stop_fn, "__name__", type(should_stop_fn).__name__)

    def reason(run: Run) -> str | None:
        return f"early stopping: {name}() was true" if should_stop_fn() else None

    return EarlyStoppingHook(reason, run_every_secs, run_every_steps)


def check_estimator(estimator: Any) -> None:
    """Raise TypeError unless `estimator` has directories of evaluations."""
    if not callable(getattr(estimator, "eval_dir", None)):
        raise TypeError(
            f"'estimator' must be a skest.Estimator; got {type(estimator).__name__}."
        )
