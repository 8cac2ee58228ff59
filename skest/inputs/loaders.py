# SPDX-License-Identifier: Apache-2.0
"""Loaders of torch whose order can be repeated, and one worker's part of them."""

import copy
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Self

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from skest.core.random import RunRandom, child_seed
from skest.inputs.input_context import InputContext

_END = object()
_DRAWING_SAMPLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class _Seeded:
    """A DataLoader, the seed of what it draws, and how many batches to leave out."""

    def __init__(
        self, loader: DataLoader[Any], seed: int | None = None, n_skipped: int = 0
    ) -> None:
        self._loader = loader
        self._n_skipped = n_skipped
        self.seeds = [_drawn_seed() if seed is None else seed]

    @property
    def kind(self) -> str:
        """What the data are, in words."""
        return type(self._loader).__name__

    def resumed(self, n_elements: int, seeds: Sequence[int]) -> Self:
        """Return the same data in the order of `seeds`, without the first elements."""
        (seed,) = seeds
        return type(self)(self._loader, seed, n_elements)

    def for_worker(self, context: InputContext) -> Self | None:
        """Return the part of one worker, or None if rows can't be loaded in part."""
        loader = shard_loader(self._loader, context)
        if loader is None or loader is self._loader:
            return None if loader is None else self
        return type(self)(loader, context.own_seed(self.seeds[0]), self._n_skipped)


class SeededLoader(_Seeded):
    """A DataLoader without a generator of its own, which draws from one seed.

    Such a loader takes its order, and the seeds of its workers, from torch's global
    generator. That stays what draws the seed here, so that ``torch.manual_seed`` has the
    last word as ever; but an interrupted training that goes on with the seed sees the
    rows that it has not seen. It is a `skest.inputs.Resumable`.

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
    >>> from skest.inputs.loaders import SeededLoader
    >>> data = SeededLoader(DataLoader(range(9), batch_size=9, shuffle=True))
    >>> [order] = data
    >>> [again] = data.resumed(0, data.seeds)
    >>> bool((order == again).all())
    True
    """

    #: One pass is what can be repeated: workers may be at work in it.
    is_restartable = False

    def __iter__(self) -> Iterator[Any]:
        yield from islice(self._elements(), self._n_skipped, None)

    def _elements(self) -> Iterator[Any]:
        random = RunRandom(self.seeds[0])
        loader = self._loader
        with random.as_global():
            is_mapped = not isinstance(loader.dataset, IterableDataset)
            if is_mapped and loader._iterator is not None:
                # Workers that persist are taken over, without what making the iterator
                # draws: maybe a sampler's order, which is made anew, and their seed.
                iter(loader._index_sampler)
                _drawn_seed()
            iterator = iter(loader)
        while True:
            with random.as_global():  # samplers and datasets may draw for every batch
                element = next(iterator, _END)
            if element is _END:
                return
            yield element


class PassLoader(_Seeded):
    """A DataLoader without a generator of its own, as the source of a Pipeline.

    Every pass gets a generator, made from one seed and the number of the pass, because a
    thread of ``Pipeline.prefetch`` can't borrow torch's global generator: the training
    may hold it. So orders of torch's samplers and the seeds of workers can be repeated;
    what other samplers, or datasets without workers, draw can't. It is a
    `skest.inputs.Resumable`.

    Parameters
    ----------
    loader : torch.utils.data.DataLoader
        Its ``generator`` is None. It stays as it is: passes have copies, whose workers
        end with the pass.
    seed : int, default=None
        None draws one from torch's global generator.
    n_skipped : int, default=0
        How many batches to leave out; they are loaded nevertheless.

    Examples
    --------
    >>> from torch.utils.data import DataLoader
    >>> from skest.inputs.loaders import PassLoader
    >>> data = PassLoader(DataLoader(range(9), batch_size=9, shuffle=True))
    >>> [order] = data
    >>> [again] = data
    >>> [next_order] = data.of_pass((1,))
    >>> bool((order == again).all()), bool((order == next_order).all())
    (True, False)
    """

    is_restartable = True

    def of_pass(self, epochs: Sequence[int]) -> "PassLoader":
        """Return the data of a pass, given its number in every repetition around it."""
        if not epochs:
            return self
        seed = child_seed(self.seeds[0], *epochs)
        return PassLoader(self._loader, seed, self._n_skipped)

    def __iter__(self) -> Iterator[Any]:
        generator = torch.Generator().manual_seed(self.seeds[0])
        yield from islice(
            _with_generator(self._loader, generator), self._n_skipped, None
        )


