# SPDX-License-Identifier: Apache-2.0
"""How the steps of a run are carried out."""

import functools
import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

from torch import nn

from skest._random import is_known_code
from skest.execution.cuda_graph import CudaGraphProgram
from skest.execution.graph import GraphStep
from skest.execution.impurity import Impurity
from skest.execution.inference import Inference
from skest.execution.program import Program, StepProgram
from skest.execution.watching import has_compiled_modules, has_hooks_of_all_modules
from skest.hooks.base import Hook
from skest.spec import EstimatorSpec
from skest.training import LOCAL, Halves, Step, trained_parameters

__all__ = ["make_inference", "make_step", "reason_to_stay_eager"]

_logger = logging.getLogger("skest")

# Recording costs as much as some 25 steps take longer when they are eager. Where nobody
# knows how many steps there will be, it is begun when that much may be lost already.
_WORTH_RECORDING = 60
_EAGER_STEPS = 20
# To record predictions costs as much as so many small batches take longer without.
_EAGER_INFERENCES = 60

# Recurrent layers refer to their variables by weak references, which can be called.
_NO_FUNCTIONS = (nn.Module, type, weakref.ref)
_KNOWN_IN_HOOKS = {"builtins", "collections", "numpy", "pathlib", "skest", "torch"}


def make_step(
    execution: str,
    spec: EstimatorSpec,
    hooks: Sequence[Hook],
    n_steps: int | None,
    *,
    is_input_known: bool,
    has_table: bool = False,
    halves: Halves = LOCAL,
) -> Step:
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
    is_input_known : bool
        Whether the input calls no code of the user's between two steps, see
        `skest.execution.known_input`.
    has_table : bool, default=False
        Whether all batches are rows of one table.
    halves : Halves, default=LOCAL
        The eager step.

    Returns
    -------
    callable
        ``step(features, labels) -> loss``.
    """
    eager = halves.eager(spec)
    if execution == "eager":
        return eager
    if any(hook.watches_all_gradients for hook in hooks):
        _logger.info("Training steps are taken eagerly: a hook watches gradients.")
        return eager
    is_watched = not is_input_known or _is_code_called_between_steps(spec, hooks)
    make = functools.partial(
        GraphStep,
        spec,
        is_watched=is_watched,
        has_table=has_table,
        program=_program_for(spec),
        halves=halves,
    )
    # What a step needs from servers may be known from the third one on only.
    first = 1 if halves is LOCAL else 2
    if execution == "graph":
        return make(eager_steps=first, report=_logger.warning)
    if n_steps is not None and n_steps < _WORTH_RECORDING:
        return eager
    reason = reason_to_stay_eager(spec)
    if reason is not None:
        _logger.info("Training steps are taken eagerly: %s.", reason)
        return eager
    eager_steps = _EAGER_STEPS if n_steps is None else first
    refusal = functools.partial(reason_to_stay_eager, spec)
    return make(eager_steps=eager_steps, report=_logger.info, refusal=refusal)


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
        ``compute(data, option)``, see `skest.execution.Inference`.
    *called : callable or None
        What of `spec` it calls beside the network.

    Returns
    -------
    callable
        ``infer(data, option)`` returns what `compute` does.
    """
    if execution == "eager":
        return compute
    if execution != "auto":
        is_known = reason_to_stay_eager(spec, called) is None
        watch = functools.partial(Impurity, spec.network, *called)
        return Inference(compute, eager_calls=1, watch=None if is_known else watch)
    refusal = functools.partial(reason_to_stay_eager, spec, called)
    return Inference(compute, eager_calls=_EAGER_INFERENCES, refusal=refusal)


