# SPDX-License-Identifier: Apache-2.0
"""Puts the step counters of an optimizer side by side."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer

__all__ = ["join_counters"]


def join_counters(optimizers: Iterable[Optimizer]) -> bool:
    """Let slots of single numbers be elements of one tensor, with the same values.

    Every parameter has a counter of its own, which is a tensor, and to add 1 to each
    takes longer than the update of a small layer. To add 1 to one tensor does not.

    Parameters
    ----------
    optimizers : iterable of Optimizer
        They have taken a step.

    Returns
    -------
    bool
        Whether there are other tensors than before; recordings work on those of before.

    Examples
    --------
    >>> import torch
    >>> from skest.execution.counters import join_counters
    >>> network = torch.nn.Linear(2, 1)
    >>> network(torch.ones(1, 2)).sum().backward()
    >>> optimizer = torch.optim.Adagrad(network.parameters())
    >>> optimizer.step()
    >>> join_counters([optimizer]), join_counters([optimizer])
    (True, False)
    >>> first, second = (slots["step"] for slots in optimizer.state.values())
    >>> first._base is second._base, first
    (True, tensor(1.))
    """
    has_joined = False
    for optimizer in optimizers:
        counters: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for slots in optimizer.state.values():
            for name, slot in slots.items() if isinstance(slots, dict) else ():
                if isinstance(slot, Tensor) and slot.ndim == 0:
                    counters[name, slot.dtype, slot.device].append(slots)
        for (name, _, _), having in counters.items():
            if len({slots[name].untyped_storage().data_ptr() for slots in having}) == 1:
                continue  # done before, and recordings rely on it
            joined = torch.stack([slots[name] for slots in having])
            for slots, element in zip(having, joined.unbind(), strict=True):
                slots[name] = element
            has_joined = True
    return has_joined
