# SPDX-License-Identifier: Apache-2.0
"""Early stopping by a metric of the evaluations.

The hooks read what ``evaluate`` has recorded in the evaluation directory, so training
stops only as often as it is evaluated: use them with `skest.train_and_evaluate` or an
`InMemoryEvaluatorHook`.
"""

import math
import operator
import os
from collections.abc import Callable
from numbers import Real
from pathlib import Path

from skest._checks import check_integer
from skest.eval_results import read_eval_results
from skest.hooks.base import Run
from skest.hooks.early_stopping import EarlyStoppingHook, HasEvalDir, check_estimator

__all__ = [
    "stop_if_higher_hook",
    "stop_if_lower_hook",
    "stop_if_no_decrease_hook",
    "stop_if_no_increase_hook",
]

_Compare = Callable[[float, float], bool]
_Rule = Callable[[dict[int, float], int], str | None]


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
    rule = _past_threshold(threshold, operator.gt, "higher")
    evaluations = _Evaluations(estimator, metric_name, eval_dir, min_steps)
    return _hook(evaluations, rule, run_every_secs, run_every_steps)


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
    rule = _past_threshold(threshold, operator.lt, "lower")
    evaluations = _Evaluations(estimator, metric_name, eval_dir, min_steps)
    return _hook(evaluations, rule, run_every_secs, run_every_steps)


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
    check_integer(
        max_steps_without_increase, "max_steps_without_increase", "the hook", 1
    )
    rule = _no_progress(max_steps_without_increase, operator.gt, "increase")
    evaluations = _Evaluations(estimator, metric_name, eval_dir, min_steps)
    return _hook(evaluations, rule, run_every_secs, run_every_steps)


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
    check_integer(
        max_steps_without_decrease, "max_steps_without_decrease", "the hook", 1
    )
    rule = _no_progress(max_steps_without_decrease, operator.lt, "decrease")
    evaluations = _Evaluations(estimator, metric_name, eval_dir, min_steps)
    return _hook(evaluations, rule, run_every_secs, run_every_steps)


class _Evaluations:
    """The values of one metric in the results of an evaluation directory."""

    def __init__(
        self,
        estimator: HasEvalDir,
        metric_name: str,
        eval_dir: str | os.PathLike[str] | None,
        min_steps: int,
    ) -> None:
        check_estimator(estimator)
        check_integer(min_steps, "min_steps", "the hook", 0)
        directory = estimator.eval_dir() if eval_dir is None else Path(eval_dir)
        if directory is None:
            raise ValueError(
                "Early stopping reads the results of evaluations from a directory, and "
                "'estimator' has none. Give it a model_dir, or pass 'eval_dir'."
            )
        self._directory = directory
        self._min_steps = min_steps
        self.metric_name = metric_name

    def until(self, step: int) -> dict[int, float]:
        """Return the values by global step, up to `step`.

        Later ones are there if training went back to an older checkpoint.
        """
        results = {
            at: metrics
            for at, metrics in read_eval_results(self._directory).items()
            if self._min_steps <= at <= step
        }
        name = self.metric_name
        values = {at: m[name] for at, m in results.items() if name in m}
        if results and not values:
            there = ", ".join(map(repr, results[max(results)]))
            raise ValueError(
                f"'metric_name' of the early stopping hook is {name!r}, but the "
                f"evaluations in {str(self._directory)!r} have {there}."
            )
        return values


def _hook(
    evaluations: _Evaluations,
    rule: _Rule,
    run_every_secs: float | None,
    run_every_steps: int | None,
) -> EarlyStoppingHook:
    def reason(run: Run) -> str | None:
        found = rule(evaluations.until(run.global_step), run.start_step)
        return found and f"early stopping: {evaluations.metric_name!r} {found}"

    return EarlyStoppingHook(reason, run_every_secs, run_every_steps)


def _past_threshold(threshold: float, past: _Compare, direction: str) -> _Rule:
    if not isinstance(threshold, Real):
        raise TypeError(f"'threshold' must be a number; got {threshold!r}.")

    def rule(values: dict[int, float], start_step: int) -> str | None:
        for step, value in values.items():
            if step >= start_step and past(value, threshold):
                return f"was {value:g} at step {step}, {direction} than {threshold:g}"
        return None

    return rule


def _no_progress(max_steps: int, better: _Compare, change: str) -> _Rule:
    def rule(values: dict[int, float], start_step: int) -> str | None:
        if not values:
            return None
        best, best_step = None, min(values)
        for step, value in values.items():
            if not math.isnan(value) and (best is None or better(value, best)):
                best, best_step = value, step
        latest = max(values)
        if latest - best_step < max_steps:
            return None
        return f"did not {change} from step {best_step} to step {latest}"

    return rule
