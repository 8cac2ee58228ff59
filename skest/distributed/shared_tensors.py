# SPDX-License-Identifier: Apache-2.0
"""`SharedTensors`: tensors in memory that several processes have in common."""

import json
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from skest.distributed.anonymous_file import anonymous_file

__all__ = ["SharedTensors"]

_ALIGNMENT = 64  # bytes: a cache line, so that counters of two processes share none
_COUNTER = 8  # bytes
_LENGTH = 8  # bytes of the number that stands before the table of contents


@dataclass(frozen=True)
class _Entry:
    """Where a tensor is."""

    dtype: str
    shape: tuple[int, ...]
    offset: int


class SharedTensors:
    """Tensors in a file without a name that processes map into their memory.

    Parameters
    ----------
    file : binary file
        What `create` made, in this process or in the one that started it.

    Attributes
    ----------
    file : binary file
        As given, to be inherited by other processes.
    tensors : dict of str to Tensor
        Views of the common memory: who writes to them writes for all.
    counters : ndarray of int64
        The counters, each of which one process may write.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.shared_tensors import SharedTensors
    >>> first = SharedTensors.create({"w": torch.zeros(2)}, n_counters=1)
    >>> second = SharedTensors(first.file)  # usually in another process
    >>> _ = second.tensors["w"].fill_(3)
    >>> first.tensors["w"]
    tensor([3., 3.])
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        length = int.from_bytes(os.pread(file.fileno(), _LENGTH, 0), "little")
        header = json.loads(os.pread(file.fileno(), length, _LENGTH))
        start, size = header["start"], header["size"]
        control = mmap.mmap(file.fileno(), start)
        n_counters, offset = header["n_counters"], header["counters"]
        step = _ALIGNMENT // _COUNTER
        self.counters = np.frombuffer(
            control, dtype=np.int64, count=n_counters * step, offset=offset
        )[::step]
        self._memory = mmap.mmap(file.fileno(), size, offset=start)
        self.tensors: dict[str, Tensor] = {}
        for row in header["groups"]:
            self.tensors.update(self._group(row))

    @classmethod
    def create(cls, tensors: Mapping[str, Tensor], n_counters: int) -> "SharedTensors":
        """Make a file with copies of tensors, and counters that are 0.

        Parameters
        ----------
        tensors : mapping of str to Tensor
            On the CPU.
        n_counters : int
            How many counters there shall be.
        """
        groups, end = _layout(tensors)
        header: dict[str, Any] = {"size": max(end, 1), "n_counters": n_counters}
        header["groups"] = groups
        # Numbers of a fixed width, because the text says where the rest begins.
        room = _LENGTH + len(json.dumps({**header, "start": 0, "counters": 0})) + 40
        header["counters"] = _aligned(room, _ALIGNMENT)
        end_of_counters = header["counters"] + n_counters * _ALIGNMENT
        header["start"] = _aligned(end_of_counters, mmap.ALLOCATIONGRANULARITY)
        file = anonymous_file(header["start"] + header["size"])
        text = json.dumps(header).encode()
        os.pwrite(file.fileno(), len(text).to_bytes(_LENGTH, "little") + text, 0)
        shared = cls(file)
        with torch.no_grad():
            for name, tensor in tensors.items():
                shared.tensors[name].copy_(tensor)
        return shared

    def _group(self, entries: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return tensors that are parts of one."""
        names = list(entries)
        dtype, shape, offset = entries[names[0]].values()
        n = math.prod(shape)
        whole = torch.empty(0, dtype=getattr(torch, dtype))
        if n:
            whole = torch.frombuffer(
                self._memory, dtype=whole.dtype, count=n * len(names), offset=offset
            )
        if len(names) == 1:
            return {names[0]: whole.view(shape)}
        return dict(zip(names, whole.unbind(), strict=True))


def _layout(tensors: Mapping[str, Tensor]) -> tuple[list[dict[str, Any]], int]:
    """Return where each tensor shall be, by groups, and how much room that takes.

    Single numbers of the same kind, which are step counters, are elements of one tensor,
    as `skest.execution.step` wants them.
    """
    kinds: dict[Any, list[str]] = {}
    for name, tensor in tensors.items():
        family = name.partition(":")[0], name.rpartition("/")[2], tensor.dtype
        kind = name if tensor.ndim else family
        kinds.setdefault(kind, []).append(name)
    groups, end = [], 0
    for names in kinds.values():
        first = tensors[names[0]]
        group = {}
        end = _aligned(end, _ALIGNMENT)
        for name in names:
            dtype = str(first.dtype).removeprefix("torch.")
            group[name] = asdict(_Entry(dtype, tuple(first.shape), end))
            end += first.numel() * first.element_size()
        groups.append(group)
    return groups, end


def _aligned(offset: int, to: int) -> int:
    return offset + -offset % to
