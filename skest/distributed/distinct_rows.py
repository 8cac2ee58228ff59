# SPDX-License-Identifier: Apache-2.0
"""Every row once, of those that are asked for, for several tables at the same time."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
from torch import Tensor

from skest.row_sparse import first_places, summed_at

__all__ = ["Distinct", "counted_through", "distinct_rows"]


@dataclass(frozen=True)
class Distinct:
    """Rows of some tables, each once; tables are one behind the other.

    Parameters
    ----------
    given : list of int
        How many ids of each table there were.
    through : Tensor of int64, shape (sum(given),)
        All of them, see `counted_through`.
    places : Tensor of int64, shape (sum(given),)
        For every id a place where it stands, the same for equal ids of a table.
    kept : Tensor of int64
        These places, ascending.
    counts : list of int
        How many of them belong to each table.
    ids : tuple of Tensor
        Of each table, in the order of `kept`.
    """

    given: list[int]
    through: Tensor
    places: Tensor
    kept: Tensor
    counts: list[int]
    ids: tuple[Tensor, ...]

    def summed(self, values: Sequence[Tensor]) -> list[Tensor]:
        """Return for each table the sums of the values of equal ids, in their order.

        Parameters
        ----------
        values : sequence of Tensor
            Of each table, one for each id that was given.
        """
        found: list[Tensor] = []
        ends = list(accumulate(self.given, initial=0))
        kept_ends = list(accumulate(self.counts, initial=0))
        for first, last in _alike(values):
            start, end = ends[first], ends[last]
            kept = self.kept[kept_ends[first] : kept_ends[last]] - start
            together = torch.cat(list(values[first:last]))
            sums = summed_at(self.places[start:end] - start, together)
            found += sums.index_select(0, kept).split(self.counts[first:last])
        return found


def counted_through(ids: Mapping[int, Tensor], starts: Sequence[int]) -> Tensor:
    """Return ids of tables, by their numbers, as if the tables were one.

    Parameters
    ----------
    ids : dict of int to Tensor of int64, shape (n,)
        By the numbers of tables.
    starts : sequence of int
        Where the rows of each table begin.
    """
    return torch.cat([of_table + starts[n] for n, of_table in ids.items()])


def distinct_rows(
    ids: Mapping[int, Tensor],
    starts: Sequence[int],
    scratch: Tensor,
    known: Distinct | None = None,
) -> Distinct:
    """Find every row once.

    Parameters
    ----------
    ids : dict of int to Tensor of int64, shape (n,)
        By the numbers of tables.
    starts : sequence of int
        Where the rows of each table begin if all of them are counted through.
    scratch : Tensor of int32
        An element for every row of all tables. What is in it does not matter, and is
        overwritten.
    known : Distinct, default=None
        What was found before, which is returned again if it is of the same ids.

    Returns
    -------
    Distinct
        Tables are in the order of `ids`.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.distinct_rows import distinct_rows
    >>> ids = {0: torch.tensor([4, 1, 4]), 1: torch.tensor([1])}
    >>> found = distinct_rows(ids, [0, 5], torch.zeros(10, dtype=torch.int32))
    >>> found.ids
    (tensor([1, 4]), tensor([1]))
    >>> found.summed([torch.tensor([1.0, 2.0, 3.0]), torch.tensor([7.0])])
    [tensor([2., 4.]), tensor([7.])]
    """
    given = [len(of_table) for of_table in ids.values()]
    through = counted_through(ids, starts)
    if (
        known is not None
        and known.given == given
        and torch.equal(known.through, through)
    ):
        return known
    places = first_places(through, scratch)
    kept = (places == torch.arange(len(places), device=places.device)).nonzero().ravel()
    ends = torch.tensor(list(accumulate(given, initial=0)), device=places.device)
    counts = torch.searchsorted(kept, ends).diff().tolist()
    own = torch.cat(list(ids.values())).index_select(0, kept).split(counts)
    return Distinct(given, through, places, kept, counts, own)


def _alike(values: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """Yield where tensors that can be one begin and end."""
    end = 0
    for _, members in groupby(values, lambda v: (v.shape[1:], v.dtype)):
        first, end = end, end + len(list(members))
        yield first, end
