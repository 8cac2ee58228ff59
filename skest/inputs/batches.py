# SPDX-License-Identifier: Apache-2.0
"""From what an ``input_fn`` returned to batches of tensors on the device.

`Transfer` brings them to a GPU while it computes.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from skest.core.console import said_if_long
from skest.feature_columns.cells import as_cells
from skest.feature_columns.table import TableColumns
from skest.inputs.array_dataset import ArrayDataset, check_same_rows, count_rows
from skest.inputs.files import BatchOfPiece
from skest.inputs.loaders import repeatable
from skest.inputs.pipeline import Pipeline, Resumable, repeats_itself

_END = object()
_GATHERED_BYTES = 2**20  # of the batches that are taken from a table together
_ALIGNED_ROWS = 16  # of at least four bytes: a multiple of 64 bytes
# So many columns of one type are copied side by side, unless that takes more memory.
_FEWEST_STACKED, _MOST_STACKED_BYTES = 32, 2**30

_logger = logging.getLogger("skest")
_MOST_BYTES_OF_ROW = 2**12  # in one tensor of a piece of files
_MANY_ROWS = 100_000  # that take long enough to be told of


class Source:
    """Data of one call: its first batch, and all batches in order.

    Parameters
    ----------
    data : ArrayDataset or iterable
        What ``input_fn`` returned; elements are ``(features, labels)`` or features.
    position : dict, default=None
        Where to go on, from `Source.position` of an interrupted call. It is ignored with
        a warning if it belongs to data of another kind or size.

    Raises
    ------
    TypeError
        If `data` is not iterable, or is itself one batch.
    ValueError
        If an element is a tuple but not a pair.
    """

    def __init__(self, data: Any, position: Mapping[str, Any] | None = None) -> None:
        if not isinstance(data, ArrayDataset):
            # A dictionary of arrays is iterable, too: its keys would be taken for
            # batches.
            check_batches(data)
            data = repeatable(data)
        # An ArrayDataset is one, and to ask if anything is one takes long.
        resumable = data if isinstance(data, ArrayDataset | Resumable) else None
        if isinstance(resumable, Pipeline):
            resumable = resumable.with_pieces()
        self._kind = resumable.kind if resumable is not None else type(data).__name__
        self._seeds = list(resumable.seeds) if resumable is not None else []
        self._n_skipped = 0
        if position is not None and self._is_mine(position):
            self._n_skipped, self._seeds = position["batches"], position["seeds"]
        #: Whether it is known that the data have no end.
        self.is_endless: bool = getattr(data, "is_endless", False)
        self._data: Any = data
        self._can_jump = resumable is not None and repeats_itself(resumable)
        self.table: ArrayDataset | None = None
        if isinstance(data, ArrayDataset):
            self.table = data.resumed(self._n_skipped, self._seeds)
        elif resumable is not None:
            self._data = resumable.resumed(0, self._seeds)
        self._first: Any = None
        self._last: Any = None
        self._opened: Iterator[Any] = iter(()) if self.table else iter(self._data)

    def first_batch(self) -> tuple[Any, Any] | None:
        """Return raw features and labels of the first batch, or None if there is none.

        It is the first of all, wherever the data go on: a model must not depend on where
        a training was interrupted.
        """
        if self.table is not None:
            return self.table.first_batch()
        if self._first is None:
            self._first = next(self._opened, _END)
        return None if self._first is _END else _split(self._first)

    @property
    def rows_per_batch(self) -> int | None:
        """Number of rows of the first batch, or None if there is none."""
        if self.table is not None:
            return self.table.batch_size
        first = self.first_batch()
        return None if first is None else count_rows(first[0], "features")

    def batches(self) -> Iterator[tuple[Any, Any]]:
        """Yield raw features and labels, batch by batch; for data without a table.

        Raises
        ------
        ValueError
            If the data end before the position to go on from.
        """
        n_skipped = self._n_skipped
        # Without reading what was trained on; other iterables are gone through.
        # Whatever was opened for the first batch starts at the beginning.
        if n_skipped and self._can_jump:
            self.close()
            self._opened = iter(self._data.resumed(n_skipped, self._seeds))
            return map(self._noted, self._opened)
        # It may have been taken from the iterator: it is put in front again.
        self.first_batch()
        rest = chain([] if self._first is _END else [self._first], self._opened)
        if n_skipped and next(islice(rest, n_skipped - 1, None), _END) is _END:
            raise ValueError(
                f"The interrupted training took {n_skipped} batches, but this input has "
                "fewer. Return the same data from 'input_fn', or start them anew with "
                "RunConfig(resume_input=False)."
            )
        return map(self._noted, rest)

    def raw_batch(self, n_taken: int) -> tuple[Any, Any] | None:
        """Return features and labels, before encoding, of the batch that was taken last.

        Parameters
        ----------
        n_taken : int
            How many batches of this source were taken.

        Returns
        -------
        tuple of (features, labels) or None
            None if there was none.
        """
        if self.table is None or n_taken == 0:
            return self._last
        # Found again by its number, since to keep each batch would cost in every step.
        rows = next(islice(self.table.index_batches(), n_taken - 1, None), None)
        return None if rows is None else self.table.take(rows)

    def _noted(self, element: Any) -> tuple[Any, Any]:
        # For errors that tell of the batch.
        self._last = _split(element)
        return self._last

    def position(self, n_taken: int) -> dict[str, Any]:
        """Return where the data are after `n_taken` further batches; JSON holds it."""
        return {
            "input": self._kind,
            "batches": self._n_skipped + n_taken,
            "seeds": self._seeds,
        }

    def close(self) -> None:
        """Give up what reads the data, such as a thread or an open file.

        An iterator that ``input_fn`` returned is its owner's, who may go on with it.
        """
        # An iterator is its own iterator.
        if self._opened is not self._data and hasattr(self._opened, "close"):
            self._opened.close()

    def _is_mine(self, position: Mapping[str, Any]) -> bool:
        n_batches, kind = position["batches"], position["input"]
        if kind != self._kind or len(position["seeds"]) != len(self._seeds):
            _logger.warning(
                "The input starts anew: the interrupted training had taken %d batches of "
                "%s, but 'input_fn' returns %s.",
                n_batches,
                kind,
                self._kind,
            )
            return False
        if n_batches:
            _logger.info("The input goes on behind batch %d.", n_batches)
        return True


def check_batches(data: Any) -> None:
    """Raise TypeError unless `data` may be an iterable of batches."""
    is_one_batch = isinstance(data, Mapping | tuple) or hasattr(data, "shape")
    if isinstance(data, Iterable) and not is_one_batch:
        return
    hint = (
        "For single samples, use torch.utils.data.DataLoader(dataset, batch_size) "
        "or skest.inputs.Pipeline(dataset).batch(batch_size)."
        if isinstance(data, Dataset) and not is_one_batch
        else "For arrays in memory use skest.inputs.ArrayDataset or "
        "numpy_input_fn; for one batch, a list of it."
    )
    raise TypeError(
        "'input_fn' must return an ArrayDataset or an iterable of batches; "
        f"got {type(data).__name__}. {hint}"
    )


def tensor_batches(
    source: Source,
    encode: Callable[[Any], Any] | None,
    encode_labels: Callable[[Any], Any] | None,
    device: torch.device,
    dtype: torch.dtype,
    with_labels: bool = True,
    rows_at_once: int | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Return an iterator of encoded batches on the device.

    A table in memory is encoded as a whole, here and now, so that wrong values are
    refused before the first step, unless `rows_at_once` says otherwise; files are encoded
    some thousand rows at a time, other data batch by batch.

    Parameters
    ----------
    source : Source
        The data of the call.
    encode, encode_labels : callable or None
        As in `EstimatorSpec`; with None, arrays become tensors, and floats are cast to
        `dtype`.
    device : torch.device
        Where the batches are wanted.
    dtype : torch.dtype
        Floating type of the network.
    with_labels : bool, default=True
        Whether labels are wanted.
    rows_at_once : int, default=None
        About how many rows of a table to encode at once; the others follow when their
        batches are asked for. None is all.

    Returns
    -------
    iterator of (features, labels)
        Tensors, or dictionaries of tensors; labels None if there are none.
    """

    def as_tensors(data: Any) -> Any:
        return _map_leaves(data, lambda leaf: _as_tensor(leaf, dtype))

    def encoded(features: Any, labels: Any) -> tuple[Any, Any]:
        x = (encode or as_tensors)(features)
        if labels is None or not with_labels:
            return x, None
        y = (encode_labels or as_tensors)(labels)
        # Encoders may change the number of rows; tensors that disagree would broadcast.
        # None for ragged or custom structures, which nobody can count.
        n_features, n_labels = _common_rows(x), _common_rows(y)
        if n_features is not None and n_labels is not None:
            check_same_rows(n_features, n_labels)
        return x, y

    def batches_of(table: ArrayDataset) -> Iterator[tuple[Any, Any]]:
        # As a whole, and once: every epoch takes its rows from the tensors.
        x, y = encoded(table.features, table.labels)
        if isinstance(table.features, TableColumns):
            table.features.let_go()
        return _table_batches(table, x, y, device)

    if source.table is not None and rows_at_once is not None:
        # Lazily: a piece is encoded when the one before is used up and let go.
        pieces = source.table.pieces(rows_at_once)
        return chain.from_iterable(map(batches_of, pieces))
    if source.table is not None:
        if source.table.n_rows >= _MANY_ROWS:
            _logger.info("Encoding %d rows.", source.table.n_rows)
        with said_if_long(f"Encoding {source.table.n_rows:,} rows"):
            return batches_of(source.table)
    move = _mover(device)
    # As a generator: a batch is encoded when it is asked for.
    return (move(batch) for batch in _encoded_batches(source, encoded))


