# SPDX-License-Identifier: Apache-2.0
"""Large tensors of zeros that need memory only where they are written to."""

import mmap
import platform
import sys
import weakref
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["LazyZeros"]

_KNOWN = {("linux", "x86_64"), ("linux", "aarch64")}
# Python has the name from 3.13 on.
_NOT_RESERVED = getattr(
    mmap,
    "MAP_NORESERVE",
    0x4000 if (sys.platform, platform.machine()) in _KNOWN else 0,
)
_CAN_FORGET = hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MADV_DONTNEED")


class LazyZeros:
    """A tensor of zeros on the CPU whose pages come into being when they are touched.

    Parameters
    ----------
    shape : tuple of int
        Its shape.
    dtype : torch.dtype
        Its type.

    Attributes
    ----------
    tensor : Tensor
        The tensor.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.lazy_memory import LazyZeros
    >>> large = LazyZeros((10**9, 16), torch.float32)
    >>> large.tensor[123_456_789] = 1
    >>> float(large.tensor[123_456_789].sum())
    16.0
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        n_bytes = max(1, torch.Size(shape).numel() * dtype.itemsize)
        if _CAN_FORGET:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            flags |= _NOT_RESERVED
            self._memory = mmap.mmap(-1, n_bytes, flags=flags)
        else:
            self._memory = mmap.mmap(-1, n_bytes)
        self.tensor = _tensor_in(self._memory, shape, dtype)

    def weakly(self) -> Callable[[], Tensor | None]:
        """Return what gives the tensor as long as something holds its memory."""
        memory = weakref.ref(self._memory)
        shape, dtype = tuple(self.tensor.shape), self.tensor.dtype

        def tensor() -> Tensor | None:
            held = memory()
            return None if held is None else _tensor_in(held, shape, dtype)

        return tensor

    def forget(self) -> None:
        """Give the memory back; the tensor is all zeros again."""
        if _CAN_FORGET:
            self._memory.madvise(mmap.MADV_DONTNEED)
        else:
            self.tensor.zero_()


def _tensor_in(memory: mmap.mmap, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    used = torch.Size(shape).numel() * dtype.itemsize
    return whole[:used].view(dtype).view(shape)
