# SPDX-License-Identifier: Apache-2.0
"""`EstimatorSpec`: what a ``model_fn`` returns."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from skest.core.checks import (
    FormerArguments,
    Several,
    as_tuple,
    check_positive,
    requires,
)
from skest.keys import MetricKeys, ModeKeys
from skest.optimizers.schedules import check_lr_scheduler, missing_function_lrs

_MODES = (ModeKeys.TRAIN, ModeKeys.EVAL, ModeKeys.PREDICT)
_REQUIRED = {
    ModeKeys.TRAIN: ("network", "loss", "optimizer"),
    ModeKeys.EVAL: ("network", "loss"),
    ModeKeys.PREDICT: ("network", "predictions"),
}
_HOOKS = (
    "training_hooks",
    "training_chief_hooks",
    "evaluation_hooks",
    "prediction_hooks",
)
_HOOK_METHODS = ("begin", "before_step", "after_step", "end")
_CALLED_WITH = {
    "encode": ("features",),
    "encode_labels": ("labels",),
    "loss": ("labels", "logits", "features"),
    "predictions": ("logits",),
    "update_metrics": ("eval_metrics", "labels", "logits", "features"),
    "summaries": ("labels", "logits", "features"),
}
_RESERVED_METRICS = (MetricKeys.LOSS, MetricKeys.GLOBAL_STEP)


@dataclass(frozen=True)
class EstimatorSpec(FormerArguments):
    """A model, as one call of ``train``, ``evaluate`` or ``predict`` needs it.

    It is the counterpart of ``tf.estimator.EstimatorSpec``: where TensorFlow has tensors
    of a graph, this has the `network` and functions of its logits. A specification may
    fill more than its mode needs, so one ``model_fn`` can return the same for all modes.

    Parameters
    ----------
    mode : {"train", "eval", "infer"}
        One of `skest.ModeKeys`.
    network : torch.nn.Module
        Maps the encoded features to logits: a tensor, or a dictionary of tensors.
    encode : callable, default=None
        ``encode(features) -> dict of tensors``, on the host. It must treat every row by
        itself, because an in-memory table is encoded once, and files some thousand rows
        at a time, before they are cut into batches. None means that the features are
        numbers already: arrays become tensors, floats are cast to the type of the
        network, and nothing else happens.
    encode_labels : callable, default=None
        ``encode_labels(labels) -> tensor or dict of tensors``, on the host, with the
        same rule. None does what it does for features.
    loss : callable, default=None
        ``loss(labels, logits, features) -> scalar tensor``. Required to train and to
        evaluate. Labels and features are the encoded ones.
    predictions : callable, default=None
        ``predictions(logits) -> dict``; the first dimension of every value is the row.
        It may take a second argument ``keys``, the names asked for. Required to predict.
    optimizer : torch.optim.Optimizer or sequence of them, default=None
        Built over the parameters of `network`. Required to train. Several optimizers
        step one after the other on the gradients of the same loss.
    eval_metrics : dict of str to metric, default=None
        A metric has ``update`` and ``compute``, as those of `skest.metrics` and of
        torchmetrics; it is updated with ``update(logits, labels)``. A pair
        ``(metric, inputs)`` is updated with ``update(*inputs(labels, logits, features))``.
        The names "loss" and "global_step" are taken.
    update_metrics : callable, default=None
        ``update_metrics(eval_metrics, labels, logits, features)`` updates all metrics at
        once, in place of the rule above; it may add metrics to the dictionary. Heads
        use it.
    export_outputs : dict of str to ExportOutput, default=None
        Signatures of the exported model: `skest.export.ClassificationOutput`,
        `RegressionOutput` or `PredictOutput`, which name predictions by key. Of several,
        one is called "serving_default".
    training_hooks, training_chief_hooks, evaluation_hooks, prediction_hooks : Hook or \
