# SPDX-License-Identifier: Apache-2.0
"""`SeededLoader`: a DataLoader whose order can be repeated."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader

from skest._random import RunRandom

__all__ = ["SeededLoader"]

_END = object()


class SeededLoader:
    """A DataLoader without a generator of its own, which draws from one seed.

    Such a loader takes its order, and the seeds of its workers, from torch's global
    generator. That stays what draws the seed here, so that ``torch.manual_seed`` has the
    last word as ever; but an interrupted training that goes on with the seed sees the
    rows that it has not seen. It is a `skest.inputs.resumable.Resumable`.

    Parameters
    ----------
    loader : torch.utils.data.DataLoader
        Its ``generator`` is None.
    seed : int, default=None
        None draws one from torch's global generator.
    n_skipped : int, default=0
        How many batches to leave out; they are loaded nevertheless.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> from skest.inputs.seeded_loader import SeededLoader
    >>> data = SeededLoader(DataLoader(range(9), batch_size=9, shuffle=True))
    >>> [order] = data
    >>> [again] = data.resumed(0, data.seeds)
    >>> bool((order == again).all())
    True
    """

    #: One pass is what can be repeated: workers may be at work in it.
    is_restartable = False

    def __init__(
        self, loader: DataLoader[Any], seed: int | None = None, n_skipped: int = 0
    ) -> None:
        self._loader = loader
        self._n_skipped = n_skipped
        if seed is None:
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
        self.seeds = [seed]

    @property
    def kind(self) -> str:
        """What the data are, in words."""
        return type(self._loader).__name__

    def resumed(self, n_elements: int, seeds: Sequence[int]) -> "SeededLoader":
        """Return the same data in the order of `seeds`, without the first elements."""
        (seed,) = seeds
        return SeededLoader(self._loader, seed, n_elements)

    def __iter__(self) -> Iterator[Any]:
        yield from islice(self._elements(), self._n_skipped, None)

    def _elements(self) -> Iterator[Any]:
        random = RunRandom(self.seeds[0])
        with random.as_global():
            iterator = iter(self._loader)
        while True:
            with random.as_global():  # samplers and datasets may draw for every batch
                element = next(iterator, _END)
            if element is _END:
                return
            yield element
