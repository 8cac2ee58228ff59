# SPDX-License-Identifier: Apache-2.0
"""The files of a checkpoint."""

import functools
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from skest.checkpoints.checkpoint import Checkpoint
from skest.core.files import explained, flush, write_file
from skest.core.tensor_files import Rows, TensorInFile, tensors_in, write_tensors
from skest.exceptions import CorruptCheckpointError

FORMAT = "skest.checkpoint/1"
STATE = "state.json"
TENSOR_FILES = {
    "variables": "variables.safetensors",
    "optimizer": "optimizer.safetensors",
}

_FORMAT_OF_SHARDS = "skest.sharded_checkpoint/1"
_CHECKSUM = "crc32"
_BLOCK_BYTES = 1 << 20
_DAMAGE = (
    AttributeError,
    FileNotFoundError,
    IndexError,
    KeyError,
    SafetensorError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, eq=False)
class ShardedCheckpoint:
    """A checkpoint of which other processes write parts, for ``DirectoryStore.save``.

    Parameters
    ----------
    own : Checkpoint
        The step, all that JSON holds, and the tensors that this process has.
    write_shards : callable
        ``write_shards(directory)`` lets the others write theirs, and returns what
        describes them: see `skest.distributed.ps.checkpoint.index_of`.
    """

    own: Checkpoint
    write_shards: Callable[[Path], Mapping[str, Any]]

    @property
    def global_step(self) -> int:
        """Training steps taken."""
        return self.own.global_step

    @property
    def variables(self) -> Mapping[str, Tensor]:
        """Those of this process."""
        return self.own.variables


@dataclass(frozen=True, eq=False)
class StoredTensor:
    """A tensor as it lies in its files.

    Parameters
    ----------
    shards : tuple of callable
        Each returns a part in its file, whose checksum is asked for then.
    n_rows : int or None
        Rows of a table that is cut by `skest.checkpoints.format`; None is a whole tensor.
    """

    shards: tuple[Callable[[], TensorInFile], ...]
    n_rows: int | None = None

    def whole(self) -> Tensor:
        """Return all of it."""
        if self.n_rows is None or len(self.shards) == 1:
            return self.shards[0]().mapped
        return gathered_rows([shard() for shard in self.shards], self.n_rows)

    def described(self) -> Tensor:
        """Return its shape and type, as a tensor on the meta device."""
        first = self.shards[0]()
        n_rows = first.shape[:1] if self.n_rows is None else (self.n_rows,)
        shape = (*n_rows, *first.shape[1:])
        return torch.empty(shape, dtype=first.dtype, device="meta")

    def shard(self, index: int, n: int) -> Tensor:
        """Return what shard `index` of `n` of a table has, as a new tensor."""
        if self.n_rows is not None and len(self.shards) == n:
            own = self.shards[index]()
            check_shard(own, self.n_rows, index, n)
            return own[:]
        parts = [shard() for shard in self.shards]
        n_rows = parts[0].shape[0] if self.n_rows is None else self.n_rows
        return gathered_rows(parts, n_rows, index, n)


