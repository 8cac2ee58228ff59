# SPDX-License-Identifier: Apache-2.0
"""The stages of a `Pipeline`: each makes an iterator of the one before it."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import count, islice
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skest.core.random import seed_sequence
from skest.feature_columns.cells import as_array
from skest.inputs.array_dataset import check_same_rows, count_rows

Epochs = tuple[int, ...]


#: ``opened(skip, epochs)`` is a context of what the stage before yields, and closes it.
#: Generators left to themselves end when they are collected: too late for open files.
Opened = Callable[[int, Epochs], AbstractContextManager[Iterator[Any]]]


class Stage(ABC):
    """One operation of a pipeline."""

    @abstractmethod
    def elements(self, opened: Opened, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the elements from position `skip` on.

        Parameters
        ----------
        opened : callable
            Opens what is before this stage.
        skip : int
            How many elements an interrupted training has had. Where each follows from
            few elements before, those are skipped in turn, and nothing is computed.
        epochs : tuple of int
            Number of the pass in every `Repeat` behind this stage.
        """


@dataclass(frozen=True)
class Map(Stage):
    """Applies a function to every element."""

    function: Callable[[Any], Any]

    def elements(self, opened: Opened, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the results."""
        with opened(skip, epochs) as before:
            yield from map(self.function, before)


@dataclass(frozen=True)
class Filter(Stage):
    """Keeps the elements for which a function is true."""

    predicate: Callable[[Any], Any]

    def elements(self, opened: Opened, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield what is kept."""
        with opened(0, epochs) as before:
            # Which elements are kept is known only by asking about each.
            yield from islice(filter(self.predicate, before), skip, None)


@dataclass(frozen=True)
class Shuffle(Stage):
    """Draws every element from a buffer, which is filled up in order."""

    buffer_size: int
    seed: int

    def elements(self, opened: Opened, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the elements in random order."""
        # From the start: what is in the buffer follows from all elements before.
        with opened(0, epochs) as before:
            yield from islice(self._drawn(before, epochs), skip, None)

    def _drawn(self, before: Iterator[Any], epochs: Epochs) -> Iterator[Any]:
        # One stream for each pass of each `repeat`: a resumed training jumps into the
        # middle.
        rng = np.random.default_rng(seed_sequence(self.seed, *epochs))
        buffer = list(islice(before, self.buffer_size))
        for element in before:
            i = int(rng.integers(len(buffer)))
            # As tf.data.Dataset.shuffle: what is drawn leaves its place to the next
            # element.
            drawn, buffer[i] = buffer[i], element
            yield drawn
        for i in rng.permutation(len(buffer)):
            yield buffer[i]


@dataclass(frozen=True)
class Repeat(Stage):
    """Goes through the elements several times, or without end."""

    count: int | None

    def elements(self, opened: Opened, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the elements of one pass after the other; an empty pass ends them."""
        # A pass is gone through even if all of it is skipped, for nobody knows how long
        # it is. Tables and files have epochs of their own, and jump.
        for epoch in count() if self.count is None else range(self.count):
            n_passed = 0
            with opened(0, (*epochs, epoch)) as before:
                for element in before:
                    n_passed += 1
                    if n_passed > skip:
                        yield element
            if n_passed == 0:
                return
            skip = max(0, skip - n_passed)


@dataclass(frozen=True)
class Batch(Stage):
    """Makes one element of several."""

    batch_size: int
    drop_remainder: bool

    def elements(self, opened: Opened, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the batches."""
        least = self.batch_size if self.drop_remainder else 1
        # All batches before the last are full.
        with opened(skip * self.batch_size, epochs) as before:
            while len(rows := list(islice(before, self.batch_size))) >= least:
                yield stack(rows)


@dataclass(frozen=True)
class Unbatch(Stage):
    """Makes single rows of batches."""

    def elements(self, opened: Opened, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the rows; a batch that is skipped as a whole is not taken apart."""
        with opened(0, epochs) as before:
            for batch in before:
                n_rows = count_batch(batch)
                yield from unstack(batch, min(skip, n_rows))
                skip = max(0, skip - n_rows)


@dataclass(frozen=True)
class Shard(Stage):
    """Takes every n-th element."""

    num_shards: int
    index: int

    def elements(self, opened: Opened, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the elements of this shard."""
        # Elements of the other shards are skipped with those of this one.
        with opened(skip * self.num_shards, epochs) as before:
            yield from islice(before, self.index, None, self.num_shards)


@dataclass(frozen=True)
class Prefetch(Stage):
    """Computes elements ahead, in a thread."""

    n_ahead: int

    def elements(self, opened: Opened, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the same elements."""
        # Opened in the thread, which closes it: no other may close a running generator.
        return prefetched(lambda: opened(skip, epochs), self.n_ahead)


@dataclass(frozen=True)
class Cache(Stage):
    """Keeps the elements of the first pass in memory, once it is complete."""

    _kept: list[list[Any]] = field(default_factory=list)

    def elements(self, opened: Opened, skip: int, epochs: Epochs) -> Iterator[Any]:
        """Yield the elements, in every pass those of the first."""
        if self._kept:
            yield from islice(self._kept[0], skip, None)
            return
        elements = []
        # The order of the first pass, also for a training that is resumed in a later one.
        with opened(0, (0,) * len(epochs)) as before:
            for element in before:
                elements.append(element)
                if len(elements) > skip:
                    yield element
        # Only now: a pass that was broken off would end all later ones early.
        self._kept[:] = [elements]


def stack(rows: Sequence[Any]) -> Any:
    """Make one batch of rows.

    Parameters
    ----------
    rows : sequence
        Numbers, strings, arrays, tensors, or dictionaries and tuples of them, all alike.

    Returns
    -------
    ndarray, Tensor, dict or tuple
        The dictionaries and tuples of the rows, with arrays of all rows. Arrays or lists
        of different lengths become an array of objects.

    Raises
    ------
    ValueError
        If dictionaries have different keys or tuples different lengths.

    Examples
    --------
    >>> from skest.inputs.stages import stack
    >>> stack([({"x": 1.0}, 0), ({"x": 2.5}, 1)])
    ({'x': array([1. , 2.5])}, array([0, 1]))
    """
    first = rows[0]
    if isinstance(first, Mapping):
        for row in rows:
            if row.keys() != first.keys():
                raise ValueError(
                    f"The rows of a batch must have the same keys; got {list(first)} and "
                    f"{list(row)}. Give a missing value as None or NaN."
                )
        return {key: stack([row[key] for row in rows]) for key in first}
    if isinstance(first, tuple):
        for row in rows:
            if not isinstance(row, tuple) or len(row) != len(first):
                raise ValueError(
                    "The rows of a batch must be tuples of the same length; got "
                    f"{first!r} and {row!r}."
                )
        return tuple(stack(parts) for parts in zip(*rows, strict=True))
    if isinstance(first, Tensor):
        # (n_rows, ...)
        return torch.stack(list(rows))
    try:
        return as_array(rows)
    except ValueError:  # NumPy refuses to stack cells of different lengths
        return np.fromiter(rows, dtype=object, count=len(rows))


def unstack(batch: Any, start: int = 0) -> Iterator[Any]:
    """Yield the rows of a batch from `start` on; the inverse of `stack`.

    Parameters
    ----------
    batch : ndarray, Tensor, Series, DataFrame, dict or tuple
        Rows along the first dimension. A row of a DataFrame is a dictionary.
    start : int, default=0
        The first row to yield.

    Examples
    --------
    >>> from skest.inputs.stages import unstack
    >>> list(unstack({"x": torch.tensor([1, 2]), "y": torch.tensor([3, 4])}, start=1))
    [{'x': tensor(2), 'y': tensor(4)}]
    """
    for i in range(start, count_batch(batch)):
        yield _row(batch, i)


def count_batch(batch: Any) -> int:
    """Return the number of rows of a batch, which all of its parts must have."""
    if not isinstance(batch, tuple):
        return count_rows(batch, "batch")
    counts = [count_batch(part) for part in batch]
    for n in counts[1:]:
        check_same_rows(counts[0], n)
    return counts[0]


def _row(data: Any, i: int) -> Any:
    if isinstance(data, Mapping):
        return {key: _row(value, i) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(_row(part, i) for part in data)
    if hasattr(data, "columns"):
        return {name: _row(data[name], i) for name in data.columns}
    return data.iloc[i] if hasattr(data, "iloc") else data[i]


_END = object()


def prefetched(
    opened: Callable[[], AbstractContextManager[Iterator[Any]]], n_ahead: int
) -> Iterator[Any]:
    """Yield the elements of an iterator that a thread advances.

    The thread ends with the iterator, or when this generator is closed; an exception is
    raised here, behind the elements that came before it.

    Parameters
    ----------
    opened : callable
        Returns the iterator as a context; the thread enters and leaves it.
    n_ahead : int
        How many elements may wait.
    """
    # A semaphore counts what may wait; the queue itself has no bound, and never blocks
    # at the end.
    slots, ready = threading.Semaphore(n_ahead), SimpleQueue[Any]()
    stopped = threading.Event()

    def work() -> None:
        try:
            with opened() as elements:
                while slots.acquire() and not stopped.is_set():
                    # Behind the slot, so that no more than `n_ahead` are ever computed.
                    element = next(elements, _END)
                    ready.put((element, None))
                    if element is _END:
                        break
        # All of them: the reader would wait for ever for a thread that has ended.
        except BaseException as error:
            ready.put((None, error))

    # A daemon, for a program that ends must not wait for who waits for a slot.
    thread = threading.Thread(target=work, name="skest-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            element, error = ready.get()
            if error is not None:
                raise error
            if element is _END:
                return
            slots.release()
            yield element
    finally:
        stopped.set()
        # Wakes the thread that waits for a slot, to see that it has to stop.
        slots.release()
        # The garbage collector may close this in any thread.
        if thread is not threading.current_thread():
            thread.join()