def _drawn_seed() -> int:
    """Draw a seed from torch's global generator, as DataLoader and its samplers do."""
    return int(torch.empty((), dtype=torch.int64).random_().item())


def _with_generator(
    loader: DataLoader[Any], generator: torch.Generator
) -> DataLoader[Any]:
    """Return a copy of `loader` as if it had been made with `generator`."""
    loader = copy.copy(loader)
    # These can't be assigned: a loader refuses another sampler.
    vars(loader).update(
        generator=generator,
        sampler=_sampler_with(generator, loader.sampler),
        batch_sampler=_sampler_with(generator, loader.batch_sampler),
        _iterator=None,  # workers that persist are those of the original
    )
    return loader


def _sampler_with(generator: torch.Generator, sampler: Any) -> Any:
    if isinstance(sampler, _DRAWING_SAMPLERS) and sampler.generator is None:
        sampler = copy.copy(sampler)
        sampler.generator = generator
    elif isinstance(sampler, BatchSampler | EveryNth):
        sampler = copy.copy(sampler)
        sampler.sampler = _sampler_with(generator, sampler.sampler)
    return sampler


class EveryNth(Sampler[Any]):
    """Every n-th of what another sampler gives: rows, or batches of rows.

    Parameters
    ----------
    sampler : Sampler
        The other one.
    context : InputContext
        How many workers there are, and which one this is.
    """

    def __init__(self, sampler: Any, context: InputContext) -> None:
        self.sampler = sampler
        self._context = context

    def __iter__(self) -> Iterator[Any]:
        n, index = self._context.num_input_pipelines, self._context.input_pipeline_id
        return islice(iter(self.sampler), index, None, n)

    def __len__(self) -> int:
        n, index = self._context.num_input_pipelines, self._context.input_pipeline_id
        return len(range(index, len(self.sampler), n))


def shard_loader(
    loader: DataLoader[Any], context: InputContext
) -> DataLoader[Any] | None:
    """Return a copy of `loader` that loads nothing but a worker's part.

    Parameters
    ----------
    loader : torch.utils.data.DataLoader
        It stays as it is. If it has a ``DistributedSampler``, it is returned.
    context : InputContext
        How many workers there are, and which one this is.

    Returns
    -------
    DataLoader or None
        With a sampler over every n-th row, if it goes through the rows in their order or
        in a random one; with every n-th batch of its sampler otherwise. None if its
        dataset is iterable, which can't be read in part.

    Raises
    ------
    ValueError
        If there are fewer rows than workers.
    """
    if isinstance(loader.dataset, IterableDataset):
        return None
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    index: Any = getattr(loader, name)
    rows = index.sampler if isinstance(index, BatchSampler) else index
    if isinstance(rows, DistributedSampler):
        return loader
    is_known = type(index) is BatchSampler or index is rows
    own: Any = _own_rows(rows, context) if is_known else None
    if own is None:
        own = EveryNth(index, context)
    elif index is not rows:
        own = BatchSampler(own, index.batch_size, index.drop_last)
    loader = copy.copy(loader)
    # These can't be assigned: a loader refuses another sampler.
    vars(loader).update({name: own, "_iterator": None})
    return loader


def _own_rows(sampler: Any, context: InputContext) -> Any:
    """Return a sampler over a worker's rows, or None if it is not known how."""
    if type(sampler) is SubsetRandomSampler:
        indices = sampler.indices[context.part_of(len(sampler.indices), "row")]
        return SubsetRandomSampler(indices, sampler.generator)
    if type(sampler) is SequentialSampler:
        return _rows_of(sampler.data_source, context)
    if type(sampler) is RandomSampler and not sampler.replacement:
        n_rows = len(sampler.data_source)
        if sampler.num_samples == n_rows:
            own = _rows_of(sampler.data_source, context)
            return SubsetRandomSampler(own, sampler.generator)
    return None


def _rows_of(dataset: Any, context: InputContext) -> range:
    return range(len(dataset))[context.part_of(len(dataset), "row")]