iterable of Hook, default=()
        Hooks of the model, run after those of the caller.
    lr_scheduler : torch.optim.lr_scheduler.LRScheduler or sequence of them, default=None
        Stepped once after every training step. Optimizers of
        `skest.optimizers.make_optimizer` whose rate is a function need none: theirs is
        added here.
    clip_norm : float, default=None
        Largest L2 norm of all gradients together, > 0: larger ones are scaled down
        before the update, see `skest.engine.loop.clip_gradients`. The gradients are those
        of all parameters in `optimizer`. None leaves them as they are.
    summaries : callable, default=None
        ``summaries(labels, logits, features) -> dict of str to Tensor``, what TensorBoard
        shall show of training beside the loss: a number as a chart, more of them as a
        histogram. It is called where `RunConfig` has ``save_summary_steps``, without
        gradients, with the logits of the step that follows.

    Raises
    ------
    ValueError
        If the mode is unknown, something that the mode requires is missing, a metric
        has a reserved name, `clip_norm` is not positive, an optimizer computes the loss
        itself (``LBFGS``), a scheduler waits for a metric (``ReduceLROnPlateau``) or
        changes a rate that is a function.
    TypeError
        If a field has the wrong type.

    Examples
    --------
    >>> import torch
    >>> from skest import EstimatorSpec, ModeKeys
    >>> spec = EstimatorSpec(
    ...     ModeKeys.PREDICT,
    ...     network=torch.nn.Identity(),
    ...     predictions=lambda logits: {"twice": 2 * logits},
    ... )
    >>> EstimatorSpec(ModeKeys.TRAIN, network=torch.nn.Identity())
    Traceback (most recent call last):
        ...
    ValueError: EstimatorSpec of mode 'train' lacks loss and optimizer; ...
    """

    _former_arguments: ClassVar[Mapping[str, str]] = {
        "eval_metric_ops": "use 'eval_metrics'",
        "train_op": "give the 'network', its 'optimizer', and the 'loss' as a function",
    }

    mode: str
    # Required in every mode; the default is for the message about all that is missing.
    network: nn.Module = None  # type: ignore[assignment]
    encode: Callable[[Any], Mapping[str, Tensor]] | None = None
    encode_labels: Callable[[Any], Any] | None = None
    loss: Callable[[Any, Any, Any], Tensor] | None = None
    predictions: Callable[..., Mapping[str, Any]] | None = None
    optimizer: Optimizer | Sequence[Optimizer] | None = None
    eval_metrics: Mapping[str, Any] | None = None
    update_metrics: Callable[[dict[str, Any], Any, Any, Any], None] | None = None
    export_outputs: Mapping[str, Any] | None = None
    training_hooks: Any = ()  # here and below: tuples, when the object is made
    training_chief_hooks: Any = ()
    evaluation_hooks: Any = ()
    prediction_hooks: Any = ()
    lr_scheduler: LRScheduler | Sequence[LRScheduler] | None = None
    clip_norm: float | None = None
    summaries: Callable[[Any, Any, Any], Mapping[str, Tensor]] | None = None

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ValueError(
                f"'mode' must be one of {', '.join(map(repr, _MODES))}; "
                f"got {self.mode!r}. Pass on the mode that model_fn was called with."
            )
        for name in _HOOKS:
            object.__setattr__(self, name, _hooks(name, getattr(self, name)))
        self._check_types()
        missing = [n for n in _REQUIRED[self.mode] if _is_empty(getattr(self, n))]
        if missing:
            raise ValueError(
                f"EstimatorSpec of mode '{self.mode}' lacks {' and '.join(missing)}; "
                f"it needs {', '.join(_REQUIRED[self.mode])}."
            )
        schedulers = _as_tuple(self.lr_scheduler)
        missing_lrs = missing_function_lrs(self.optimizers, schedulers)
        if missing_lrs:
            object.__setattr__(self, "lr_scheduler", (*schedulers, *missing_lrs))

    @cached_property
    def predicts_by_key(self) -> bool:
        """Whether ``predictions`` takes the names of those that are wanted."""
        if self.predictions is None:
            return False
        return "keys" in inspect.signature(self.predictions).parameters

    @cached_property
    def dtype(self) -> torch.dtype:
        """Floating type of the variables; torch's default if there are none."""
        floats = (p.dtype for p in self.network.parameters() if p.is_floating_point())
        return next(floats, torch.get_default_dtype())

    def _check_types(self) -> None:
        if self.network is not None and not isinstance(self.network, nn.Module):
            raise TypeError(
                "'network' of an EstimatorSpec must be a torch.nn.Module; "
                f"got {type(self.network).__name__}."
            )
        for name, arguments in _CALLED_WITH.items():
            _check_call(name, getattr(self, name), arguments)
        for optimizer in self.optimizers:
            if not isinstance(optimizer, Optimizer):
                raise TypeError(
                    "'optimizer' of an EstimatorSpec must be a torch.optim.Optimizer or "
                    f"a sequence of them; got {type(optimizer).__name__}. Names and "
                    "classes become one with skest.optimizers.make_optimizer."
                )
            if requires(optimizer.step, "closure"):
                raise ValueError(
                    f"'optimizer' of an EstimatorSpec is {type(optimizer).__name__}, "
                    "which computes the loss several times in a step; training computes "
                    "it once for a batch. Use another, such as torch.optim.Adam."
                )
        for scheduler in _as_tuple(self.lr_scheduler):
            check_lr_scheduler(scheduler)
            # Another's rate would change, and this one's never, without a word.
            if self.optimizers and scheduler.optimizer not in self.optimizers:
                raise ValueError(
                    f"'lr_scheduler' of an EstimatorSpec is a {type(scheduler).__name__} "
                    "of an optimizer that is not its 'optimizer'. Make it of that one."
                )
        if self.clip_norm is not None:
            check_positive(self.clip_norm, "clip_norm", "an EstimatorSpec")
        _check_export_outputs(self.export_outputs)
        for name, metric in (self.eval_metrics or {}).items():
            if name in _RESERVED_METRICS:
                raise ValueError(
                    f"The metric name {name!r} is taken by the result of evaluate; "
                    "choose another."
                )
            metric = metric[0] if isinstance(metric, tuple) else metric
            if not (hasattr(metric, "update") and hasattr(metric, "compute")):
                raise TypeError(
                    f"The metric {name!r} must have the methods update and compute; "
                    f"got {type(metric).__name__}."
                )

    @property
    def optimizers(self) -> tuple[Optimizer, ...]:
        """The optimizers as a tuple, possibly empty."""
        return _as_tuple(self.optimizer)

    @cached_property  # asked for in every step
    def lr_schedulers(self) -> tuple[LRScheduler, ...]:
        """The learning-rate schedulers as a tuple, possibly empty."""
        return _as_tuple(self.lr_scheduler)


