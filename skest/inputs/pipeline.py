# SPDX-License-Identifier: Apache-2.0
"""`Pipeline`: operations on a stream of elements, one after the other."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import fields, replace
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np

from skest.core.checks import check_integer
from skest.core.random import seed_sequence
from skest.inputs.files import FileBatches
from skest.inputs.input_context import InputContext
from skest.inputs.loaders import SeededLoader, repeatable
from skest.inputs.stages import (
    Batch,
    Cache,
    Filter,
    Map,
    Prefetch,
    Repeat,
    Shard,
    Shuffle,
    Stage,
    Unbatch,
)


class Pipeline:
    """A stream of elements, and what is done with them on the way.

    Every method returns a new pipeline and leaves this one as it was. Nothing is read
    before the pipeline is iterated. A pipeline of ``(features, labels)`` batches is
    something that an ``input_fn`` may return.

    Parameters
    ----------
    source : iterable, callable or map-style dataset
        Where the elements come from. A callable has no arguments and returns an
        iterable; it is called for every pass. Something with ``__getitem__`` and a
        length, as a list or a map-style ``torch.utils.data.Dataset``, is read by index.
        An iterator can be gone through only once.

    Raises
    ------
    TypeError
        If `source` is none of these, or a table: its rows are no elements, see
        `skest.inputs.ArrayDataset`.

    Notes
    -----
    The operations are those of ``tf.data.Dataset``, with these differences: a pipeline
    that is iterated again gives the same elements in the same order, because the seed of
    `shuffle` is chosen when it is called, that of a ``DataLoader`` without a generator
    when it becomes the source; passes of `repeat` still differ from each other. And all
    of it can go on in the middle: an interrupted training that is resumed sees the
    elements that it would have seen. Functions given to `map` and `filter` have
    to depend on nothing but the element, for elements that are skipped are not mapped.

    Examples
    --------
    >>> from skest.inputs import Pipeline
    >>> numbers = Pipeline(range(10)).filter(lambda i: i % 2 == 0).map(lambda i: i * 10)
    >>> list(numbers)
    [0, 20, 40, 60, 80]
    >>> [batch.tolist() for batch in numbers.shuffle(5, seed=1).repeat(2).batch(4)]
    [[80, 20, 40, 60], [0, 80, 20, 0], [60, 40]]
    """

    def __init__(self, source: Any) -> None:
        self._source = _as_source(source)
        self._stages: tuple[Stage, ...] = ()
        self._n_skipped = 0

    # Operations

    def map(self, function: Callable[[Any], Any]) -> "Pipeline":
        """Replace every element by ``function(element)``.

        Parameters
        ----------
        function : callable
            Takes one element, which may be a pair ``(features, labels)``.

        Returns
        -------
        Pipeline
            As long as this one.
        """
        return self._with(Map(_check_callable(function, "map")))

    def filter(self, predicate: Callable[[Any], Any]) -> "Pipeline":
        """Keep the elements for which ``predicate(element)`` is true.

        Parameters
        ----------
        predicate : callable
            Takes one element.

        Returns
        -------
        Pipeline
            As long or shorter.
        """
        return self._with(Filter(_check_callable(predicate, "filter")))

    def shuffle(self, buffer_size: int, seed: int | None = None) -> "Pipeline":
        """Draw every element from a buffer of the next ones.

        Parameters
        ----------
        buffer_size : int
            Elements in the buffer. If it holds all of a pass, every order has the same
            chance.
        seed : int, default=None
            Seed of the orders; None takes one from the operating system, now.

        Returns
        -------
        Pipeline
            The same elements; in every pass of a `repeat` that follows in another order.
        """
        _check(buffer_size, "buffer_size", "shuffle")
        # Drawn also where none is given: a checkpoint records it, to go on in that
        # order.
        entropy: Any = seed_sequence(seed).entropy
        return self._with(Shuffle(buffer_size, entropy))

    @property
    def is_endless(self) -> bool:
        """Whether it is known that it does not end."""
        repeats = (stage for stage in self._stages if isinstance(stage, Repeat))
        return any(stage.count is None for stage in repeats) or getattr(
            self._source, "is_endless", False
        )

    def repeat(self, count: int | None = None) -> "Pipeline":
        """Go through the elements several times.

        Parameters
        ----------
        count : int or None, default=None
            How often; None is without end.

        Returns
        -------
        Pipeline
            It ends early if a pass is empty.

        Raises
        ------
        ValueError
            If the source is an iterator, which is used up after the first pass.
        """
        if count is not None:
            _check(count, "count", "repeat")
        # It would be empty from the second pass on.
        is_cached = any(isinstance(stage, Cache) for stage in self._stages)
        if not (is_cached or self.is_restartable):
            raise ValueError(
                "An iterator can be gone through only once, so that it can't be repeated. "
                "Make the Pipeline of a function that returns a new one, or call cache() "
                "before repeat()."
            )
        return self._with(Repeat(count))

    def batch(self, batch_size: int, drop_remainder: bool = False) -> "Pipeline":
        """Make one element of several.

        Parameters
        ----------
        batch_size : int
            Rows of a batch.
        drop_remainder : bool, default=False
            Leave out the last batch if it is smaller.

        Returns
        -------
        Pipeline
            Dictionaries and tuples of the rows, with arrays of all rows in place of
            values; see `unbatch`.
        """
        _check(batch_size, "batch_size", "batch")
        return self._with(Batch(batch_size, bool(drop_remainder)))

    def unbatch(self) -> "Pipeline":
        """Make single rows of batches, the inverse of `batch`.

        Returns
        -------
        Pipeline
            Rows; of a DataFrame they are dictionaries.
        """
        return self._with(Unbatch())

    def shard(self, num_shards: int, index: int) -> "Pipeline":
        """Take every `num_shards`-th element, beginning with number `index`.

        Parameters
        ----------
        num_shards : int
            How many workers share the elements.
        index : int
            Number of this worker, from 0. `shuffle` belongs behind this, or the workers
            need the same seed.

        Returns
        -------
        Pipeline
            The elements of this worker.
        """
        _check(num_shards, "num_shards", "shard")
        check_integer(index, "index", "Pipeline.shard", 0, num_shards - 1)
        return self._with(Shard(num_shards, index))

    def prefetch(self, n_ahead: int = 1) -> "Pipeline":
        """Compute elements ahead, in a thread that ends with the iteration.

        Parameters
        ----------
        n_ahead : int, default=1
            How many elements may wait.

        Returns
        -------
        Pipeline
            The same elements. An exception is raised where its element would have been.
        """
        _check(n_ahead, "n_ahead", "prefetch")
        return self._with(Prefetch(n_ahead))

    def cache(self) -> "Pipeline":
        """Keep the elements of the first complete pass in memory.

        Returns
        -------
        Pipeline
            The same elements; later passes read and compute nothing before this point.
            They are the same objects, which must not be changed.
        """
        return self._with(Cache())

    # Iteration, and its position

    def __iter__(self) -> Iterator[Any]:
        return self._elements(len(self._stages), self._n_skipped, ())

    @property
    def is_restartable(self) -> bool:
        """Whether the elements can be gone through more than once."""
        return not isinstance(self._source, _OneShot)

    @property
    def kind(self) -> str:
        """The source and the operations with their numbers, as text."""
        source = self._source
        name = source.kind if isinstance(source, Resumable) else type(source).__name__
        return ".".join([f"Pipeline({name})", *map(_describe, self._stages)])

    @property
    def seeds(self) -> list[int]:
        """Seeds of the source, if it has such, and of every `shuffle`."""
        own = [stage.seed for stage in self._stages if isinstance(stage, Shuffle)]
        return [*_seeds_of(self._source), *own]

    def resumed(self, n_elements: int, seeds: Sequence[int]) -> "Pipeline":
        """Return this pipeline in the order of some seeds, without its first elements.

        Parameters
        ----------
        n_elements : int
            How many elements to leave out.
        seeds : sequence of int
            `seeds` of the pipeline whose orders to use.

        Returns
        -------
        Pipeline
            What is left out is computed only as far as the rest depends on it; earlier
            passes of a `repeat` are gone through.

        Examples
        --------
        >>> from skest.inputs import Pipeline
        >>> first = Pipeline(range(6)).shuffle(6)
        >>> again = Pipeline(range(6)).shuffle(6)
        >>> list(again.resumed(2, first.seeds)) == list(first)[2:]
        True
        """
        pipeline = copy.copy(self)
        pipeline._n_skipped += n_elements
        # With the same seeds, what a `cache` holds is good.
        if list(seeds) != self.seeds:
            # Seeds are in the order of `seeds`: the source first.
            own = len(_seeds_of(self._source))
            if isinstance(self._source, Resumable):
                pipeline._source = self._source.resumed(0, seeds[:own])
            pipeline._stages = tuple(_reseeded(self._stages, iter(seeds[own:])))
        return pipeline

    def for_worker(self, context: InputContext) -> "Pipeline":
        """Return the part of one worker, divided before the first operation.

        Parameters
        ----------
        context : InputContext
            How many workers there are, and which one this is.

        Returns
        -------
        Pipeline
            The same operations on every n-th file, row group or row, if the source is
            known to have such, or else every n-th element of it. Orders of `shuffle`
            follow from seeds of the worker's own. If `shard` is one of the operations,
            it is this pipeline.

        Raises
        ------
        ValueError
            If there are fewer elements than workers.
        """
        if any(isinstance(stage, Shard) for stage in self._stages):
            return self
        pipeline, source = copy.copy(self), self._source
        seeds = [s.seed for s in self._stages if isinstance(s, Shuffle)]
        # Workers that shuffle alike would draw alike.
        stages = _reseeded(self._stages, map(context.own_seed, seeds))
        part = source.for_worker(context) if hasattr(source, "for_worker") else None
        if part is not None:
            pipeline._source, pipeline._stages = part, tuple(stages)
            return pipeline
        if isinstance(source, Sequence | np.ndarray) or _is_map_style(source):
            context.part_of(len(source), "element")  # refuses more workers than these
        n, index = context.num_input_pipelines, context.input_pipeline_id
        # Each worker reads all elements, and computes with its own only.
        pipeline._stages = (Shard(n, index), *stages)
        return pipeline

    def with_pieces(self) -> "Pipeline":
        """Return the same pipeline, for who encodes batches of files in larger pieces."""
        # What is done to a batch on its way is not done to the piece.
        is_plain = all(isinstance(stage, Prefetch) for stage in self._stages)
        if not isinstance(self._source, FileBatches) or not is_plain:
            return self
        pipeline = copy.copy(self)
        pipeline._source = replace(self._source, with_pieces=True)
        return pipeline

    def _with(self, stage: Stage) -> "Pipeline":
        pipeline = copy.copy(self)
        # A new tuple: pipelines share stages, and none changes.
        pipeline._stages = (*self._stages, stage)
        return pipeline

    def _elements(self, n_stages: int, skip: int, epochs: tuple[int, ...]) -> Any:
        """Yield the elements behind the first stages."""
        if n_stages == 0:
            return _read(self._source, skip, epochs)

        # From the end: each stage asks the one before it only for what its reader has
        # not had.
        def opened(skip: int, epochs: tuple[int, ...]) -> closing[Any]:
            return closing(self._elements(n_stages - 1, skip, epochs))

        return self._stages[n_stages - 1].elements(opened, skip, epochs)


class _OneShot:
    """An iterator, which refuses to be gone through again."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator: Iterator[Any] | None = iterator

    def __iter__(self) -> Iterator[Any]:
        if self._iterator is None:
            raise ValueError(
                "The source of this Pipeline is an iterator, which was used up before. "
                "Make the Pipeline of a function that returns a new one."
            )
        iterator, self._iterator = self._iterator, None
        return iterator