def _encoded_batches(
    source: Source, encoded: Callable[[Any, Any], Any]
) -> Iterator[tuple[Any, Any]]:
    leaves: tuple[Any, ...] | None = None
    piece = nest = None
    for features, labels in source.batches():
        if not isinstance(features, BatchOfPiece):
            yield encoded(features, labels)
            continue
        if features.piece is not piece:
            piece = features.piece
            leaves, nest = _flattened(encoded(*piece))
            n_rows = count_rows(piece[0], "features")
            # Sparse tensors, offsets of bags and the like cannot be cut by rows; texts
            # of very many words are padded to the longest.
            if not all(_has_rows(leaf, n_rows) for leaf in leaves):
                leaves = None
        if leaves is None:
            yield encoded(features, labels)
        else:
            yield _nested(nest, [leaf[features.rows] for leaf in leaves])


def _has_rows(leaf: Any, n_rows: int) -> bool:
    is_plain = isinstance(leaf, np.ndarray) or (
        isinstance(leaf, Tensor) and leaf.layout == torch.strided
    )
    if not is_plain or leaf.ndim == 0 or len(leaf) != n_rows:
        return False
    return bool(leaf.nbytes <= _MOST_BYTES_OF_ROW * n_rows)


def _common_rows(data: Any) -> int | None:
    """Return the number of rows of tensors that agree in it; None for other structures."""
    sizes = {
        len(leaf) if isinstance(leaf, Tensor) and leaf.ndim else None
        for leaf in (data.values() if isinstance(data, Mapping) else [data])
    }
    return sizes.pop() if len(sizes) == 1 else None