def reason_to_stay_eager(
    spec: EstimatorSpec, called: Sequence[Callable[..., Any] | None] | None = None
) -> str | None:
    """Tell what speaks against recording the steps of a model unasked, if anything does.

    A recorded step repeats operations on tensors. Code of PyTorch and of skest does
    nothing else in a step; what a user's code does beside them nobody can know.

    Parameters
    ----------
    spec : EstimatorSpec
        The model.
    called : sequence of callable, default=None
        What of `spec` a step calls beside the network; None is the loss.

    Returns
    -------
    str or None
        The reason.

    Examples
    --------
    >>> import torch
    >>> from skest import EstimatorSpec, ModeKeys
    >>> from skest.execution.choice import reason_to_stay_eager
    >>> from skest.heads import RegressionHead
    >>> network = torch.nn.Linear(2, 1)
    >>> spec = EstimatorSpec(
    ...     ModeKeys.TRAIN,
    ...     network=network,
    ...     loss=RegressionHead().compute_loss,
    ...     optimizer=torch.optim.SGD(network.parameters()),
    ... )
    >>> reason_to_stay_eager(spec) is None
    True
    >>> handle = network.weight.register_hook(torch.sign)
    >>> reason_to_stay_eager(spec)
    'a parameter has hooks for its gradient'
    """
    if has_hooks_of_all_modules():
        return "hooks are registered for all modules"
    if spec.network is not None and has_compiled_modules(spec.network.modules()):
        return "torch.compile was called for a module"
    for part in _code_of(spec, (spec.loss,) if called is None else called):
        if not is_known_code(part):
            name = getattr(part, "__qualname__", type(part).__qualname__)
            return (
                f"'{name}' is not known to compute with tensors only; "
                "execution='graph' records it"
            )
    for parameter in trained_parameters(spec):
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            return "a parameter has hooks for its gradient"
    return None


def _is_code_called_between_steps(spec: EstimatorSpec, hooks: Sequence[Hook]) -> bool:
    """Tell whether code of the user's is called apart from steps that are not replayed."""
    updates = [getattr(o, "inner", o) for o in spec.optimizers] + [*spec.lr_schedulers]
    if not all(map(_is_known_hook, hooks)) or not all(map(is_known_code, updates)):
        return True
    # Steps of which gradients are watched are taken apart from the others.
    is_apart = any(hook.watches_gradients for hook in hooks)
    return is_apart and reason_to_stay_eager(spec) is not None


def _program_for(spec: EstimatorSpec) -> type[StepProgram]:
    is_on_gpu = any(p.device.type == "cuda" for p in trained_parameters(spec))
    return CudaGraphProgram if is_on_gpu else Program


def _is_known_hook(hook: Hook) -> bool:
    """Tell whether a hook, and what it holds, is not of the user's making."""
    if any(callable(getattr(Hook, name, None)) for name in vars(hook)):
        return False  # a method was replaced
    held = [hook, *vars(hook).values()]
    held += [item for part in held if isinstance(part, list | tuple) for item in part]
    origins = [
        getattr(part, "__module__", None) or type(part).__module__ for part in held
    ]
    return all(origin.partition(".")[0] in _KNOWN_IN_HOOKS for origin in origins)


def _code_of(
    spec: EstimatorSpec, called: Sequence[Callable[..., Any] | None]
) -> Iterator[Any]:
    """Yield modules, functions and optimizers that take part in a step."""
    network = spec.network or nn.Module()
    for module in network.modules():
        yield module
        yield from _functions_in(module)
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            yield from hooks.values()
        for hooks in (module._backward_hooks, module._backward_pre_hooks):
            yield from hooks.values()
    for function in called:
        yield from _functions(function)
    for optimizer in spec.optimizers:
        yield getattr(optimizer, "inner", optimizer)


def _functions_in(module: nn.Module) -> Iterator[Any]:
    """Yield functions that a module was given, or its forward if that was replaced."""
    for value in vars(module).values():
        for item in value if isinstance(value, list | tuple) else [value]:
            if callable(item) and not isinstance(item, _NO_FUNCTIONS):
                for part in _functions(item):
                    origin = getattr(part, "__module__", None) or ""
                    # Functions of tensors, such as those of torch.nn.functional.
                    if origin.partition(".")[0] != "torch":
                        yield part


def _functions(part: Any, seen: set[int] | None = None) -> Iterator[Any]:
    """Yield a function, the object that it is a method of, and the functions in that."""
    if isinstance(part, functools.partial):
        part = part.func
    yield part
    seen = set() if seen is None else seen
    owner = getattr(part, "__self__", part)
    if isinstance(owner, type | ModuleType) or not hasattr(owner, "__dict__"):
        return
    if id(owner) in seen:  # it holds a method of its own
        return
    seen.add(id(owner))
    if owner is not part:
        yield owner
    for value in vars(owner).values():
        for item in value if isinstance(value, list | tuple) else [value]:
            if callable(item) or hasattr(type(item), "compute_loss"):
                yield from _functions(item, seen)
