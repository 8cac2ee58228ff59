# SPDX-License-Identifier: Apache-2.0
"""Many tensors in one buffer, so that they travel as one."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from skest.distributed.variables import Variable
from skest.distributed.wire import dtype_named

__all__ = ["Flat"]

_ALIGNMENT = 64


class Flat:
    """A buffer of bytes, and a tensor for each variable that is a part of it.

    Parameters
    ----------
    variables : sequence of Variable
        In the order that the other side has.
    device : torch.device, default="cpu"
        Where the buffer is.

    Attributes
    ----------
    buffer : Tensor of uint8
        All of them, zeros at first.
    tensors : list of Tensor
        Parts of `buffer`, one for each variable.
    """

    def __init__(
        self, variables: Sequence[Variable], device: torch.device | str = "cpu"
    ) -> None:
        dtypes = [dtype_named(v.dtype) for v in variables]
        shapes = [v.shape for v in variables]
        ends = [0]
        for dtype, shape in zip(dtypes, shapes, strict=True):
            size = math.prod(shape) * dtype.itemsize
            ends.append(ends[-1] + -(-size // _ALIGNMENT) * _ALIGNMENT)
        self.buffer = torch.zeros(ends[-1], dtype=torch.uint8, device=device)
        self._layout = list(zip(ends[:-1], dtypes, shapes, strict=True))
        self.tensors = self.parts(self.buffer)

    def parts(self, buffer: Tensor) -> list[Tensor]:
        """Return the tensors in another buffer of the same size."""
        return [
            buffer[start : start + math.prod(shape) * dtype.itemsize]
            .view(dtype)
            .view(shape)
            for start, dtype, shape in self._layout
        ]