def _table_batches(
    table: ArrayDataset, features: Any, labels: Any, device: torch.device
) -> Iterator[tuple[Any, Any]]:
    leaves, nest = _flattened((features, labels))
    fits = _fits(leaves, device)
    move = partial(_to, device=device) if fits else _mover(device)
    if fits:
        # The table goes to the device once, and batches are cut there.
        leaves = move(leaves)
    stacks: list[tuple[list[int], Tensor]] | None = None
    for rows in _rows_of_batches(table, leaves):
        # One batch is all: no view is needed.
        if isinstance(rows, slice) and rows.stop - rows.start == table.n_rows:
            yield _nested(nest, move(tuple(map(_copied, leaves))))
        elif isinstance(rows, slice):
            yield _nested(nest, move(tuple(_copied(leaf[rows]) for leaf in leaves)))
        else:
            stacks = _stacks(leaves) if stacks is None else stacks
            for batch in _taken(rows, leaves, stacks, move):
                yield _nested(nest, batch)


def _copied(rows: Any) -> Any:
    # A network may change its input in place, and the table is the caller's.
    return rows.clone() if isinstance(rows, Tensor) else rows


def _flattened(data: Any) -> tuple[tuple[Any, ...], Any]:
    """Return the different arrays of a nest, and the nest with their places in it."""
    leaves: list[Any] = []
    places: dict[int, int] = {}

    def place_of(leaf: Any) -> int:
        # Columns over one categorical column share its ids, which are gathered once.
        if id(leaf) not in places:
            places[id(leaf)] = len(leaves)
            leaves.append(leaf)
        return places[id(leaf)]

    nest = _map_leaves(data, place_of)
    return tuple(leaves), nest


def _nested(nest: Any, leaves: Sequence[Any]) -> Any:
    """Put arrays into a nest that `_flattened` returned; it is called for every batch."""
    if isinstance(nest, int):
        return leaves[nest]
    if isinstance(nest, dict):
        return {key: _nested(place, leaves) for key, place in nest.items()}
    return None if nest is None else tuple(_nested(part, leaves) for part in nest)


