# SPDX-License-Identifier: Apache-2.0
"""`SeededLoader`: a loader of torch whose order can be repeated, and a worker's part."""

import copy
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

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

from skest.core.random import child_seed
from skest.inputs.input_context import InputContext

_DRAWING_SAMPLERS = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)


class SeededLoader:
    """A DataLoader without a generator of its own, whose order can be repeated.

    Every pass gets a generator, made from one seed and the number of the pass. The seed is
    drawn from torch's global generator, as torch does, so that ``torch.manual_seed`` has
    the last word; but an interrupted training that goes on with it sees the rows that it
    has not seen. So orders of torch's samplers and the seeds of workers are repeated; what
    other samplers, or datasets without workers, draw by themselves is not. It is a
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
    >>> from skest.inputs.loaders import SeededLoader
    >>> data = SeededLoader(DataLoader(range(9), batch_size=9, shuffle=True))
    >>> [order] = data
    >>> [again] = data
    >>> [next_order] = data.of_pass((1,))
    >>> bool((order == again).all()), bool((order == next_order).all())
    (True, False)
    """

    is_restartable = True

    def __init__(
        self, loader: DataLoader[Any], seed: int | None = None, n_skipped: int = 0
    ) -> None:
        self._loader = loader
        self._n_skipped = n_skipped
        if seed is None:  # as DataLoader and its samplers draw it
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
        self.seeds = [seed]

    @property
    def kind(self) -> str:
        """What the data are, in words."""
        return type(self._loader).__name__

    def resumed(self, n_elements: int, seeds: Sequence[int]) -> "SeededLoader":
        """Return the same data in the order of `seeds`, without the first elements."""
        (seed,) = seeds
        return SeededLoader(self._loader, seed, self._n_skipped + n_elements)

    def for_worker(self, context: InputContext) -> "SeededLoader | None":
        """Return the part of one worker, or None if rows can't be loaded in part."""
        loader = shard_loader(self._loader, context)
        # A DistributedSampler divides by itself, by the seed of all.
        if loader is None or loader is self._loader:
            return None if loader is None else self
        (seed,) = self.seeds
        # Of batches that are dealt out, all workers draw the same order.
        if not isinstance(_index_of(loader), EveryNth):
            seed = context.own_seed(seed)
        return SeededLoader(loader, seed, self._n_skipped)

    def of_pass(self, epochs: Sequence[int]) -> "SeededLoader":
        """Return the data of a pass, given its number in every repetition around it."""
        if not epochs:
            return self
        seed = child_seed(self.seeds[0], *epochs)
        return SeededLoader(self._loader, seed, self._n_skipped)

    def __iter__(self) -> Iterator[Any]:
        generator, loader = torch.Generator().manual_seed(self.seeds[0]), self._loader
        # As if it had been made with it: drawn anew in every pass, so that each has the
        # same order.
        batches = _copy_with(
            loader,
            generator=generator,
            sampler=_sampler_with(generator, loader.sampler),
            batch_sampler=_sampler_with(generator, loader.batch_sampler),
        )
        yield from islice(batches, self._n_skipped, None)


def repeatable(data: Any) -> Any:
    """Return data, of a DataLoader without a generator a `SeededLoader`."""
    # Who gives a generator wants its stream to go on from pass to pass.
    is_plain = isinstance(data, DataLoader) and data.generator is None
    return SeededLoader(data) if is_plain else data


def _copy_with(loader: DataLoader[Any], **changes: Any) -> DataLoader[Any]:
    """Return a copy; workers that persist are those of the original."""
    loader = copy.copy(loader)
    # Its attributes can't be assigned: a loader refuses another sampler.
    vars(loader).update(changes, _iterator=None)
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
        self._first, self._n = context.input_pipeline_id, context.num_input_pipelines

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self.sampler), self._first, None, self._n)

    def __len__(self) -> int:
        return len(range(self._first, len(self.sampler), self._n))


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
    # It has no length and no index; each worker would read all of it anyway.
    if isinstance(loader.dataset, IterableDataset):
        return None
    index = _index_of(loader)
    rows = index.sampler if isinstance(index, BatchSampler) else index
    # It takes the part of its process by itself.
    if isinstance(rows, DistributedSampler):
        return loader
    # A subclass may batch rows by their length, say: then its batches are dealt out,
    # not its rows.
    is_known = type(index) is BatchSampler or index is rows
    own: Any = None
    if is_known:
        batches = (1, False) if index is rows else (index.batch_size, index.drop_last)
        own = _own_rows(rows, context, *batches)
    if own is None:
        own = EveryNth(index, context)
    elif index is not rows:
        own = BatchSampler(own, index.batch_size, index.drop_last)
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    return _copy_with(loader, **{name: own})


def _index_of(loader: DataLoader[Any]) -> Any:
    """Return what says which rows come next: the sampler of batches, or else of rows."""
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def _own_rows(sampler: Any, context: InputContext, *batches: Any) -> Any:
    """Return a sampler over a worker's rows, or None if it is not known how."""
    if type(sampler) is SubsetRandomSampler:
        indices = _part_of(sampler.indices, context, *batches)
        return SubsetRandomSampler(indices, sampler.generator)
    if type(sampler) is SequentialSampler:
        return _part_of(range(len(sampler.data_source)), context, *batches)
    # With replacement, or of fewer rows than there are, parts would not add up to the
    # whole.
    if type(sampler) is RandomSampler and not sampler.replacement:
        n_rows = len(sampler.data_source)
        if sampler.num_samples == n_rows:
            own = _part_of(range(n_rows), context, *batches)
            return SubsetRandomSampler(own, sampler.generator)
    return None


def _part_of(indices: Any, context: InputContext, *batches: Any) -> Any:
    rows = context.rows_of(len(indices), *batches)
    return indices[rows] if isinstance(rows, slice) else [indices[i] for i in rows]
