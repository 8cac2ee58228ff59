# SPDX-License-Identifier: Apache-2.0
"""Tables as they were at a moment, while rows of them go on changing.

Nothing is copied at that moment: a row is, before it changes for the first time.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skest._tensor_files import Rows
from skest.distributed.lazy_memory import LazyZeros

__all__ = ["FrozenPart", "FrozenRows", "KeptRows"]


class FrozenPart(NamedTuple):
    """What a server had at a moment; see `skest.distributed.variables.Part`."""

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
    >>> from skest.distributed.frozen_rows import KeptRows
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
