# SPDX-License-Identifier: Apache-2.0
"""Tables cut into shards: of `n`, number `i` has the rows ``i, i + n, i + 2 n, ...``."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from skest._tensor_files import Rows

__all__ = ["check_shard", "gathered_rows", "shard_length"]

_BLOCK_BYTES = 1 << 22


def shard_length(n_rows: int, index: int, n: int) -> int:
    """Return how many of `n_rows` rows shard `index` of `n` has.

    Examples
    --------
    >>> from skest.table_shards import shard_length
    >>> [shard_length(7, index, 3) for index in range(3)]
    [3, 2, 2]
    """
    return len(range(index, n_rows, n))


def check_shard(shard: Rows, n_rows: int, index: int, n: int) -> None:
    """Raise ValueError unless a shard has as many rows as it should have."""
    found, expected = tuple(shard.shape), shard_length(n_rows, index, n)
    if not found or found[0] != expected:
        raise ValueError(
            f"shard {index} of {n} of a table of {n_rows} rows should have {expected} "
            f"of them; its shape is {found}"
        )


def gathered_rows(
    shards: Sequence[Rows], n_rows: int, index: int = 0, n: int = 1
) -> Tensor:
    """Make one shard out of shards of another number.

    Parameters
    ----------
    shards : sequence of Tensor or Rows
        All shards of a table, in order. They are read in blocks of rows, and only those
        that have rows which are wanted.
    n_rows : int
        Rows of the table.
    index, n : int, default=0, 1
        Which shard of how many is wanted; the default is the whole table.

    Returns
    -------
    Tensor of shape (shard_length(n_rows, index, n), ...)
        A new tensor.

    Raises
    ------
    ValueError
        If a shard does not have the rows or the columns that it should have.

    Examples
    --------
    >>> import torch
    >>> from skest.table_shards import gathered_rows
    >>> table = torch.arange(7)
    >>> gathered_rows([table[0::2], table[1::2]], 7, index=1, n=3)
    tensor([1, 4])
    """
    m = len(shards)
    for j, shard in enumerate(shards):
        check_shard(shard, n_rows, j, m)
        if shard.shape[1:] != shards[0].shape[1:] or shard.dtype != shards[0].dtype:
            raise ValueError(
                f"shard {j} of {m} of a table is {shard.dtype} of shape "
                f"{tuple(shard.shape)}, but shard 0 {shards[0].dtype} of shape "
                f"{tuple(shards[0].shape)}"
            )
    rows = shard_length(n_rows, index, n)
    found = torch.empty((rows, *shards[0].shape[1:]), dtype=shards[0].dtype)
    # Row k here is row index + n k of the table. Those that lie in one of the old shards
    # are as far apart as it takes for n k to be a multiple of m, in both of them.
    period = m // math.gcd(n, m)
    for k in range(min(period, rows)):
        place, j = divmod(index + n * k, m)
        _take(shards[j], place, n * period // m, found[k::period])
    return found


def _take(shard: Rows, first: int, step: int, into: Tensor) -> None:
    """Copy every `step`-th row from `first` on, with some rows in memory at a time."""
    n_bytes = step * shard.shape[1:].numel() * shard.dtype.itemsize
    at_once = max(1, _BLOCK_BYTES // max(1, n_bytes))
    for start in range(0, len(into), at_once):
        part = into[start : start + at_once]
        begin = first + start * step
        part.copy_(shard[begin : begin + (len(part) - 1) * step + 1][::step])
