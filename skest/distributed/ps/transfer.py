# SPDX-License-Identifier: Apache-2.0
"""The state of a server on its way, in blocks, while its rows go on changing."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skest.core.tensor_files import Rows
from skest.distributed.ps.lazy_tables import LazyZeros
from skest.distributed.ps.messages import WireError, dtype_named, name_of_dtype
from skest.distributed.ps.variables import Part


class FrozenPart(NamedTuple):
    """What a server had at a moment; see `skest.distributed.ps.variables.Part`."""

    optimizers: list[dict[str, Any]]
    tensors: Mapping[str, Rows]


class KeptRows:
    """The rows that changed since a moment, of tensors whose rows change together.

    Parameters
    ----------
    tensors : dict of str to Tensor
        A table and its slots, all with the same number of rows. Who changes rows of them
        does so in place, and calls `keep` before.
    lock : context manager
        Held by who changes rows.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], lock: AbstractContextManager[object]
    ) -> None:
        self._tensors, self._lock = tensors, lock
        self._kept: dict[str, list[Tensor]] = {name: [] for name in tensors}
        (n_rows,) = {len(tensor) for tensor in tensors.values()}
        # Where the rows are in what is kept, from 1 on; 0 is nowhere.
        self._place = LazyZeros((n_rows,), torch.int32).tensor
        self._n_kept = 0

    def keep(self, ids: Tensor) -> None:
        """Copy rows that will change, unless they are copied already.

        Parameters
        ----------
        ids : Tensor of int64, shape (n,)
            No row is there twice.
        """
        new = ids[self._place.index_select(0, ids) == 0]
        if not len(new):
            return
        first, self._n_kept = self._n_kept + 1, self._n_kept + len(new)
        places = torch.arange(first, self._n_kept + 1, dtype=torch.int32)
        self._place.index_copy_(0, new, places)
        for name, tensor in self._tensors.items():
            self._kept[name].append(tensor.index_select(0, new))

    def frozen(self) -> dict[str, "FrozenRows"]:
        """Return all tensors as they were at the moment when this was made."""
        return {name: FrozenRows(self, name, t) for name, t in self._tensors.items()}

    def rows(self, name: str, block: slice) -> Tensor:
        """Return a copy of some rows as they were."""
        with self._lock:
            found = self._tensors[name][block].clone()
            place = self._place[block]
            changed = place.nonzero().ravel()
            if len(changed):
                kept = self._kept[name]
                if len(kept) > 1:
                    kept[:] = [torch.cat(kept)]
                found[changed] = kept[0].index_select(0, place[changed] - 1)
        return found


class FrozenRows:
    """A table as it was at a moment; blocks of rows can be read.

    Parameters
    ----------
    source : KeptRows
        Has the rows that changed.
    name : str
        Of the tensor in it.
    tensor : Tensor
        As it is now.

    Attributes
    ----------
    shape : torch.Size
        As that of a tensor.
    dtype : torch.dtype
        Of the values.

    Examples
    --------
    >>> import threading
    >>> import torch
    >>> from skest.distributed.ps.transfer import KeptRows
    >>> table = torch.arange(4.0)
    >>> kept = KeptRows({"table": table}, threading.RLock())
    >>> frozen = kept.frozen()["table"]
    >>> kept.keep(torch.tensor([2]))
    >>> table[2] = 7
    >>> frozen[1:], table[1:]
    (tensor([1., 2., 3.]), tensor([1., 7., 3.]))
    """

    def __init__(self, source: KeptRows, name: str, tensor: Tensor) -> None:
        self._source, self._name = source, name
        self.shape, self.dtype = tensor.shape, tensor.dtype

    def __getitem__(self, block: slice) -> Tensor:
        return self._source.rows(self._name, block)


#: Tensors travel in blocks of this size.
BLOCK_BYTES = 1 << 24


class Block(NamedTuple):
    """A piece of one tensor of a part, in bytes."""

    tensor: int
    start: int
    size: int


def table_of_contents(part: Part | FrozenPart) -> list[list[Any]]:
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

    def complete(self) -> Part:
        """Return the part.

        Raises
        ------
        WireError
            If something is missing.
        """
        if self._left != 0:
            raise WireError(f"{self._left} bytes of the variables did not come.")
        return self.part


def block_of(part: Part | FrozenPart, block: Mapping[str, Any]) -> Tensor:
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
