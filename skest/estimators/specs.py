# SPDX-License-Identifier: Apache-2.0
"""`TrainSpec` and `EvalSpec`: the arguments of `train_and_evaluate`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from skest.core.checks import (
    Several,
    check_all,
    check_directory_name,
    check_input_fn,
    check_integer,
    check_not_negative,
)
from skest.hooks.base import Hook
from skest.hooks.steps import CheckpointListener

if TYPE_CHECKING:
    from skest.export.exporters import Exporter


@dataclass(frozen=True)
class TrainSpec:
    """What `train_and_evaluate` trains with (``tf.estimator.TrainSpec``).

    Parameters
    ----------
    input_fn : callable
        As for ``Estimator.train``.
    max_steps : int, default=None
        Global step to stop at. With None training ends with the input, or by a hook.
    hooks : Hook or iterable of Hook, default=()
        Run around every step.
    saving_listeners : CheckpointListener or iterable of them, default=()
        Called around every checkpoint, before it is evaluated.

    Raises
    ------
    TypeError
        If a field has the wrong type.
    ValueError
        If `max_steps` is not positive.

    Examples
    --------
    >>> import skest
    >>> def input_fn():
    ...     return [([[1.0], [2.0]], [2.0, 4.0])]
    >>> skest.TrainSpec(input_fn, max_steps=1000).max_steps
    1000
    """

    input_fn: Callable[..., Any]
    max_steps: int | None = None
    hooks: Several[Hook] = ()
    saving_listeners: Several[CheckpointListener] = ()

    def __post_init__(self) -> None:
        check_input_fn(self.input_fn, "TrainSpec")
        if self.max_steps is not None:
            check_integer(self.max_steps, "max_steps", "TrainSpec", 1)
        _set_all(self, "hooks", Hook)
        _set_all(self, "saving_listeners", CheckpointListener)


@dataclass(frozen=True)
class EvalSpec:
    """What `train_and_evaluate` evaluates with (``tf.estimator.EvalSpec``).

    Parameters
    ----------
    input_fn : callable
        As for ``Estimator.evaluate``.
    steps : int or None, default=100
        Batches to evaluate; None takes all.
    name : str, default=None
        Names this evaluation where there are several: ``Estimator.eval_dir(name)``.
    hooks : Hook or iterable of Hook, default=()
        Run around every step of an evaluation.
    exporters : Exporter or iterable of Exporter, default=()
        Called after every evaluation.
    start_delay_secs : float, seconds, default=120
        How long an evaluator in a process of its own waits before it begins. Where one
        process trains and evaluates it has no effect, as in TensorFlow.
    throttle_secs : float, seconds, default=600
        Least time from the beginning of one evaluation to that of the next. Of the
        checkpoints that `skest.RunConfig` asks for, those that come earlier are not
        evaluated, but for the last one of training.
    eval_every_steps : int, default=None
        Evaluate whenever that many steps have been taken, at multiples of it, in place
        of `throttle_secs`. A checkpoint is saved for it, in addition to others.

    Raises
    ------
    TypeError
        If a field has the wrong type.
    ValueError
        If a number is out of range, or `name` is not the name of a directory.

    Examples
    --------
    >>> import skest
    >>> def input_fn():
    ...     return [([[1.0], [2.0]], [2.0, 4.0])]
    >>> skest.EvalSpec(input_fn, eval_every_steps=500).steps
    100
    """

    input_fn: Callable[..., Any]
    # Numbers as in tf.estimator.EvalSpec, so that scripts evaluate as often as they
    # did.
    steps: int | None = 100
    name: str | None = None
    hooks: Several[Hook] = ()
    exporters: "Several[Exporter]" = ()
    start_delay_secs: float = 120
    throttle_secs: float = 600
    eval_every_steps: int | None = None

    def __post_init__(self) -> None:
        check_input_fn(self.input_fn, "EvalSpec")
        if self.steps is not None:
            check_integer(self.steps, "steps", "EvalSpec", 1)
        if self.name is not None:
            check_directory_name(self.name, "name", "EvalSpec")
        _set_all(self, "hooks", Hook)
        if self.exporters != ():  # most have none, and load nothing of exports
            from skest.export.exporters import Exporter

            _set_all(self, "exporters", Exporter)
        check_not_negative(self.start_delay_secs, "start_delay_secs", "EvalSpec")
        check_not_negative(self.throttle_secs, "throttle_secs", "EvalSpec")
        if self.eval_every_steps is not None:
            check_integer(self.eval_every_steps, "eval_every_steps", "EvalSpec", 1)


def _set_all(spec: TrainSpec | EvalSpec, name: str, kind: type) -> None:
    """Make a tuple of a field, and check what is in it."""
    values = check_all(getattr(spec, name), kind, name, type(spec).__name__)
    # Frozen, but for this: an iterator could be gone through only once.
    object.__setattr__(spec, name, tuple(values))
