# SPDX-License-Identifier: Apache-2.0
"""What recordings take for fixed, and who else wants to be called in a step."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as _modules
from torch.optim import optimizer as _optimizers

from skest.spec import EstimatorSpec
from skest.training import trained_parameters

__all__ = [
    "fixed_parts",
    "has_hooks_of_all_modules",
    "has_hooks_of_updates",
    "options_of_updates",
    "slots_of_updates",
]


def has_hooks_of_all_modules() -> bool:
    """Tell whether hooks are registered that are called for every module there is.

    Examples
    --------
    >>> from torch.nn.modules.module import register_module_forward_hook
    >>> from skest.execution.watching import has_hooks_of_all_modules
    >>> handle = register_module_forward_hook(lambda module, inputs, output: None)
    >>> has_hooks_of_all_modules()
    True
    >>> handle.remove()
    >>> has_hooks_of_all_modules()
    False
    """
    return bool(
        _modules._global_forward_hooks
        or _modules._global_forward_pre_hooks
        or _modules._global_backward_hooks
        or _modules._global_backward_pre_hooks
    )


def has_hooks_of_updates(spec: EstimatorSpec) -> bool:
    """Tell whether somebody wants to be called when an optimizer takes a step.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN.
    """
    if (
        _optimizers._global_optimizer_pre_hooks
        or _optimizers._global_optimizer_post_hooks
    ):
        return True
    for optimizer in spec.optimizers:
        for rule in (optimizer, getattr(optimizer, "inner", optimizer)):
            if rule._optimizer_step_pre_hooks or rule._optimizer_step_post_hooks:
                return True
            if "step" in vars(rule):  # replaced, by a wrapper that does more
                return True
    return False


def fixed_parts(spec: EstimatorSpec) -> list[Any]:
    """Return where the variables are, and all attributes of the modules."""
    modules = [] if spec.network is None else list(spec.network.modules())
    found: list[Any] = [
        (p.data_ptr(), p.requires_grad) for p in trained_parameters(spec)
    ]
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, dict):  # of parameters, buffers, modules or hooks
                found += map(id, value.values())
            else:
                is_number = isinstance(value, bool | int | float)
                found.append(value if is_number else id(value))
    return found


def options_of_updates(spec: EstimatorSpec) -> list[Any]:
    """Return the options of the optimizers, and which parameters they have."""
    found: list[Any] = []
    for optimizer in spec.optimizers:
        found.append(id(optimizer.state))
        for group in optimizer.param_groups:
            found += map(id, group["params"])
            for value in group.values():
                if isinstance(value, bool | int | float | tuple):
                    found.append(value)
                elif isinstance(value, Tensor):  # such as a rate; its numbers are read
                    found += (id(value), value.data_ptr())
    return found


def slots_of_updates(spec: EstimatorSpec) -> list[Any]:
    """Return which tensors the optimizers keep, and where."""
    found: list[Any] = []
    for optimizer in spec.optimizers:
        for slots in optimizer.state.values():
            for slot in slots.values():
                found.append(id(slot))
                if isinstance(slot, Tensor) and slot.layout == torch.strided:
                    found.append(slot.data_ptr())
    return found
