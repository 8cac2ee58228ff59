# SPDX-License-Identifier: Apache-2.0
"""`EarlyStoppingHook`: stops training by a rule, or by a metric of the evaluations."""

import math
import operator
import os
from collections.abc import Callable, Hashable
from numbers import Real
from pathlib import Path
from typing import Any, Protocol

from skest.checkpoints.store import read_eval_results, version_of_eval_results
from skest.core.checks import check_exactly_one, check_integer
from skest.hooks.base import Hook, Run, Timer, check_estimator


# A protocol, because estimators import hooks.
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
        # Seconds have a default: who counts steps has to pass run_every_secs=None.
        check_exactly_one(
            run_every_secs=run_every_secs, run_every_steps=run_every_steps
        )
        self._reason = reason
        self._timer = Timer(run_every_steps, run_every_secs)

    @property
    def eval_dir(self) -> Path | None:
        """Where the results of evaluations are that the rule reads, if it does."""
        return getattr(self._reason, "directory", None)

    def begin(self, run: Run) -> None:
        """Ask the rule whether training ended earlier."""
        # Else an evaluator that has ended the training would see it begin again.
        self._timer = self._timer._restarted()
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
    check_estimator(estimator, "eval_dir")
    # Here, and not an hour later, when it is called for the first time.
    if not callable(should_stop_fn):
        raise TypeError(
            "'should_stop_fn' must be a function without arguments; got "
            f"{should_stop_fn!r}."
        )
    # Partial functions and objects have no name.
    name = getattr(should_stop_fn, "__name__", type(should_stop_fn).__name__)

    def reason(run: Run) -> str | None:
        return f"early stopping: {name}() was true" if should_stop_fn() else None

    return EarlyStoppingHook(reason, run_every_secs, run_every_steps)


_Compare = Callable[[float, float], bool]
_Judge = Callable[[dict[int, float], int], str | None]


