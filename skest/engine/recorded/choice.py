# SPDX-License-Identifier: Apache-2.0
"""Which steps and predictions are recorded: those of a closed world, or on request.

A recorded step repeats operations on tensors. The code of PyTorch and skest does nothing
else in a step; what other code does beside them nobody can know. So "auto" records a model
that is made of known code only, with hooks that are known not to change it; and "graph"
whatever the user says is a function of tensors. Nothing is watched later on.
"""

import functools
import logging
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from torch import nn
from torch.optim import Optimizer

from skest.core.random import is_known_code
from skest.engine import loop
from skest.engine.recorded.cuda_graph import CudaGraphProgram
from skest.engine.recorded.inference import Inference, has_hooks_of_all_modules
from skest.engine.recorded.program import Program
from skest.engine.recorded.step import GraphStep
from skest.hooks.base import Hook
from skest.hooks.steps import LRScheduleHook
from skest.optimizers.row_sparse import has_step_hooks
from skest.optimizers.schedules import keep_rates_in_tensors
from skest.spec import EstimatorSpec

_logger = logging.getLogger("skest")

# Recording costs as much as 20 to 25 steps take longer when they are eager. Where nobody
# knows how many steps there will be, it is begun when that much may be lost already.
_WORTH_RECORDING = 30
_EAGER_STEPS = 20
# To record predictions costs as much as so many small batches take longer without.
_EAGER_INFERENCES = 60

# Recurrent layers refer to their variables by weak references, which can be called.
_NO_FUNCTIONS = (nn.Module, type, weakref.ref)
_FUNCTIONS = (FunctionType, BuiltinFunctionType)


def make_step(
    execution: str,
    spec: EstimatorSpec,
    hooks: Sequence[Hook],
    n_steps: int | None,
    *,
    has_table: bool = False,
    update: loop.Update = loop.apply_gradients,
) -> loop.Step:
    """Return what takes the training steps.

    Parameters
    ----------
    execution : {"auto", "eager", "graph"}
        See `skest.RunConfig`.
    spec : EstimatorSpec
        Model of mode TRAIN, restored.
    hooks : sequence of Hook
        All hooks of the run.
    n_steps : int or None
        How many steps there may be; None if that is not known.
    has_table : bool, default=False
        Whether all batches are rows of one table.
    update : callable, default=apply_gradients
        The second half of an eager step.

    Returns
    -------
    callable
        ``step(features, labels) -> loss``.
    """
    eager = loop.eager_step(spec, update)
    is_asked_for = execution == "graph"
    # `n_steps` is an upper bound: hooks may stop before.
    is_short = n_steps is not None and n_steps < _WORTH_RECORDING
    if execution == "eager" or (is_short and not is_asked_for):
        return eager
    # Who leaves it to "auto" need not know.
    report = _logger.warning if is_asked_for else _logger.info
    reason = _obstacle_in_steps(spec, hooks)
    if reason is None and not is_asked_for:
        reason = reason_to_stay_eager(spec, (spec.loss,), hooks)
    if reason is not None:
        report(f"Training steps are taken eagerly: {reason}.")
        return eager
    # Optimizers make their slots in the first step.
    # What a step needs from servers may be known from the third one on only.
    first = 1 if update is loop.apply_gradients else 2
    is_on_gpu = any(p.device.type == "cuda" for p in loop.trained_parameters(spec))
    return GraphStep(
        spec,
        eager_steps=_EAGER_STEPS if n_steps is None and not is_asked_for else first,
        report=report,
        with_update=update is loop.apply_gradients and _is_update_fixed(spec, hooks),
        program=CudaGraphProgram if is_on_gpu else Program,
        has_table=has_table,
        n_steps=n_steps,
        update=update,
    )


def make_inference(
    execution: str,
    spec: EstimatorSpec,
    compute: Callable[[Any, Any], Any],
    *called: Callable[..., Any] | None,
) -> Callable[[Any, Any], Any]:
    """Return what computes predictions, or what is evaluated.

    Parameters
    ----------
    execution : {"auto", "eager", "graph"}
        See `skest.RunConfig`.
    spec : EstimatorSpec
        Model of mode EVAL or PREDICT, restored. Nobody may change it any more.
    compute : callable
        ``compute(data, option)``, see `skest.engine.recorded.inference.Inference`.
    *called : callable or None
        What of `spec` it calls beside the network.

    Returns
    -------
    callable
        ``infer(data, option)`` returns what `compute` does.
    """
    if execution == "eager":
        return compute
    if execution == "auto":
        refusal = functools.partial(reason_to_stay_eager, spec, called)
        return Inference(compute, eager_calls=_EAGER_INFERENCES, refusal=refusal)
    return Inference(compute, eager_calls=1, refusal=functools.partial(_obstacle, spec))


