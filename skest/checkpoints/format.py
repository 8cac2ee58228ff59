# SPDX-License-Identifier: Apache-2.0
"""The files of a checkpoint."""

import functools
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from skest.checkpoints.checkpoint import Checkpoint
from skest.core.files import explained, write_file
from skest.core.tensor_files import Rows, TensorInFile, tensors_in, write_in_blocks
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
# What JSON, safetensors and the checks here raise for files that were cut off or
# changed.
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
class StoredTensor:
    """A tensor as it lies in its files.

    Parameters
    ----------
    shards : tuple of callable
        Each returns a part in its file, whose checksum is asked for then.
    n_rows : int or None
        Rows of a table in shards, as parameter servers of earlier versions wrote them;
        None is a whole tensor.
    """

    shards: tuple[Callable[[], TensorInFile], ...]
    n_rows: int | None = None

    def whole(self) -> Tensor:
        """Return all of it."""
        if self.n_rows is None or len(self.shards) == 1:
            return self.shards[0]().mapped
        return gathered_rows([shard().mapped for shard in self.shards], self.n_rows)

    def rows(self) -> Rows:
        """Return it to be read in blocks, without a copy in memory if it is whole."""
        is_number = not self.shards[0]().shape
        return (
            self.whole() if self.n_rows is not None or is_number else self.shards[0]()
        )


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


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint directory.

    Parameters
    ----------
    path : str or path
        A directory ``ckpt-<step>``.

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
            kind: {name: s.whole() for name, s in files.stored(kind).items()}
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


def write_checkpoint(checkpoint: Checkpoint, directory: Path) -> None:
    """Write the files of a checkpoint into a directory that exists.

    Its tensors may be anything that is read in blocks of rows.
    """
    tensors = {"variables": checkpoint.variables, "optimizer": checkpoint.optimizer}
    state = {
        "format": FORMAT,
        "global_step": checkpoint.global_step,
        "scalars": checkpoint.scalars,
        "input_position": checkpoint.input_position,
        "files": {
            name: write_in_blocks(tensors[kind], directory / name)
            for kind, name in TENSOR_FILES.items()
        },
    }
    state[_CHECKSUM] = _crc32_of(state)
    # Last, for what has no such file is no checkpoint.
    write_file(directory / STATE, json.dumps(state).encode())


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


def gathered_rows(shards: Sequence[Tensor], n_rows: int) -> Tensor:
    """Make a table out of its shards, of which shard i of n has every n-th row from i on.

    Raises
    ------
    ValueError
        If a shard does not have the rows or the columns that it should have.

    Examples
    --------
    >>> import torch
    >>> from skest.checkpoints.format import gathered_rows
    >>> table = torch.arange(7)
    >>> gathered_rows([table[0::2], table[1::2]], 7)
    tensor([0, 1, 2, 3, 4, 5, 6])
    """
    found = torch.empty((n_rows, *shards[0].shape[1:]), dtype=shards[0].dtype)
    for i, shard in enumerate(shards):
        place = found[i :: len(shards)]
        if shard.shape != place.shape or shard.dtype != place.dtype:
            raise ValueError(
                f"shard {i} of {len(shards)} of a table of {n_rows} rows should be "
                f"{place.dtype} of shape {tuple(place.shape)}, and is {shard.dtype} of "
                f"shape {tuple(shard.shape)}"
            )
        place.copy_(shard)
    return found
