# SPDX-License-Identifier: Apache-2.0
"""Which memory a recorded step needs, and for how long."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from skest.execution.recording import Call, Value
from skest.execution.simplification import Storages

__all__ = ["Arena", "dense_parts", "is_dense", "last_uses"]


class Arena:
    """Memory that several results use one after the other.

    Examples
    --------
    >>> import torch
    >>> from skest.execution.memory import Arena
    >>> arena = Arena()
    >>> first = arena.take(torch.empty(2, 3))
    >>> arena.give_back(first)
    >>> second = arena.take(torch.empty(3, 2))
    >>> second.shape, second.data_ptr() == first.data_ptr()
    (torch.Size([3, 2]), True)
    """

    def __init__(self) -> None:
        self._free: dict[Any, list[Tensor]] = defaultdict(list)

    def take(self, example: Tensor) -> Tensor:
        """Return a tensor of the shape, strides, type and device of `example`."""
        free = self._free[_kind(example)]
        if not free:
            return torch.empty_strided(
                example.shape,
                example.stride(),
                dtype=example.dtype,
                device=example.device,
            )
        return free.pop().as_strided(example.shape, example.stride())

    def give_back(self, tensor: Tensor) -> None:
        """Let another result use the memory of a tensor that `take` returned."""
        self._free[_kind(tensor)].append(tensor)


def _kind(tensor: Tensor) -> Any:
    return tensor.numel(), tensor.dtype, tensor.device


def is_dense(tensor: Tensor) -> bool:
    """Tell whether the elements of a tensor fill one piece of memory, each once."""
    if tensor.layout != torch.strided or not tensor.numel():
        return False
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def dense_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return a tensor, or if it is sparse its ids and its values.

    Examples
    --------
    >>> import torch
    >>> from skest.execution.memory import dense_parts
    >>> dense_parts(torch.eye(3)[2].to_sparse())
    (tensor([[2]]), tensor([1.]))
    """
    return (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)


def last_uses(
    calls: Sequence[Call], kept: Iterable[Value], storages: Storages
) -> dict[Value, float]:
    """Return the position of the last call that needs a piece of memory.

    Parameters
    ----------
    calls : sequence of Call
        The step.
    kept : iterable of Value
        What has to stay after it.
    storages : Storages
        Which values share memory.

    Returns
    -------
    dict of Value to float
        By root. Infinity for what stays.
    """
    last: dict[Value, float] = {storages.root(value): math.inf for value in kept}
    for position in reversed(range(len(calls))):
        call = calls[position]
        results = [storages.root(value) for value in call.results]
        end = float(position)
        touched = [*call.results, *call.arguments]
        if any(value.tensor.layout != torch.strided for value in touched):
            # Sparse tensors share memory with what they are made of, and their parts.
            end = max([end, *(last.get(root, end) for root in results)])
        for root in map(storages.root, touched):
            last[root] = max(last.get(root, end), end)
    return last
