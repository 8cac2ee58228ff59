# SPDX-License-Identifier: Apache-2.0
"""`shard_loader`: a DataLoader that loads one worker's part of a dataset."""

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from skest.inputs.input_context import InputContext

__all__ = ["EveryNth", "shard_loader"]


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
