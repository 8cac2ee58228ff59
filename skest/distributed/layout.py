# SPDX-License-Identifier: Apache-2.0
"""`Layout`: tensors that lie one behind the other in one buffer of bytes."""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

#: What a tensor is before it has a place: its type and shape.
Kind = tuple[torch.dtype, Sequence[int]]

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
            end = self.size + math.prod(shape) * dtype.itemsize
            self._places.append((slice(self.size, end), dtype, tuple(shape)))
            self.size = -(-end // _ALIGNMENT) * _ALIGNMENT

    def parts(self, buffer: Tensor) -> list[Tensor]:
        """Return the tensors in a buffer of bytes; who writes to them writes there."""
        return [
            buffer[place].view(dtype).view(shape)
            for place, dtype, shape in self._places
        ]
