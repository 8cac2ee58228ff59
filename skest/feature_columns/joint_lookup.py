# SPDX-License-Identifier: Apache-2.0
"""Rows of several tables at once."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from skest.feature_columns.lookup import clipped, combined_rows, row_lookup

__all__ = ["Lookup", "looked_up", "row_lookups"]


class Lookup(NamedTuple):
    """What to look up; see `skest.feature_columns.lookup.combined_rows`."""

    weight: Tensor
    ids: Tensor
    combiner: str
    max_norm: float | None = None
    factors: Tensor | None = None


def looked_up(lookups: Sequence[Lookup]) -> list[Tensor]:
    """Return for each look-up what `combined_rows` does, bit for bit.

    Cells with one id are looked up together in tables of equal width: their ids are
    searched for missing ones at once, and so are zeros set.

    Parameters
    ----------
    lookups : sequence of Lookup
        All with the same number of rows.

    Returns
    -------
    list of Tensor
        Of shape (n_rows, dimension).

    Examples
    --------
    >>> import torch
    >>> from skest.feature_columns.joint_lookup import Lookup, looked_up
    >>> first, second = torch.tensor([[1.0], [2.0]]), torch.tensor([[3.0]])
    >>> ids = torch.tensor([[1], [-1]])
    >>> rows = looked_up([Lookup(first, ids, "sum"), Lookup(second, -1 - ids * 0, "sum")])
    >>> [found.tolist() for found in rows]
    [[[2.0], [0.0]], [[0.0], [0.0]]]
    """
    found: dict[int, Tensor] = {}
    plain: dict[Any, list[int]] = defaultdict(list)
    for i, lookup in enumerate(lookups):
        if lookup.factors is None and lookup.ids.shape[1] == 1:
            plain[lookup.weight.shape[1], lookup.weight.dtype].append(i)
        else:
            found[i] = combined_rows(*lookup)
    for together in plain.values():
        chosen = [lookups[i] for i in together]
        rows = row_lookups([c.weight for c in chosen], [c.ids for c in chosen])
        for i, lookup, values in zip(together, chosen, rows, strict=True):
            found[i] = clipped(values, lookup.max_norm)
    return [found[i] for i in range(len(lookups))]


def row_lookups(weights: Sequence[Tensor], ids: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return for each table what `skest.feature_columns.lookup.row_lookup` does.

    Parameters
    ----------
    weights : sequence of Tensor of shape (num_buckets, dimension)
        Tables of equal width.
    ids : sequence of Tensor of int64, shape (n_rows, 1)
        Row numbers, or -1, for each table.

    Returns
    -------
    sequence of Tensor of shape (n_rows, dimension)
        Each table is looked up by itself and has a sparse gradient of its own.
    """
    if len(weights) == 1:
        return [row_lookup(weights[0], ids[0][:, 0])]
    stacked = torch.cat(list(ids)).view(len(ids), -1)
    rows = stacked.clamp(min=0).unbind()
    found = [F.embedding(r, w, sparse=True) for r, w in zip(rows, weights, strict=True)]
    missing = (stacked < 0).unsqueeze(-1)
    return torch.stack(found).masked_fill(missing, 0).unbind()