def _as_source(source: Any) -> Any:
    # A frame gives the names of its columns, a string its letters, and features with
    # labels two elements: never what is meant.
    is_table = (
        isinstance(source, Mapping | str | bytes)
        or hasattr(type(source), "columns")
        or _is_pair(source)
    )
    if not is_table:
        source = repeatable(source)
        if isinstance(source, Iterator):
            return _OneShot(source)
        if isinstance(source, Iterable) or callable(source) or _is_map_style(source):
            return source
    raise TypeError(
        "'source' of a Pipeline must be an iterable of elements or a function that "
        f"returns one; got {type(source).__name__}. For a table in memory, use "
        "skest.inputs.ArrayDataset(features, labels); Pipeline(dataset).unbatch() has its "
        "rows."
    )


def _is_pair(source: Any) -> bool:
    """Tell whether these are features by name and labels, or arrays of unequal shape."""
    if not isinstance(source, tuple) or len(source) != 2:
        return False
    shapes: list[Any] = [getattr(part, "shape", None) for part in source]
    is_named = isinstance(source[0], Mapping) and not isinstance(source[1], Mapping)
    are_arrays = None not in shapes and shapes[0][:1] == shapes[1][:1]
    return (is_named and shapes[1] is not None) or (
        are_arrays and shapes[0] != shapes[1]
    )


