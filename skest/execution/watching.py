# SPDX-License-Identifier: Apache-2.0
"""What recordings take for fixed, and who else wants to be called in a step."""

from collections.abc import Hashable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as _modules

from skest._random import is_known_code
from skest.execution.remembered import (
    PLAIN,
    hooks_of_tensor,
    remembered,
    remembered_by_modules,
)
from skest.optimizer_steps import has_step_hooks
from skest.spec import EstimatorSpec
from skest.training import trained_parameters

__all__ = [
    "fixed_parts",
    "has_compiled_modules",
    "has_hooks_of_all_modules",
    "has_hooks_of_updates",
    "options_of_updates",
    "slots_of_updates",
]

_MOST_HELD = 64
_NUMBERS = (bool, int, float)


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


def has_compiled_modules(modules: Iterable[nn.Module]) -> bool:
    """Tell whether ``torch.compile`` was called for a module.

    What compiled code does is no sequence of operations that somebody could watch.

    Parameters
    ----------
    modules : iterable of torch.nn.Module
        All of them are looked at, but not the modules in them.

    Returns
    -------
    bool

    Examples
    --------
    >>> import torch
    >>> from skest.execution.watching import has_compiled_modules
    >>> network = torch.nn.Linear(2, 1)
    >>> has_compiled_modules([network])
    False
    >>> has_compiled_modules([torch.compile(network)])
    True
    """
    return any(
        [
            m._compiled_call_impl is not None or "_orig_mod" in m._modules
            for m in modules
        ]
    )


def has_hooks_of_updates(spec: EstimatorSpec) -> bool:
    """Tell whether somebody wants to be called when an optimizer takes a step.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN.
    """
    for optimizer in spec.optimizers:
        if has_step_hooks(optimizer):
            return True
        inner = getattr(optimizer, "inner", None)
        if inner is not None and has_step_hooks(inner):
            return True
    return False


def fixed_parts(spec: EstimatorSpec) -> list[Any]:
    """Return where the variables are, and what modules and the loss are made of."""
    found: list[Any] = [torch.is_grad_enabled(), torch.get_default_dtype()]
    parameters = trained_parameters(spec)
    modules = [] if spec.network is None else list(spec.network.modules())
    for device in {parameter.device.type for parameter in parameters}:
        found.append(
            torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
        )
    for parameter in parameters:
        found += (parameter.data_ptr(), parameter.requires_grad)
        found += map(id, hooks_of_tensor(parameter))
    _add_modules(modules, found)
    for part in (*remembered_by_modules(modules), *remembered(spec.loss)):
        if type(part) in PLAIN:
            found.append(part)
            continue
        found.append(id(part))
        if isinstance(part, nn.Module):
            _add_modules(part.modules(), found)
        elif isinstance(part, Tensor) and part.layout == torch.strided:
            found.append(part.data_ptr())
    return found


def _add_modules(modules: Iterable[nn.Module], found: list[Any]) -> None:
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, dict):  # of parameters, buffers, modules or hooks
                if value:  # most are empty, and this is done before every step
                    found += map(id, value.values())
            else:
                is_number = isinstance(value, _NUMBERS)
                found.append(value if is_number else id(value))
                if isinstance(value, list):
                    for item in value[:_MOST_HELD]:
                        is_number = isinstance(item, _NUMBERS)
                        found.append(item if is_number else id(item))
        for buffer in module._buffers.values():
            if buffer is not None and buffer.layout == torch.strided:
                found.append(buffer.data_ptr())


def options_of_updates(spec: EstimatorSpec) -> list[Any]:
    """Return the options of the optimizers, and what their code remembers in Python.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN.

    Returns
    -------
    list
        For `skest.execution.impurity.are_same`. Optimizers that are not of PyTorch or
        skest may count wherever `skest.execution.remembered` looks.
    """
    found: list[Any] = []
    for optimizer in spec.optimizers:
        found.append(optimizer.state)
        for group in optimizer.param_groups:
            found += group["params"]
            for name, value in group.items():
                if isinstance(value, tuple):
                    found += value
                elif isinstance(value, Tensor):  # such as a rate; its numbers are read
                    found += (value, value.data_ptr())
                elif name != "params":
                    found.append(value)
        inner = getattr(optimizer, "inner", optimizer)
        if not is_known_code(inner):
            found += remembered(inner)
    return found


def slots_of_updates(spec: EstimatorSpec) -> dict[Hashable, tuple[Any, ...]]:
    """Return the slots of the optimizers by parameter and name, and where they are."""
    found: dict[Hashable, tuple[Any, ...]] = {}
    for optimizer in spec.optimizers:
        for parameter, slots in optimizer.state.items():
            named = slots if isinstance(slots, dict) else {"": slots}
            for name, slot in named.items():
                is_strided = isinstance(slot, Tensor) and slot.layout == torch.strided
                place = slot.data_ptr() if is_strided else None
                found[id(parameter), name] = slot, place
    return found