class CheckpointFiles:
    """The files of a checkpoint that exists; they are checked when they are read.

    Parameters
    ----------
    path : Path
        Its directory. Errors are those that `reading` explains.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.state = json.loads((path / STATE).read_bytes())
        if self.state["format"] not in (FORMAT, _FORMAT_OF_SHARDS):
            raise ValueError(f"its format is {self.state['format']!r}, not {FORMAT!r}")
        _check_sum(STATE, _crc32_of(self.state), self.state.pop(_CHECKSUM))
        self._tensors: dict[str, dict[str, TensorInFile]] = {}

    def stored(self, kind: str) -> dict[str, StoredTensor]:
        """Return the variables, or the tensors of optimizers, by name.

        Parameters
        ----------
        kind : {"variables", "optimizer"}
            Which ones.
        """
        own = TENSOR_FILES[kind]
        found = {name: self._whole(own, name) for name in self._read(own)}
        index = self.state.get("shards", {})
        for name, file in index.get(kind, {}).get("dense", {}).items():
            found[name] = self._whole(file, name)
        for name, table in index.get(kind, {}).get("tables", {}).items():
            shards = [functools.partial(self._get, f, name) for f in table["files"]]
            found[name] = StoredTensor(tuple(shards), int(table["rows"]))
        return found

    def _whole(self, file: str, name: str) -> StoredTensor:
        return StoredTensor((functools.partial(self._get, file, name),))

    def _get(self, file: str, name: str) -> TensorInFile:
        return self._read(file)[name]

    def _read(self, name: str) -> dict[str, TensorInFile]:
        if name not in self._tensors:
            path = self._path / name
            _check_sum(name, checksum(path), self.state["files"][name])
            self._tensors[name] = tensors_in(path)
        return self._tensors[name]


def read_checkpoint(
    path: str | os.PathLike[str],
    take: Callable[[StoredTensor], Tensor] = StoredTensor.whole,
) -> Checkpoint:
    """Read a checkpoint directory.

    Parameters
    ----------
    path : str or path
        A directory ``ckpt-<step>``.
    take : callable, default=StoredTensor.whole
        Returns what shall stand for a tensor.

    Returns
    -------
    Checkpoint
        Its tensors are mapped from the file; tables in shards are put together.

    Raises
    ------
    ValueError
        If there is no checkpoint at `path`.
    CorruptCheckpointError
        If a file is missing, is not what it should be or does not have its recorded
        checksum.
    OSError
        If the system does not let it be read now; the checkpoint may be whole.
    """
    with reading(Path(path)) as files:
        tensors = {
            kind: {name: take(s) for name, s in files.stored(kind).items()}
            for kind in TENSOR_FILES
        }
        return Checkpoint(
            global_step=int(files.state["global_step"]),
            variables=tensors["variables"],
            optimizer=tensors["optimizer"],
            scalars=files.state["scalars"],
            input_position=files.state.get("input_position"),
        )


@contextmanager
def reading(path: Path) -> Iterator[CheckpointFiles]:
    """Open a checkpoint, and tell of what is wrong with it as `read_checkpoint` does."""
    what = f"The checkpoint {str(path)!r} can't be read"
    with explained(what, "See to the permissions, or try again."):
        if not is_checkpoint(path):
            raise ValueError(
                f"There is no checkpoint at {str(path)!r}: a checkpoint is a directory "
                f"ckpt-<step> that holds {STATE}."
            )
        try:
            yield CheckpointFiles(path)
        except _DAMAGE as error:
            raise CorruptCheckpointError(
                f"The checkpoint {str(path)!r} is damaged: {error}. Delete it to go on "
                "from an older one."
            ) from error


def write_checkpoint(
    checkpoint: Checkpoint | ShardedCheckpoint, directory: Path
) -> None:
    """Write the files of a checkpoint into a directory that exists."""
    shards: Mapping[str, Any] = {}
    if isinstance(checkpoint, ShardedCheckpoint):
        shards, checkpoint = checkpoint.write_shards(directory), checkpoint.own
    tensors = {"variables": checkpoint.variables, "optimizer": checkpoint.optimizer}
    for kind, name in TENSOR_FILES.items():
        write_tensors(tensors[kind], directory / name)
        flush(directory / name)
    state = {
        "format": FORMAT,
        "global_step": checkpoint.global_step,
        "scalars": checkpoint.scalars,
        "input_position": checkpoint.input_position,
        "files": {name: checksum(directory / name) for name in TENSOR_FILES.values()},
    }
    if shards:
        _add_shards(state, shards, tensors)
    state[_CHECKSUM] = _crc32_of(state)
    write_file(directory / STATE, json.dumps(state).encode())


def _add_shards(
    state: dict[str, Any],
    shards: Mapping[str, Any],
    own: Mapping[str, Mapping[str, Tensor]],
) -> None:
    index = {key: value for key, value in shards.items() if key != "files"}
    for kind, tensors in own.items():
        names = {**index[kind]["dense"], **index[kind]["tables"]}
        if twice := sorted(names.keys() & tensors.keys()):
            raise ValueError(
                f"The {kind} {', '.join(map(repr, twice))} are in a shard, and in the "
                "part of the process that saves as well. Leave them out of one."
            )
    state["format"] = _FORMAT_OF_SHARDS
    state["files"] |= shards["files"]
    state["shards"] = index


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    with path.open("rb") as file:
        found = 0
        while content := file.read(_BLOCK_BYTES):
            found = zlib.crc32(content, found)
        return found


def _crc32_of(state: dict[str, Any]) -> int:
    """Return the checksum of what ``state.json`` holds beside it."""
    content = {key: value for key, value in state.items() if key != _CHECKSUM}
    return zlib.crc32(json.dumps(content).encode())


def _check_sum(name: str, found: int, recorded: Any) -> None:
    if found != recorded:
        raise ValueError(
            f"{name} has the checksum {found}, not the recorded {recorded}"
        )


def is_checkpoint(path: Path) -> bool:
    """Tell whether a directory is a checkpoint, under any name."""
    return (path / STATE).is_file()


_SHARD_BLOCK_BYTES = 1 << 22


def shard_length(n_rows: int, index: int, n: int) -> int:
    """Return how many of `n_rows` rows shard `index` of `n` has.

    Examples
    --------
    >>> from skest.checkpoints.format import shard_length
    >>> [shard_length(7, index, 3) for index in range(3)]
    [3, 2, 2]
    """
    return len(range(index, n_rows, n))


def check_shard(shard: Rows, n_rows: int, index: int, n: int) -> None:
    """Raise ValueError unless a shard has as many rows as it should have."""
    found, expected = tuple(shard.shape), shard_length(n_rows, index, n)
    if not found or found[0] != expected:
        raise ValueError(
            f"shard {index} of {n} of a table of {n_rows} rows should have {expected} "
            f"of them; its shape is {found}"
        )


def gathered_rows(
    shards: Sequence[Rows], n_rows: int, index: int = 0, n: int = 1
) -> Tensor:
    """Make one shard out of shards of another number.

    Parameters
    ----------
    shards : sequence of Tensor or Rows
        All shards of a table, in order. They are read in blocks of rows, and only those
        that have rows which are wanted.
    n_rows : int
        Rows of the table.
    index, n : int, default=0, 1
        Which shard of how many is wanted; the default is the whole table.

    Returns
    -------
    Tensor of shape (shard_length(n_rows, index, n), ...)
        A new tensor.

    Raises
    ------
    ValueError
        If a shard does not have the rows or the columns that it should have.

    Examples
    --------
    >>> import torch
    >>> from skest.checkpoints.format import gathered_rows
    >>> table = torch.arange(7)
    >>> gathered_rows([table[0::2], table[1::2]], 7, index=1, n=3)
    tensor([1, 4])
    """
    m = len(shards)
    for j, shard in enumerate(shards):
        check_shard(shard, n_rows, j, m)
        if shard.shape[1:] != shards[0].shape[1:] or shard.dtype != shards[0].dtype:
            raise ValueError(
                f"shard {j} of {m} of a table is {shard.dtype} of shape "
                f"{tuple(shard.shape)}, but shard 0 {shards[0].dtype} of shape "
                f"{tuple(shards[0].shape)}"
            )
    rows = shard_length(n_rows, index, n)
    found = torch.empty((rows, *shards[0].shape[1:]), dtype=shards[0].dtype)
    # Row k here is row index + n k of the table. Those that lie in one of the old shards
    # are as far apart as it takes for n k to be a multiple of m, in both of them.
    period = m // math.gcd(n, m)
    for k in range(min(period, rows)):
        place, j = divmod(index + n * k, m)
        _take(shards[j], place, n * period // m, found[k::period])
    return found


def _take(shard: Rows, first: int, step: int, into: Tensor) -> None:
    """Copy every `step`-th row from `first` on, with some rows in memory at a time."""
    n_bytes = step * shard.shape[1:].numel() * shard.dtype.itemsize
    at_once = max(1, _SHARD_BLOCK_BYTES // max(1, n_bytes))
    for start in range(0, len(into), at_once):
        part = into[start : start + at_once]
        begin = first + start * step
        part.copy_(shard[begin : begin + (len(part) - 1) * step + 1][::step])