def _is_map_style(source: Any) -> bool:
    return (
        hasattr(source, "__getitem__")
        and hasattr(source, "__len__")
        and not hasattr(source, "__iter__")
    )


def repeats_itself(source: Any) -> bool:
    """Tell whether every pass through some data may be taken to be the same.

    What an iterable, or the sampler of a loader, draws by itself goes on from pass to pass;
    a function makes a new iterable each time.
    """
    if isinstance(source, Pipeline):
        return repeats_itself(source._source)
    if isinstance(source, Resumable):
        return source.is_restartable and not isinstance(source, SeededLoader)
    known = isinstance(source, Sequence | np.ndarray) or callable(source)
    return known or _is_map_style(source)


def _read(source: Any, skip: int, epochs: Sequence[int]) -> Iterator[Any]:
    """Yield the elements of a pass through a source from position `skip` on."""
    if _is_map_style(source):
        # By its length, since a dataset of torch need not raise IndexError at its end.
        yield from (source[i] for i in range(skip, len(source)))
    elif isinstance(source, _OneShot):
        yield from islice(source, skip, None)
    else:
        if isinstance(source, SeededLoader):
            source = source.of_pass(epochs)
        if isinstance(source, Resumable):
            # It may jump where `islice` would go through all.
            source, skip = source.resumed(skip, source.seeds), 0
        elements = source() if callable(source) else source
        if not isinstance(elements, Iterable):
            raise TypeError(
                "The function that is the 'source' of a Pipeline must return an iterable; "
                f"got {type(elements).__name__}."
            )
        iterator: Any = iter(elements)
        try:
            yield from islice(iterator, skip, None)
        finally:
            if hasattr(iterator, "close"):  # a generator: leave its contexts now
                iterator.close()


