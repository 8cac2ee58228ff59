# SPDX-License-Identifier: Apache-2.0
"""Gradients of row tables, averaged over processes."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from skest.distributed.process_group import Peers

_NONE, _ROWS, _DENSE = range(3)
_ALIGNMENT = 8  # bytes: tensors of every type may begin at a multiple of it


def average_gradients(peers: Peers, tables: Sequence[Tensor], loss: Tensor) -> Tensor:
    """Replace the gradients of tables by their means over all processes.

    A gradient of rows becomes that of the rows of all processes, one behind the other by
    rank, as if one process had looked them up; nothing is sorted or added here. Rows of
    all tables go over the network together.

    Parameters
    ----------
    peers : Peers
        The processes; each has the same tables.
    tables : sequence of Tensor
        Some of their gradients may be dense, or None, also in some processes only.
    loss : Tensor of shape ()
        Loss of this process.

    Returns
    -------
    Tensor of shape ()
        The mean of the losses.
    """
    if peers.size == 1:
        return loss
    own = [(_kind(table), _n_rows(table)) for table in tables]
    head = torch.tensor([loss.item()], dtype=torch.float64).view(torch.int64)
    heads = peers.gathered(torch.cat([head, torch.tensor(own).view(-1).long()]))
    mean = heads[:, 0].contiguous().view(torch.float64).sum() / peers.size
    described = heads[:, 1:].view(peers.size, len(tables), 2)
    kinds = described[..., 0].amax(dim=0).tolist()
    in_rows = []
    for index, (table, kind) in enumerate(zip(tables, kinds, strict=True)):
        if kind == _DENSE:
            table.grad = peers.total(_dense_gradient(table)) / peers.size
        elif kind == _ROWS:
            in_rows.append(index)
    if in_rows:
        n_rows = described[:, in_rows, 1].tolist()
        _average_rows(peers, [tables[index] for index in in_rows], n_rows)
    return mean.to(loss)


def _kind(table: Tensor) -> int:
    if table.grad is None:
        return _NONE
    return _ROWS if table.grad.is_sparse else _DENSE


def _n_rows(table: Tensor) -> int:
    return table.grad._nnz() if _kind(table) == _ROWS and table.grad is not None else 0


def _dense_gradient(table: Tensor) -> Tensor:
    if table.grad is None:
        return torch.zeros_like(table)
    return table.grad.to_dense() if table.grad.is_sparse else table.grad


def _average_rows(
    peers: Peers, tables: Sequence[Tensor], n_rows: Sequence[Sequence[int]]
) -> None:
    """Exchange the rows of tables; `n_rows` counts those of every rank and table."""
    shapes = [
        [
            shape
            for table, n in zip(tables, of, strict=True)
            for shape in _like(table, n)
        ]
        for of in n_rows
    ]
    sizes = [sum(_padded(n_bytes) for *_, n_bytes in of) for of in shapes]
    payload = tables[0].new_zeros(max(sizes), dtype=torch.uint8)
    places = _taken_apart(payload, shapes[peers.rank])
    pieces = [piece for table in tables for piece in _ids_and_values(table)]
    for place, piece in zip(places, pieces, strict=True):
        place.copy_(piece)
    rows = peers.gathered(payload)
    found = [_taken_apart(row, of) for row, of in zip(rows, shapes, strict=True)]
    for index, table in enumerate(tables):
        ids = torch.cat([parts[2 * index] for parts in found])
        values = torch.cat([parts[2 * index + 1] for parts in found]) / peers.size
        table.grad = torch.sparse_coo_tensor(
            ids[None], values, table.shape, is_coalesced=False, check_invariants=False
        )


def _ids_and_values(table: Tensor) -> tuple[Tensor, Tensor]:
    grad = table.grad
    if grad is None:
        ids = torch.empty(0, dtype=torch.int64, device=table.device)
        return ids, table.detach()[:0]
    return grad._indices()[0], grad._values()


_Like = tuple[torch.dtype, tuple[int, ...], int]


def _like(table: Tensor, n_rows: int) -> tuple[_Like, _Like]:
    """Return type, shape and bytes of the ids and of the values of so many rows."""
    shape = (n_rows, *table.shape[1:])
    n_bytes = math.prod(shape) * table.element_size()
    return (torch.int64, (n_rows,), 8 * n_rows), (table.dtype, shape, n_bytes)


def _padded(n_bytes: int) -> int:
    return math.ceil(n_bytes / _ALIGNMENT) * _ALIGNMENT


def _taken_apart(row: Tensor, shapes: Sequence[_Like]) -> list[Tensor]:
    """Return the tensors that lie one behind the other in a row of bytes."""
    found, start = [], 0
    for dtype, shape, n_bytes in shapes:
        found.append(row[start : start + n_bytes].view(dtype).view(shape))
        start += _padded(n_bytes)
    return found
