# SPDX-License-Identifier: Apache-2.0
"""The stages of a `Pipeline`: each makes an iterator of the one before it.

A stage is asked for its elements from position `skip` on, and passes as much of the
skipping as it can to the stage before, so that what is skipped is not computed. `epochs`
are the numbers of the passes of all `repeat` behind it: random orders differ by them.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Protocol

import numpy as np

from skest.inputs.collate import count_batch, stack, unstack
from skest.inputs.prefetching import prefetched

__all__ = [
    "Batch",
    "Cache",
    "Filter",
    "Map",
    "Prefetch",
    "Repeat",
    "Shard",
    "Shuffle",
    "Stage",
    "Unbatch",
    "Upstream",
]

Epochs = tuple[int, ...]


@dataclass(frozen=True)
class Upstream:
    """What is before a stage.

    Parameters
    ----------
    opened : callable
        ``opened(skip, epochs)`` is a context of an iterator, and closes it.
    length : int or None
        Number of elements of one pass, if it is known without a pass.
    """

    opened: Callable[[int, Epochs], AbstractContextManager[Iterator[Any]]]
    length: int | None


class Stage(Protocol):
    """One operation of a pipeline."""

    def elements(self, upstream: Upstream, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the elements from position `skip` on."""

    def length(self, n_before: int | None) -> int | None:
        """Return the number of elements, given that of the stage before."""


@dataclass(frozen=True)
class Map:
    """Applies a function to every element."""

    function: Callable[[Any], Any]

    def elements(self, upstream: Upstream, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the results."""
        with upstream.opened(skip, epochs) as before:
            yield from map(self.function, before)

    def length(self, n_before: int | None) -> int | None:
        """Return as many."""
        return n_before


@dataclass(frozen=True)
class Filter:
    """Keeps the elements for which a function is true."""

    predicate: Callable[[Any], Any]

    def elements(self, upstream: Upstream, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield what is kept."""
        with upstream.opened(0, epochs) as before:
            yield from islice(filter(self.predicate, before), skip, None)

    def length(self, n_before: int | None) -> int | None:
        """Return None: nobody knows."""
        return None


@dataclass(frozen=True)
class Shuffle:
    """Draws every element from a buffer, which is filled up in order."""

    buffer_size: int
    seed: int

    def elements(self, upstream: Upstream, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the elements in random order."""
        with upstream.opened(0, epochs) as before:
            yield from islice(self._drawn(before, epochs), skip, None)

    def _drawn(self, before: Iterator[Any], epochs: Epochs) -> Iterator[Any]:
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=epochs))
        buffer = list(islice(before, self.buffer_size))
        for element in before:
            i = int(rng.integers(len(buffer)))
            drawn, buffer[i] = buffer[i], element
            yield drawn
        for i in rng.permutation(len(buffer)):
            yield buffer[i]

    def length(self, n_before: int | None) -> int | None:
        """Return as many."""
        return n_before


@dataclass(frozen=True)
class Repeat:
    """Goes through the elements several times, or without end."""

    count: int | None

    def elements(self, upstream: Upstream, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the elements of one pass after the other; an empty pass ends them."""
        known = upstream.length
        first, skip = divmod(skip, known) if known else (0, skip)
        for epoch in count(first) if self.count is None else range(first, self.count):
            n_passed = skip if known else 0
            with upstream.opened(n_passed, (*epochs, epoch)) as before:
                for element in before:
                    n_passed += 1
                    if n_passed > skip:
                        yield element
            if n_passed == 0:
                return
            skip = max(0, skip - n_passed)

    def length(self, n_before: int | None) -> int | None:
        """Return the sum."""
        if n_before is None or self.count is None:
            return None
        return n_before * self.count


@dataclass(frozen=True)
class Batch:
    """Makes one element of several."""

    batch_size: int
    drop_remainder: bool

    def elements(self, upstream: Upstream, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the batches."""
        least = self.batch_size if self.drop_remainder else 1
        with upstream.opened(skip * self.batch_size, epochs) as before:
            while len(rows := list(islice(before, self.batch_size))) >= least:
                yield stack(rows)

    def length(self, n_before: int | None) -> int | None:
        """Return the quotient."""
        if n_before is None:
            return None
        n_more = 0 if self.drop_remainder else self.batch_size - 1
        return (n_before + n_more) // self.batch_size


@dataclass(frozen=True)
class Unbatch:
    """Makes single rows of batches."""

    def elements(self, upstream: Upstream, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the rows; a batch that is skipped as a whole is not taken apart."""
        with upstream.opened(0, epochs) as before:
            for batch in before:
                n_rows = count_batch(batch)
                yield from unstack(batch, min(skip, n_rows))
                skip = max(0, skip - n_rows)

    def length(self, n_before: int | None) -> int | None:
        """Return None: batches may differ in size."""
        return None


@dataclass(frozen=True)
class Shard:
    """Takes every n-th element."""

    num_shards: int
    index: int

    def elements(self, upstream: Upstream, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the elements of this shard."""
        with upstream.opened(skip * self.num_shards, epochs) as before:
            yield from islice(before, self.index, None, self.num_shards)

    def length(self, n_before: int | None) -> int | None:
        """Return the share."""
        if n_before is None:
            return None
        return len(range(self.index, n_before, self.num_shards))


@dataclass(frozen=True)
class Prefetch:
    """Computes elements ahead, in a thread."""

    n_ahead: int

    def elements(self, upstream: Upstream, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the same elements."""
        return prefetched(lambda: upstream.opened(skip, epochs), self.n_ahead)

    def length(self, n_before: int | None) -> int | None:
        """Return as many."""
        return n_before


@dataclass(frozen=True)
class Cache:
    """Keeps the elements of the first pass in memory, once it is complete."""

    _kept: list[list[Any]] = field(default_factory=list)

    def elements(self, upstream: Upstream, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the elements, in every pass those of the first."""
        if not self._kept:
            yield from self._filling(upstream, skip, (0,) * len(epochs))
        else:
            yield from islice(self._kept[0], skip, None)

    def _filling(self, upstream: Upstream, skip: int, epochs: Epochs) -> Iterator[Any]:
        elements = []
        with upstream.opened(0, epochs) as before:
            for element in before:
                elements.append(element)
                if len(elements) > skip:
                    yield element
        self._kept[:] = [elements]

    def length(self, n_before: int | None) -> int | None:
        """Return as many."""
        return n_before
