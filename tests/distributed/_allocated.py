# SPDX-License-Identifier: Apache-2.0
"""Counts the memory of new tensors."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Allocated(TorchDispatchMode):
    """Bytes of tensors that operations make, at their peak and in all.

    What maps memory by other ways, as `LazyZeros` does, is not counted.
    """

    def __init__(self):
        super().__init__()
        self.now = self.peak = self.n_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {*map(_place, _tensors((*args, *(kwargs or {}).values())))}
        found = func(*args, **(kwargs or {}))
        for tensor in _tensors([found]):
            if _place(tensor) not in given and tensor.device.type == "cpu":
                self._count(tensor.untyped_storage())
        return found

    def _count(self, storage):
        n_bytes = storage.nbytes()
        self.n_bytes += n_bytes
        self.now += n_bytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, n_bytes)

    def _freed(self, n_bytes):
        self.now -= n_bytes


def _tensors(values):
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.layout == torch.strided:
                yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _place(tensor):
    return tensor.untyped_storage().data_ptr()
