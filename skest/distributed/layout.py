# SPDX-License-Identifier: Apache-2.0
"""Tensors before they come: what other processes are told of them, and their places."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

#: What a tensor is before it has a place: its type and shape.
Kind = tuple[torch.dtype, Sequence[int]]

# A list, and not getattr(torch, ...): what others send must not choose any name.
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.bool),
        *(torch.uint64, torch.uint32, torch.uint16, torch.uint8),
        *(torch.complex64, torch.complex128),
    )
}
# Bytes, of all memory that torch allocates: how sums are rounded depends on where the
# numbers lie. It is a cache line, too, so that processes disturb each other less.
_ALIGNMENT = 64


class Layout:
    """Where tensors are in a buffer.

    One buffer is sent, received and copied at once, whatever the number of variables; and
    processes that have the same kinds of tensors in the same order find the same places.

    Parameters
    ----------
    kinds : iterable of (dtype, shape)
        Of the tensors.

    Attributes
    ----------
    size : int
        Bytes of the buffer.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.layout import Layout
    >>> layout = Layout([(torch.float32, (2,)), (torch.int64, ())])
    >>> buffer = torch.zeros(layout.size, dtype=torch.uint8)
    >>> _ = layout.parts(buffer)[0].fill_(3)
    >>> layout.parts(buffer)
    [tensor([3., 3.]), tensor(0)]
    """

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._places = []
        self.size = 0
        for dtype, shape in kinds:
            # prod(()) is 1: a number has a place, too.
            end = self.size + math.prod(shape) * dtype.itemsize
            self._places.append((slice(self.size, end), dtype, tuple(shape)))
            self.size = -(-end // _ALIGNMENT) * _ALIGNMENT

    def parts(self, buffer: Tensor) -> list[Tensor]:
        """Return the tensors in a buffer of bytes; who writes to them writes there."""
        return [
            buffer[place].view(dtype).view(shape)
            for place, dtype, shape in self._places
        ]


def name_of_dtype(dtype: torch.dtype) -> str:
    """Return what a type is called in messages."""
    return str(dtype).removeprefix("torch.")


def dtype_named(name: Any) -> torch.dtype:
    """Return the type that `name_of_dtype` names; raise ValueError if there is none."""
    if name not in _DTYPES:
        raise ValueError(f"Variables of type {name!r} can't be sent.")
    return _DTYPES[name]


def outline(tensors: Mapping[str, Any]) -> list[list[Any]]:
    """Return names, types and shapes of tensors, as JSON holds them."""
    return [[n, name_of_dtype(t.dtype), [*t.shape]] for n, t in tensors.items()]


def room_for(outlined: Iterable[Sequence[Any]]) -> dict[str, Tensor]:
    """Return tensors without values, of which another process has sent the `outline`."""
    return {
        str(name): torch.empty(shape, dtype=dtype_named(dtype))
        for name, dtype, shape in outlined
    }