def reason_to_stay_eager(
    spec: EstimatorSpec,
    called: Iterable[Callable[..., Any] | None],
    hooks: Iterable[Hook] = (),
) -> str | None:
    """Tell what speaks against recording a model unasked, if anything does.

    Parameters
    ----------
    spec : EstimatorSpec
        The model.
    called : iterable of callable or None
        What of `spec` is called beside the network.
    hooks : iterable of Hook, default=()
        Those of a training.

    Returns
    -------
    str or None
        The reason.

    Examples
    --------
    >>> import torch
    >>> from skest import EstimatorSpec, ModeKeys
    >>> from skest.engine.recorded.choice import reason_to_stay_eager
    >>> from skest.heads import RegressionHead
    >>> network = torch.nn.Linear(2, 1)
    >>> spec = EstimatorSpec(
    ...     ModeKeys.TRAIN,
    ...     network=network,
    ...     loss=RegressionHead().compute_loss,
    ...     optimizer=torch.optim.SGD(network.parameters()),
    ... )
    >>> reason_to_stay_eager(spec, [spec.loss]) is None
    True
    >>> handle = network.weight.register_hook(torch.sign)
    >>> reason_to_stay_eager(spec, [spec.loss])
    'a parameter has hooks for its gradient'
    """
    # From what is quick to find to what takes a walk through all that a step calls.
    if (reason := _obstacle(spec)) is not None:
        return reason
    for parameter in loop.trained_parameters(spec):
        # They are Python in the middle of the backward pass.
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return "a parameter has hooks for its gradient"
    for rule in _rules(spec):
        # A scheduler of torch puts a counter around `step`.
        is_counted = getattr(rule.step, "_wrapped_by_lr_sched", False)
        if has_step_hooks(rule) and not is_counted:
            return f"{type(rule).__name__} has hooks for its steps"
    for part in _code_of(spec, called):
        if not _is_known(part):
            return (
                f"{_name(part)} is not known to compute with tensors only; "
                "execution='graph' records it"
            )
    for part in _code_around(spec, hooks):
        if not _is_known(part):
            return (
                f"{_name(part)} may change the model between steps; execution='graph' "
                "takes it that it does not"
            )
    return None


def _name(part: Any) -> str:
    return repr(getattr(part, "__qualname__", type(part).__qualname__))


def _obstacle(spec: EstimatorSpec) -> str | None:
    """Tell why a model cannot be recorded even if somebody asks for it."""
    if has_hooks_of_all_modules():
        return "hooks are registered for all modules"
    for module in spec.network.modules():
        # By `module.compile()` and by `torch.compile(module)`.
        if module._compiled_call_impl is not None or "_orig_mod" in module._modules:
            # What compiled code does is no sequence of operations that could be seen.
            return "torch.compile was called for a module"
    return None


def _obstacle_in_steps(spec: EstimatorSpec, hooks: Iterable[Hook]) -> str | None:
    if any(hook.watches_all_gradients for hook in hooks):
        return "a hook watches gradients"
    for optimizer in spec.optimizers:
        if not getattr(optimizer, "is_recordable", True):
            return f"{type(optimizer).__name__} needs more than gradients"
    return _obstacle(spec)


def _is_update_fixed(spec: EstimatorSpec, hooks: Iterable[Hook]) -> bool:
    """Tell whether an update is the same in every step, and nobody sees its gradients.

    Otherwise the optimizers take their steps, with the options that they have by then.
    """
    return (
        all(map(_is_known, (*_rules(spec), *_code_around(spec, hooks))))
        and not any(isinstance(hook, LRScheduleHook) for hook in hooks)
        and not any(map(has_step_hooks, _rules(spec)))
        # Last, because it changes the optimizers.
        and keep_rates_in_tensors(spec.lr_schedulers)
    )


def _rules(spec: EstimatorSpec) -> Iterator[Optimizer]:
    """Yield the optimizers, and those in wrappers."""
    for optimizer in spec.optimizers:
        yield optimizer
        if (inner := getattr(optimizer, "inner", None)) is not None:
            yield inner


def _is_known(part: Any) -> bool:
    """Tell whether code is that of skest, or of PyTorch and not compiled."""
    if is_known_code(part):
        return True
    origin = getattr(part, "__module__", None) or ""
    is_of_torch = isinstance(part, _FUNCTIONS) and origin.partition(".")[0] == "torch"
    # The mark of what torch.compile returns for a function.
    return is_of_torch and not hasattr(part, "_torchdynamo_orig_callable")


def _code_around(spec: EstimatorSpec, hooks: Iterable[Hook]) -> Iterator[Any]:
    """Yield what is called between two steps and is given the model."""
    yield from spec.lr_schedulers
    for hook in hooks:
        yield hook
        # Those of a `CheckpointSaverHook`.
        yield from getattr(hook, "listeners", ())
        # Methods that were replaced.
        yield from [v for name, v in vars(hook).items() if hasattr(Hook, name)]


def _code_of(
    spec: EstimatorSpec, called: Iterable[Callable[..., Any] | None]
) -> Iterator[Any]:
    """Yield modules, functions and optimizers that take part in a step."""
    for module in spec.network.modules():
        yield module
        for value in vars(module).values():
            for item in value if isinstance(value, list | tuple) else [value]:
                if callable(item) and not isinstance(item, _NO_FUNCTIONS):
                    yield from _functions(item)
        yield from module._forward_hooks.values()
        yield from module._forward_pre_hooks.values()
        yield from module._backward_hooks.values()
        yield from module._backward_pre_hooks.values()
    for function in called:
        if function is not None:
            yield from _functions(function)
    yield from _rules(spec)


def _functions(part: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield a function, the object that it is a method of, and the functions in that."""
    seen = set() if seen is None else seen
    if isinstance(part, functools.partial):
        for bound in (*part.args, *part.keywords.values()):
            if _may_call(bound):
                yield from _functions(bound, seen)
        part = part.func
    yield part
    owner = getattr(part, "__self__", part)
    # Built-in functions have their module as `__self__`.
    if isinstance(owner, type | ModuleType) or not hasattr(owner, "__dict__"):
        return
    if id(owner) in seen:  # it holds a method of its own
        return
    seen.add(id(owner))
    if owner is not part:
        yield owner
    for value in vars(owner).values():
        for item in value if isinstance(value, list | tuple) else [value]:
            if _may_call(item):
                yield from _functions(item, seen)


def _may_call(value: Any) -> bool:
    # Heads are not callable, but call the losses of users that they hold.
    return callable(value) or hasattr(type(value), "compute_loss")
