# SPDX-License-Identifier: Apache-2.0
"""Steps of optimizers, and who else wants to be called in them."""

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import optimizer as _optimizers
from torch.optim.optimizer import Optimizer

from skest._without_dynamo import inside

__all__ = ["has_step_hooks", "take_step"]

# What Optimizer makes of the `step` of every class: it calls hooks, and marks the step
# for a profiler.
_MARKING = Optimizer.profile_hook_step(Optimizer.step).__code__
# What the classes of torch make of their own `step`: it switches autograd off.
_SWITCHING = _optimizers._use_grad_for_differentiable(Optimizer.step).__code__


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Tell whether somebody wants to be called when an optimizer takes a step.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Its own hooks count, those of all optimizers, and a `step` that was replaced.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizer_steps import has_step_hooks
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])
    >>> has_step_hooks(optimizer)
    False
    >>> handle = optimizer.register_step_post_hook(lambda *arguments: None)
    >>> has_step_hooks(optimizer)
    True
    """
    return bool(
        _optimizers._global_optimizer_pre_hooks
        or _optimizers._global_optimizer_post_hooks
        or optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or "step" in vars(optimizer)  # by a wrapper that does more
    )


def take_step(optimizer: Optimizer) -> None:
    """Do what ``optimizer.step()`` does, without a mark where nobody profiles.

    The mark takes as long as a small layer; the first step of a process would import
    ``torch._dynamo``. Hooks are called as ever.

    Parameters
    ----------
    optimizer : torch.optim.Optimizer
        Has the gradients in its parameters.

    Raises
    ------
    RuntimeError
        As ``optimizer.step()``; where it takes no sparse gradients, with what to do.

    Examples
    --------
    >>> import torch
    >>> from skest.optimizer_steps import take_step
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.sum().backward()
    >>> take_step(torch.optim.SGD([weight], lr=0.5))
    >>> weight.data
    tensor([-0.5000, -0.5000])
    """
    step = type(optimizer).step
    # Others may have wrapped the function of the class once more.
    is_marking = getattr(step, "__code__", None) is _MARKING
    try:
        if (
            not is_marking
            or torch.autograd._profiler_enabled()
            or has_step_hooks(optimizer)
        ):
            optimizer.step()
        else:
            _step_unmarked(optimizer, step.__wrapped__)  # type: ignore[attr-defined]
    except RuntimeError as error:
        if "sparse gradients" not in str(error):
            raise
        name = type(optimizer).__name__
        raise RuntimeError(
            f"{error}. Tables of feature columns have such gradients. Wrap the optimizer, "
            f"skest.row_sparse.RowSparse({name}(...)): then it updates the rows that a "
            "batch touches."
        ) from error


def _step_unmarked(optimizer: Optimizer, step: Callable[..., Any]) -> None:
    plain = inside(step, _SWITCHING)
    if plain is step:
        step(optimizer)
    else:
        with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
            plain(optimizer)