def _hooks(name: str, hooks: Several[Any]) -> tuple[Any, ...]:
    """Return hooks as a tuple, if they have what a `skest.hooks.Hook` has."""
    for hook in (objects := as_tuple(hooks)):
        methods = [getattr(hook, method, None) for method in _HOOK_METHODS]
        if isinstance(hook, type) or not all(map(callable, methods)):
            raise TypeError(
                f"'{name}' of an EstimatorSpec must be instances of skest.hooks.Hook; "
                f"got {hook!r}."
            )
    return objects


def _check_call(name: str, function: Any, arguments: tuple[str, ...]) -> None:
    """Raise TypeError if something is no function of so many arguments, nor None."""
    if function is not None and not callable(function):
        raise TypeError(
            f"'{name}' of an EstimatorSpec must be a function; got "
            f"{type(function).__name__}. Give {name}({', '.join(arguments)}), which is "
            "called for every batch."
        )
    try:
        # A module takes anything, and hands it to its method forward.
        signature = inspect.signature(getattr(function, "forward", function))
    except (TypeError, ValueError):  # None, or one that is not written in Python
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise TypeError(
            f"'{name}' of an EstimatorSpec is called as {name}({', '.join(arguments)}), by "
            f"position; the one that is given takes {signature}. Give a function of "
            f"{', '.join(arguments)}."
        ) from error


def _check_export_outputs(outputs: Any) -> None:
    if outputs is None:
        return
    if not isinstance(outputs, Mapping):
        raise TypeError(
            "'export_outputs' of an EstimatorSpec must be a dictionary; got "
            f"{outputs!r}. Give outputs of skest.export by the name of the signature."
        )
    for name, output in outputs.items():
        named = getattr(output, "outputs", None)
        if not (hasattr(output, "method") and isinstance(named, Mapping)):
            raise TypeError(
                f"The signature {name!r} of 'export_outputs' must be a "
                "ClassificationOutput, RegressionOutput or PredictOutput of skest.export; "
                f"got {output!r}."
            )
    if len(outputs) > 1 and "serving_default" not in outputs:
        raise ValueError(
            f"'export_outputs' has the signatures {', '.join(map(repr, outputs))}, but "
            "none of them is 'serving_default', for requests that name none. Give one of "
            "them this name, too."
        )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    if isinstance(value, Optimizer):  # asked for in every step; Sequence takes longer
        return (value,)
    return tuple(value) if isinstance(value, Sequence) else (value,)


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, Sequence) and len(value) == 0)
