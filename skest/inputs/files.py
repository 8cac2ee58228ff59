# SPDX-License-Identifier: Apache-2.0
"""`FileBatches`: files of columns, read a part at a time and cut into batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from skest.core.checks import needing
from skest.core.random import seed_sequence
from skest.inputs.array_dataset import take_rows
from skest.inputs.input_context import InputContext

# Bounds of the memory: rows that are decoded at a time, and rows that are converted at
# a time, of several small batches because each call of Arrow has a fixed cost.
_ROWS_READ = 2**15
_ROWS_CONVERTED = 2**13


@dataclass(frozen=True)
class Part:
    """A piece of the files that is read on its own.

    Parameters
    ----------
    read : callable
        ``read(columns, n_rows)`` yields record batches of at most so many rows.
    n_rows : int or None
        How many rows there are, if it is known without reading.
    """

    read: Callable[[list[str], int], Iterator[Any]]
    n_rows: int | None


class BatchOfPiece(dict[str, Any]):
    """Features of a batch that know the larger piece which they are cut from.

    To encode a piece at once takes a tenth of the time.

    Parameters
    ----------
    features : dict of arrays
        Of the batch.
    piece : features and labels
        Of the piece, which all of its batches share.
    rows : slice
        Those of the batch.
    """

    def __init__(self, features: Any, piece: tuple[Any, Any], rows: slice) -> None:
        super().__init__(features)
        self.piece = piece
        self.rows = rows


@dataclass(frozen=True, eq=False)
class FileBatches:
    """Batches of the rows of some files, of which a bounded part is in memory.

    Parameters
    ----------
    files : str
        What is read, for messages.
    parts : sequence of Part
        What to read; shuffling begins with their order.
    unit : str
        What a part is, for messages.
    features, labels : list of str
        Names of the columns.
    single_label : bool
        Whether labels are one array rather than a dictionary.
    batch_size : int
        Rows of a batch; the last one of an epoch may be smaller.
    shuffle_buffer : int
        How many rows are mixed at a time; 0 keeps their order.
    num_epochs : int or None
        How often the rows are gone through; None is without end.
    seed : int
        Seed of the orders: epoch ``e`` always has the order given by ``(seed, e)``.
    n_skipped : int, default=0
        How many of the first batches are left out.
    with_pieces : bool, default=False
        Whether features are `BatchOfPiece`.
    """

    files: str
    parts: Sequence[Part]
    unit: str
    features: list[str]
    labels: list[str]
    single_label: bool
    batch_size: int
    shuffle_buffer: int
    num_epochs: int | None
    seed: int
    n_skipped: int = 0
    with_pieces: bool = False
    is_restartable: ClassVar[bool] = True  # the files can be read again

    @property
    def is_endless(self) -> bool:
        """Whether it has no end."""
        return self.num_epochs is None

    @property
    def kind(self) -> str:
        """Say what makes the batches what they are, besides seeds and values."""
        return (
            f"{self.files}(parts={len(self.parts)}, rows={self._n_rows}, "
            f"batch_size={self.batch_size}, shuffle_buffer={self.shuffle_buffer})"
        )

    @property
    def seeds(self) -> list[int]:
        """The seed that all orders follow from."""
        return [self.seed]

    def resumed(self, n_elements: int, seeds: Sequence[int]) -> "FileBatches":
        """Return the same batches in the order of `seeds`, without the first ones."""
        (seed,) = seeds
        return replace(self, n_skipped=self.n_skipped + n_elements, seed=seed)

    def for_worker(self, context: InputContext) -> "FileBatches":
        """Return the batches of one worker: every n-th part, in orders of its own.

        Raises
        ------
        ValueError
            If there are fewer parts than workers.
        """
        own = self.parts[context.part_of(len(self.parts), self.unit)]
        return replace(self, parts=own, seed=context.own_seed(self.seed))

    def __iter__(self) -> Iterator[Any]:
        skip, first = self.n_skipped, 0
        # Whole epochs are passed over without reading, where the number of rows is
        # known.
        if self._n_rows:
            first, skip = divmod(skip, -(-self._n_rows // self.batch_size))
        epochs = count() if self.num_epochs is None else range(self.num_epochs)
        for epoch in islice(epochs, first, None):
            n_batches = 0
            for rows in self._pieces(epoch):
                # What is skipped is decoded, for its rows are counted and mixed, but
                # not converted.
                n_here = -(-len(rows) // self.batch_size)
                n_batches += n_here
                # From the first piece on that is used, `skip` is 0.
                if skip < n_here:
                    yield from islice(self._converted(rows), skip, None)
                skip = max(0, skip - n_here)
            # Without any row, to repeat for ever would never yield.
            if n_batches == 0:
                return

    @property
    def _n_rows(self) -> int | None:
        known = [part.n_rows for part in self.parts if part.n_rows is not None]
        return sum(known) if len(known) == len(self.parts) else None

    def _pieces(self, epoch: int) -> Iterator[Any]:
        """Yield tables of whole batches in the order of an epoch."""
        size = max(1, _ROWS_CONVERTED // self.batch_size) * self.batch_size
        for table in self._mixed(epoch):
            for start in range(0, len(table), size):
                yield table.slice(start, size)

    def _mixed(self, epoch: int) -> Iterator[Any]:
        """Yield tables of whole batches, mixed if that is wanted, up to the last rows."""
        import pyarrow as pa

        # Of the seed and the number of the epoch alone: a resumed training jumps to it.
        rng = np.random.default_rng(seed_sequence(self.seed, epoch))
        # As tf.data's shuffle: a buffer, so that memory has a bound whatever the size
        # of the files.
        # Rows; at least a batch must be there before one is made.
        wanted = max(self.shuffle_buffer, self.batch_size)
        waiting, n_waiting = [], 0
        for batch in self._read(rng):
            waiting.append(pa.Table.from_batches([batch]))
            n_waiting += len(batch)
            if n_waiting >= wanted:
                ready, rest = self._divided(_joined(waiting), rng)
                yield ready
                waiting, n_waiting = [rest], len(rest)
        if waiting:
            rest = _joined(waiting)
            # The last rows, fewer than wait otherwise.
            yield rest.take(rng.permutation(len(rest))) if self.shuffle_buffer else rest

    def _read(self, rng: np.random.Generator) -> Iterator[Any]:
        n_parts = len(self.parts)
        for i in rng.permutation(n_parts) if self.shuffle_buffer else range(n_parts):
            columns = [*self.features, *self.labels]
            yield from self.parts[i].read(columns, _ROWS_READ)

    def _divided(self, table: Any, rng: np.random.Generator) -> tuple[Any, Any]:
        """Return rows to use now, a multiple of the batch size, and those that wait."""
        n_rows, size = len(table), self.batch_size
        if not self.shuffle_buffer:
            n_ready = n_rows // size * size
            return table.slice(0, n_ready), table.slice(n_ready)
        # The other half waits, to be mixed with rows of the parts that are read next.
        n_ready = max(n_rows // 2 // size, 1) * size
        order = rng.permutation(n_rows)
        return table.take(order[:n_ready]), table.take(order[n_ready:])

    def _converted(self, table: Any) -> Iterator[Any]:
        """Yield the batches of a table."""
        # One piece of memory, so that NumPy gets views where there are no gaps.
        table = table.combine_chunks()
        features = {name: as_numpy(table[name], name) for name in self.features}
        each = {name: self._label(table[name], name) for name in self.labels}
        labels = each[self.labels[0]] if self.single_label else each or None
        piece = features, labels
        # Lists are padded to the longest: of some thousand, it may be very long.
        is_flat = not any(_is_list(table[name].type) for name in self.features)
        for start in range(0, len(table), self.batch_size):
            rows = slice(start, start + self.batch_size)
            batch = take_rows(features, rows)
            if self.with_pieces and is_flat:
                batch = BatchOfPiece(batch, piece, rows)
            yield batch if labels is None else (batch, take_rows(labels, rows))

    def _label(self, column: Any, name: str) -> Any:
        # Features may have gaps; to guess a label would be to make up data.
        if column.null_count:
            raise ValueError(
                f"Column {name!r} is the label and has {column.null_count} missing "
                f"value(s) in some of {self.files}. Remove those rows from the files, or "
                "fill them."
            )
        return as_numpy(column, name)


def _joined(tables: list[Any]) -> Any:
    """Return one table; dictionaries may differ between parts."""
    import pyarrow as pa

    # Each file numbers its categories by itself.
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


def import_arrow(what: str) -> Any:
    """Return pyarrow, which only streaming needs.

    Raises
    ------
    ImportError
        If it is not installed, with the command that does it.
    """
    with needing("pyarrow", what):
        import pyarrow
        import pyarrow.csv
        import pyarrow.dataset
    return pyarrow


def as_numpy(column: Any, name: str) -> Any:
    """Return a column as an array, with the gaps of each type as feature columns read them.

    Parameters
    ----------
    column : pyarrow.ChunkedArray
        The column; a dictionary is decoded.
    name : str
        Its name, for messages.

    Returns
    -------
    ndarray or pandas array
        Floats with NaN; integers and Booleans, as a masked array of pandas if there are
        gaps; strings and bytes as objects with None; datetime64; lists as an array of
        arrays, or of shape (n_rows, n_values) if the type fixes their length.

    Raises
    ------
    TypeError
        If the column is of another type.
    """
    import pyarrow as pa
    from pyarrow import types

    # Codes differ between row groups, strings do not.
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_decimal(kind):
        # NumPy would get objects of Python's Decimal.
        column = column.cast(pa.float64())
    elif types.is_integer(kind) or types.is_boolean(kind):
        return _masked(column) if column.null_count else column.to_numpy()
    elif types.is_fixed_size_list(kind) and not column.null_count:
        # (n_rows * list_size,)
        values = as_numpy(pa.chunked_array([column.combine_chunks().flatten()]), name)
        return values.reshape(len(column), kind.list_size)
    elif types.is_time(kind) or (types.is_nested(kind) and not _is_list(kind)):
        raise TypeError(
            f"Column {name!r} has the type {kind}, which no feature column reads. Leave it "
            "out with 'columns', write its parts as columns of their own, or read it as "
            f"a string (in csv_input_fn column_types={{{name!r}: 'string'}})."
        )
    return column.to_numpy()


def _is_list(kind: Any) -> bool:
    from pyarrow import types

    return (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    )


def _masked(column: Any) -> pd.api.extensions.ExtensionArray:
    """Return integers or Booleans with gaps; not as floats, which change large ones."""
    missing = np.asarray(column.is_null().to_numpy(), dtype=bool)
    if column.type == "bool":
        values = column.fill_null(False).to_numpy().astype(bool)
        return pd.arrays.BooleanArray(values, missing)
    return pd.arrays.IntegerArray(column.fill_null(0).to_numpy().copy(), missing)