def stop_if_higher_hook(
    estimator: HasEvalDir,
    metric_name: str,
    threshold: float,
    eval_dir: str | os.PathLike[str] | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Return a hook that stops training when a metric is higher than a threshold.

    Parameters
    ----------
    estimator : Estimator
        The one that is trained; it needs a ``model_dir``.
    metric_name : str
        A metric of its evaluation, such as "accuracy".
    threshold : float
        An equal value is not higher.
    eval_dir : str or path, default=None
        Directory of the evaluations; None is ``estimator.eval_dir()``.
    min_steps : int, default=0
        Evaluations at earlier global steps are not looked at.
    run_every_secs, run_every_steps : float or int
        As for `EarlyStoppingHook`.

    Returns
    -------
    EarlyStoppingHook
        For the hooks of ``train`` or of a `skest.TrainSpec`.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If `min_steps` is negative, there is no directory of evaluations, none or both
        intervals are given; in training, if evaluations have no such metric.

    Notes
    -----
    As ``tf.estimator.experimental.stop_if_higher_hook``, with one difference: of
    evaluations from before the present call of ``train``, only the one at its first step
    counts. A peak that was passed long ago does not stop a training that goes on.

    Examples
    --------
    >>> import skest
    >>> from skest.hooks import stop_if_higher_hook
    >>> estimator = skest.Estimator(lambda features, mode: None, model_dir="model")
    >>> hook = stop_if_higher_hook(estimator, "accuracy", 0.9)
    """
    judge = _past_threshold(threshold, operator.gt, "higher")
    rule = _MetricRule(judge, estimator, metric_name, eval_dir, min_steps)
    return EarlyStoppingHook(rule, run_every_secs, run_every_steps)


def stop_if_lower_hook(
    estimator: HasEvalDir,
    metric_name: str,
    threshold: float,
    eval_dir: str | os.PathLike[str] | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Return a hook that stops training when a metric is lower than a threshold.

    It is `stop_if_higher_hook` the other way round: see there for parameters, errors and
    notes.

    Examples
    --------
    >>> import skest
    >>> from skest.hooks import stop_if_lower_hook
    >>> estimator = skest.Estimator(lambda features, mode: None, model_dir="model")
    >>> hook = stop_if_lower_hook(estimator, "loss", 0.1, run_every_secs=10)
    """
    judge = _past_threshold(threshold, operator.lt, "lower")
    rule = _MetricRule(judge, estimator, metric_name, eval_dir, min_steps)
    return EarlyStoppingHook(rule, run_every_secs, run_every_steps)


def stop_if_no_increase_hook(
    estimator: HasEvalDir,
    metric_name: str,
    max_steps_without_increase: int,
    eval_dir: str | os.PathLike[str] | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Return a hook that stops training when a metric no longer increases.

    Parameters
    ----------
    estimator : Estimator
        The one that is trained; it needs a ``model_dir``.
    metric_name : str
        A metric of its evaluation, such as "auc".
    max_steps_without_increase : int
        Training stops if the highest value is that many steps older than the latest
        evaluation, or more. An equal value is no increase, and NaN is none.
    eval_dir : str or path, default=None
        Directory of the evaluations; None is ``estimator.eval_dir()``.
    min_steps : int, default=0
        Evaluations at earlier global steps are not looked at.
    run_every_secs, run_every_steps : float or int
        As for `EarlyStoppingHook`.

    Returns
    -------
    EarlyStoppingHook
        For the hooks of ``train`` or of a `skest.TrainSpec`.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If a number of steps is negative, there is no directory of evaluations, none or
        both intervals are given; in training, if evaluations have no such metric.

    Notes
    -----
    As ``tf.estimator.experimental.stop_if_no_increase_hook``, with one difference: only
    the time until the latest evaluation counts. A longer wait that was followed by an
    increase does not stop a training that goes on.

    Examples
    --------
    >>> import skest
    >>> from skest.hooks import stop_if_no_increase_hook
    >>> estimator = skest.Estimator(lambda features, mode: None, model_dir="model")
    >>> hook = stop_if_no_increase_hook(estimator, "auc", 10_000)
    """
    judge = _no_progress(max_steps_without_increase, operator.gt, "increase")
    rule = _MetricRule(judge, estimator, metric_name, eval_dir, min_steps)
    return EarlyStoppingHook(rule, run_every_secs, run_every_steps)


def stop_if_no_decrease_hook(
    estimator: HasEvalDir,
    metric_name: str,
    max_steps_without_decrease: int,
    eval_dir: str | os.PathLike[str] | None = None,
    min_steps: int = 0,
    run_every_secs: float | None = 60,
    run_every_steps: int | None = None,
) -> EarlyStoppingHook:
    """Return a hook that stops training when a metric no longer decreases.

    It is `stop_if_no_increase_hook` the other way round: see there for parameters, errors
    and notes.

    Examples
    --------
    >>> import skest
    >>> from skest.hooks import stop_if_no_decrease_hook
    >>> estimator = skest.Estimator(lambda features, mode: None, model_dir="model")
    >>> hook = stop_if_no_decrease_hook(estimator, "loss", 10_000, min_steps=50_000)
    """
    judge = _no_progress(max_steps_without_decrease, operator.lt, "decrease")
    rule = _MetricRule(judge, estimator, metric_name, eval_dir, min_steps)
    return EarlyStoppingHook(rule, run_every_secs, run_every_steps)


class _MetricRule:
    """Gives a reason to stop by the values of a metric in an evaluation directory."""

    def __init__(
        self,
        judge: _Judge,
        estimator: HasEvalDir,
        metric_name: str,
        eval_dir: str | os.PathLike[str] | None,
        min_steps: int,
    ) -> None:
        check_estimator(estimator, "eval_dir")
        check_integer(min_steps, "min_steps", "the hook", 0)
        directory = estimator.eval_dir() if eval_dir is None else Path(eval_dir)
        if directory is None:
            raise ValueError(
                "Early stopping reads the results of evaluations from a directory, and "
                "'estimator' has none. Give it a model_dir, or pass 'eval_dir'."
            )
        self._judge = judge
        self._metric_name = metric_name
        self.directory = directory
        self._min_steps = min_steps
        self._version: Hashable = None
        self._results: dict[int, dict[str, float]] = {}

    def __call__(self, run: Run) -> str | None:
        """Judge the results that there are; they are read when they have changed."""
        # A stat, so that it costs nothing to ask often.
        version = version_of_eval_results(self.directory)
        if version != self._version:
            self._results = read_eval_results(self.directory)
            self._version = version
        found = self._judge(self._values(run.global_step), run.start_step)
        # None stays None.
        return found and f"early stopping: {self._metric_name!r} {found}"

    def _values(self, step: int) -> dict[int, float]:
        """Return the values by global step, up to `step`.

        Those of later steps are there if training went back to an older checkpoint.
        """
        name = self._metric_name
        results = {
            at: metrics
            for at, metrics in self._results.items()
            # As `min_steps` of tf.estimator, of evaluations and not of training.
            if self._min_steps <= at <= step
        }
        values = {at: m[name] for at, m in results.items() if name in m}
        # Not before there are results: the first evaluation may be yet to come.
        if results and not values:
            there = ", ".join(map(repr, results[max(results)]))
            raise ValueError(
                f"'metric_name' of the early stopping hook is {name!r}, but the "
                f"evaluations in {str(self.directory)!r} have {there}. Arrays are not "
                "recorded, for they have no order."
            )
        return values


def _past_threshold(threshold: float, past: _Compare, direction: str) -> _Judge:
    if not isinstance(threshold, Real):
        raise TypeError(f"'threshold' must be a number; got {threshold!r}.")

    def judge(values: dict[int, float], start_step: int) -> str | None:
        for step, value in values.items():
            # Earlier results have stopped an earlier call. Who trains on has seen them.
            # NaN is past no threshold.
            if step >= start_step and past(value, threshold):
                return f"was {value:g} at step {step}, {direction} than {threshold:g}"
        return None

    return judge


def _no_progress(max_steps: int, better: _Compare, change: str) -> _Judge:
    check_integer(max_steps, f"max_steps_without_{change}", "the hook", 1)

    def judge(values: dict[int, float], start_step: int) -> str | None:
        if not values:
            return None
        # Where all are NaN, the steps count from the first evaluation.
        best, best_step = None, min(values)
        for step, value in values.items():
            if not math.isnan(value) and (best is None or better(value, best)):
                best, best_step = value, step
        latest = max(values)
        # As no_increase of tf.estimator: steps between evaluations count, not
        # evaluations.
        if latest - best_step < max_steps:
            return None
        return f"did not {change} from step {best_step} to step {latest}"

    return judge
