# SPDX-License-Identifier: Apache-2.0
"""The files of a checkpoint.

A checkpoint is a directory of ``variables.safetensors``, ``optimizer.safetensors`` and
``state.json``, which holds checksums of all files. Where variables lie with several
processes, these write shards of their own beside them, such as
``variables-00000-of-00002.safetensors``, and ``shards`` in ``state.json`` tells what is
where: a whole tensor in one file, or the rows of a table in all of them, as
`skest.table_shards` describes. To read such a checkpoint takes none of these processes.
"""

import functools
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from skest._files import explained, flush, write_file
from skest._tensor_files import TensorInFile, tensors_in, write_tensors
from skest.checkpoints import Checkpoint
from skest.exceptions import CorruptCheckpointError
from skest.table_shards import check_shard, gathered_rows

__all__ = [
    "FORMAT",
    "STATE",
    "TENSOR_FILES",
    "CheckpointFiles",
    "ShardedCheckpoint",
    "StoredTensor",
    "checksum",
    "is_checkpoint",
    "read_checkpoint",
    "reading",
    "write_checkpoint",
]

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
        describes them: see `skest.distributed.sharded_checkpoint.index_of`.
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
        Rows of a table that is cut by `skest.table_shards`; None is a whole tensor.
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