def _rows_of_batches(
    table: ArrayDataset, leaves: Sequence[Any]
) -> Iterator[slice | list[np.ndarray]]:
    """Yield the rows of batches, those of several batches at once if rows are drawn.

    To take them from every column costs far less than to do so for each batch. All
    batches begin where a new tensor might, at a multiple of 64 bytes, because products
    of matrices may round differently elsewhere.
    """
    # Of a batch, on average.
    n_bytes = max(1, _size_of(leaves) * table.batch_size // table.n_rows)
    is_aligned = table.batch_size % _ALIGNED_ROWS == 0
    most = max(1, _GATHERED_BYTES // n_bytes) if is_aligned else 1
    drawn: list[np.ndarray] = []
    for rows in table.index_batches():
        if isinstance(rows, slice):
            yield rows
            continue
        drawn.append(rows)
        if len(drawn) == most or len(rows) < table.batch_size:
            yield drawn
            drawn = []
    if drawn:
        yield drawn


def _stacks(leaves: Sequence[Any]) -> list[tuple[list[int], Tensor]]:
    """Return the places of many columns of one type, and the columns side by side.

    To take a thousand columns' rows from each column would cost more than a step.
    """
    places: dict[torch.dtype, list[int]] = {}
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, Tensor) and leaf.ndim == 2 and leaf.shape[1] == 1:
            places.setdefault(leaf.dtype, []).append(place)
    return [
        # (n_rows, n_columns)
        (own, torch.cat([leaves[place] for place in own], dim=1))
        for own in places.values()
        if len(own) >= _FEWEST_STACKED
        and _size_of([leaves[place] for place in own]) <= _MOST_STACKED_BYTES
    ]


def _taken(
    rows: list[np.ndarray],
    leaves: Sequence[Any],
    stacks: Sequence[tuple[list[int], Tensor]],
    move: Callable[[Any], Any],
) -> list[list[Any]]:
    """Return the arrays of batches, whose rows they are, as views of one copy."""
    sizes = [len(own) for own in rows]
    # (n_rows of all batches taken together,)
    index = torch.from_numpy(np.concatenate(rows))
    padded = index
    if stacks:  # Columns begin at multiples of 64 bytes, as batches do.
        padded = torch.cat([index, index.new_zeros(-len(index) % _ALIGNED_ROWS)])
    stacked = {place for places, _ in stacks for place in places}
    apart = [place for place in range(len(leaves)) if place not in stacked]
    taken = move(
        (
            *(_rows_of(index, leaves[place]) for place in apart),
            # (n_columns, n_rows of all batches): each column is in one piece.
            *(_rows_of(padded, stack).T.contiguous() for _, stack in stacks),
        )
    )
    batches: list[list[Any]] = [[None] * len(leaves) for _ in rows]
    for place, leaf in zip(apart, taken, strict=False):
        for batch, part in zip(batches, _split_rows(leaf, sizes), strict=True):
            batch[place] = part
    for (places, _), columns in zip(stacks, taken[len(apart) :], strict=True):
        parts = columns[:, : len(index)].split(sizes, dim=1)
        for batch, part in zip(batches, parts, strict=True):
            for place, column in zip(places, part.unsqueeze(2).unbind(), strict=True):
                batch[place] = column
    return batches


def _size_of(leaves: Sequence[Any]) -> int:
    return sum(getattr(leaf, "nbytes", 0) for leaf in leaves)


def _split_rows(leaf: Any, sizes: list[int]) -> Sequence[Any]:
    if isinstance(leaf, Tensor):
        return leaf.split(sizes)
    return np.split(leaf, np.cumsum(sizes)[:-1])


def _rows_of(index: Tensor, leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        there = index if leaf.device == index.device else index.to(leaf.device)
        if leaf.numel() == len(leaf) and leaf.is_contiguous():
            # Three times as fast as with a second dimension of 1.
            return leaf.view(-1).index_select(0, there).view(-1, *leaf.shape[1:])
        return leaf.index_select(0, there)
    return leaf[index.numpy()]


def _fits(leaves: Sequence[Any], device: torch.device) -> bool:
    """Tell whether the table may live on the device beside the model."""
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    # The other half is for the model, its activations and the slots of its optimizers.
    return _size_of(leaves) < free / 2


def _as_tensor(value: Any, dtype: torch.dtype) -> Any:
    """Return a tensor; strings and other objects stay arrays."""
    if isinstance(value, Tensor):
        if value.dtype == dtype or not value.is_floating_point():
            return value
        return value.to(dtype)
    array = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
    # Objects, such as decimals, are not guessed at.
    if array.dtype.kind == "f":
        return torch.as_tensor(_owned(array), dtype=dtype)
    if array.dtype.kind in "biu":
        return torch.as_tensor(_owned(array))
    return array


def _owned(array: np.ndarray) -> np.ndarray:
    """Copy an array in native byte order: a network may change its input in place."""
    return array.astype(array.dtype.newbyteorder("="), copy=True)


def _map_leaves(data: Any, function: Callable[[Any], Any]) -> Any:
    """Apply `function` to all arrays of a nest of dictionaries and tuples."""
    if data is None:
        return None
    if isinstance(data, Tensor):
        return function(data)
    # dict by itself, since to ask for an abstract class takes several times as long.
    if isinstance(data, dict | Mapping):
        return {key: _map_leaves(value, function) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple([_map_leaves(value, function) for value in data])
    if hasattr(data, "columns"):  # a DataFrame of pandas or polars
        return {name: function(data[name]) for name in data.columns}
    return function(data)


def _map_tensors(data: Any, function: Callable[[Tensor], Any]) -> Any:
    """Apply `function` to all tensors of a nest; other leaves stay."""
    return _map_leaves(
        data, lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf
    )


def _to(data: Any, device: torch.device) -> Any:
    if device.type == "cpu":
        return data
    return _map_tensors(data, lambda leaf: leaf.to(device))


def _mover(device: torch.device) -> Callable[[Any], Any]:
    """Return what brings one batch after the other to the device."""
    if device.type != "cuda":
        return partial(_to, device=device)
    transfer = Transfer(device)

    def move(data: Any) -> Any:
        transfer.wait_for_steps()
        return _map_tensors(data, transfer)

    return move


def _split(element: Any) -> tuple[Any, Any]:
    if not isinstance(element, tuple | list):  # a DataLoader makes lists of its pairs
        return _columns(element), None
    if len(element) != 2:
        raise ValueError(
            "A batch of 'input_fn' must be features or a pair (features, labels); "
            f"got a {type(element).__name__} of {len(element)}. Weights are a column of "
            "the features, the 'weight_column' of a head."
        )
    return _columns(element[0]), _columns(element[1])


def _columns(data: Any) -> Any:
    """Make arrays of columns that are lists, as a DataLoader leaves strings."""
    if not (
        isinstance(data, Mapping) and any(isinstance(v, list) for v in data.values())
    ):
        return data
    return {k: as_cells(v) if isinstance(v, list) else v for k, v in data.items()}


# Of the host, which would else fill pinned memory while the GPU computes.
_STEPS_AHEAD = 2


class Transfer:
    """Brings batches to a GPU: from pinned memory, on a stream of its own.

    So a batch is on its way while the steps before it are computed. No more than two of
    them may be ahead, or batches that wait would fill the memory of the GPU.

    Parameters
    ----------
    device : torch.device
        The GPU.

    Notes
    -----
    It follows the tutorial "A guide on good usage of non_blocking and pin_memory()" of
    PyTorch: pinned memory is not given back before its copy is complete, and memory of
    the GPU that another stream reserved is recorded for the one that uses it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._steps: deque[torch.cuda.Event] = deque()

    def __call__(self, leaf: Tensor) -> Tensor:
        """Return a tensor on the GPU; what is launched from now on waits for it."""
        if leaf.is_cuda or leaf.layout != torch.strided:
            return leaf.to(self._device)
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            there = pinned(leaf).to(self._device, non_blocking=True)
        current.wait_stream(self._stream)
        # Its memory is the other stream's, which must not give it away while this one
        # reads.
        there.record_stream(current)
        return there

    def wait_for_steps(self) -> None:
        """Begin a batch, when few enough of the steps before are still to be computed."""
        # Behind all that the steps until now have launched.
        self._steps.append(torch.cuda.current_stream(self._device).record_event())
        if len(self._steps) > _STEPS_AHEAD:
            self._steps.popleft().synchronize()


def pinned(leaf: Tensor) -> Tensor:
    """Return a copy in pinned memory, which nobody else writes into.

    `Tensor.pin_memory` returns a tensor that is pinned as it is, takes as much memory for
    a column as for its table, and refuses one that repeats a number by a stride of 0.
    """
    return torch.empty_like(leaf, pin_memory=True).copy_(leaf)
