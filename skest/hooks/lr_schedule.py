# SPDX-License-Identifier: Apache-2.0
"""`LRScheduleHook`."""

from skest.hooks.base import Hook, Run
from skest.optimizers.schedules import FunctionLR, RateFunction, is_scheduler_of


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
            schedule.move_to(run.global_step)
