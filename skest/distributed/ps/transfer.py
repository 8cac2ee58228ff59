# SPDX-License-Identifier: Apache-2.0
"""The state of a server on its way, in blocks."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skest.core.tensor_files import Rows
from skest.distributed.ps.messages import WireError, dtype_named, name_of_dtype
from skest.distributed.ps.variables import Part

#: Tensors travel in blocks of this size.
BLOCK_BYTES = 1 << 24


class Block(NamedTuple):
    """A piece of one tensor of a part, in bytes."""

    tensor: int
    start: int
    size: int


def table_of_contents(part: Part[Any]) -> list[list[Any]]:
    """Return ``[name, dtype, shape]`` of each tensor, in the order of the part."""
    return [
        [name, name_of_dtype(tensor.dtype), list(tensor.shape)]
        for name, tensor in part.tensors.items()
    ]


def blocks_of(contents: list[list[Any]]) -> Iterator[Block]:
    """Yield the blocks of all tensors, in bytes."""
    for index, (_, dtype, shape) in enumerate(contents):
        size = torch.Size(shape).numel() * dtype_named(dtype).itemsize
        for start in range(0, size, BLOCK_BYTES):
            yield Block(index, start, min(BLOCK_BYTES, size - start))


class Arriving:
    """A part that comes block by block.

    Parameters
    ----------
    contents : list
        What `table_of_contents` returned.
    optimizers : list of dict
        Those of the part.

    Raises
    ------
    WireError
        If an entry of `contents` is none.
    """

    def __init__(self, contents: Any, optimizers: list[dict[str, Any]]) -> None:
        tensors = {}
        try:
            for name, dtype, shape in contents:
                tensors[str(name)] = torch.empty(shape, dtype=dtype_named(dtype))
        except (TypeError, ValueError, RuntimeError) as error:
            raise WireError(f"The list of tensors is not sound: {error}") from error
        self.part = Part(optimizers, tensors)
        self._left = sum(t.nbytes for t in tensors.values())
        self._bytes = [as_bytes(t) for t in tensors.values()]

    def put(self, block: Mapping[str, Any], content: Tensor) -> None:
        """Write a block.

        Raises
        ------
        WireError
            If there is no such place.
        """
        index, start, size = _checked(block)
        if index >= len(self._bytes) or start + size > len(self._bytes[index]):
            raise WireError("A block lies outside of its tensor.")
        if size > len(content):
            raise WireError("A block is not complete.")
        self._bytes[index][start : start + size] = content[:size]
        self._left -= size

    def complete(self) -> Part[Tensor]:
        """Return the part.

        Raises
        ------
        WireError
            If something is missing.
        """
        if self._left != 0:
            raise WireError(f"{self._left} bytes of the variables did not come.")
        return self.part


def block_of(part: Part[Any], block: Mapping[str, Any]) -> Tensor:
    """Return the bytes of a block.

    Raises
    ------
    WireError
        If there is no such block.
    """
    index, start, size = _checked(block)
    tensors = list(part.tensors.values())
    if index >= len(tensors) or size > BLOCK_BYTES:
        raise WireError("There is no such block.")
    return _bytes_of(tensors[index], start, size)


def _bytes_of(tensor: Rows, start: int, size: int) -> Tensor:
    """Return some bytes of a tensor as it would be in order, of which no copy is made."""
    if isinstance(tensor, Tensor) and not tensor.ndim:
        tensor = tensor.reshape(1)
    n_bytes = max(1, tensor.shape[1:].numel() * tensor.dtype.itemsize)  # of a row
    first, skipped = divmod(start, n_bytes)
    rows = tensor[first : -(-(start + size) // n_bytes)]
    return as_bytes(rows.cpu().contiguous())[skipped : skipped + size]


def _checked(block: Mapping[str, Any]) -> Block:
    """Return a block that came as JSON."""
    numbers: list[Any] = [block.get(key) for key in Block._fields]
    if not all(type(n) is int and n >= 0 for n in numbers):
        raise WireError("A block has no place.")
    return Block(*numbers)


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a contiguous tensor as a flat tensor of bytes."""
    return tensor.reshape(-1).view(torch.uint8)