def _seeds_of(source: Any) -> list[int]:
    return list(source.seeds) if isinstance(source, Resumable) else []


def _reseeded(stages: Iterable[Any], seeds: Iterator[int]) -> Iterator[Stage]:
    for stage in stages:
        if isinstance(stage, Shuffle):
            yield replace(stage, seed=next(seeds))
        elif isinstance(stage, Cache):
            yield Cache()  # what is in it has the order of other seeds
        else:
            yield stage


def _describe(stage: Any) -> str:
    """Return a stage as it was called, without functions and seeds."""
    # Functions have no text that is the same in another process.
    names = [f.name for f in fields(stage) if f.type in (int, bool, int | None)]
    values = [f"{n}={getattr(stage, n)}" for n in names if n != "seed"]
    return f"{type(stage).__name__.lower()}({', '.join(values)})"


def _check_callable(function: Any, name: str) -> Callable[[Any], Any]:
    if not callable(function):
        raise TypeError(
            f"Pipeline.{name} needs a function of one element; "
            f"got {type(function).__name__}."
        )
    return function


def _check(value: Any, name: str, operation: str) -> None:
    check_integer(value, name, f"Pipeline.{operation}", minimum=1)


@runtime_checkable
class Resumable(Protocol):
    """What an interrupted training needs of its input, to go on where it was.

    `skest.inputs.ArrayDataset` and `skest.inputs.Pipeline` have it. Data without it are
    gone through from their beginning, without training, up to the position.
    """

    @property
    def kind(self) -> str:
        """What the data are, in words; a position is good only for data of its kind."""

    @property
    def seeds(self) -> list[int]:
        """The seeds of all random orders, whoever chose them."""

    @property
    def is_restartable(self) -> bool:
        """Whether the data can be iterated more than once."""

    def resumed(self, n_elements: int, seeds: Sequence[int]) -> Any:
        """Return the same data in the order of `seeds`, without the first elements."""

    def __iter__(self) -> Iterator[Any]: ...
