# SPDX-License-Identifier: Apache-2.0
"""The files of a checkpoint: tensors, mapped or written in blocks, and a state."""

import functools
import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from skest.checkpoints.checkpoint import Checkpoint
from skest.core.files import explained, write_file
from skest.exceptions import CorruptCheckpointError

_LENGTH_BYTES = 8
_BLOCK_BYTES = 1 << 22


class Rows(Protocol):
    """What has rows, of which some can be read at a time; a tensor has."""

    @property
    def shape(self) -> torch.Size:
        """Of all of it."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of its values."""

    def __getitem__(self, block: slice) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class TensorInFile:
    """A tensor in a file, of which some rows can be read at a time.

    What is read is memory of its own: pages of a file that is mapped would count as
    memory of the process as long as it is mapped.

    Parameters
    ----------
    path : Path
        The file.
    start : int
        Where its values begin, in bytes.
    mapped : Tensor
        All of it, mapped from the file; what nobody touches takes no memory.
    """

    path: Path
    start: int
    mapped: Tensor

    @property
    def shape(self) -> torch.Size:
        """Of all of it."""
        return self.mapped.shape

    @property
    def dtype(self) -> torch.dtype:
        """Type of its values."""
        return self.mapped.dtype

    def __getitem__(self, block: slice) -> Tensor:
        first, stop, step = block.indices(self.shape[0])
        found = torch.empty((max(0, stop - first), *self.shape[1:]), dtype=self.dtype)
        content: Any = found.reshape(-1).view(torch.uint8).numpy()
        with self.path.open("rb") as file:
            file.seek(self.start + first * _size_of(self, 1))
            n_read = file.readinto(content)
        if n_read != len(content):
            raise ValueError(f"{self.path.name} ends within a tensor")
        return found[::step]


def whole(tensor: Any) -> Tensor:
    """Return all of a tensor, mapped from its file if it is in one."""
    return tensor.mapped if isinstance(tensor, TensorInFile) else tensor


def write_in_blocks(tensors: Mapping[str, Rows], path: Path) -> int:
    """Write what `safetensors.torch.save_file` would, some rows at a time.

    Parameters
    ----------
    tensors : dict of str to Rows
        On the CPU; some may share memory.
    path : Path
        The file; one that is there is replaced.

    Returns
    -------
    int
        The CRC-32 of the file.

    Raises
    ------
    OSError
        If it can't be written.
    """
    # As the library does, so that all values are aligned.
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    described, end = {}, 0
    for name in order:
        start, end = end, end + _size_of(tensors[name])
        described[name] = {
            "dtype": _name_in_file(tensors[name].dtype),
            "shape": list(tensors[name].shape),
            "data_offsets": [start, end],
        }
    header = json.dumps(described, separators=(",", ":"), ensure_ascii=False).encode()
    header = header.ljust(-(-len(header) // _LENGTH_BYTES) * _LENGTH_BYTES)
    with path.open("wb") as file:
        begin = len(header).to_bytes(_LENGTH_BYTES, "little") + header
        file.write(begin)
        found = zlib.crc32(begin)
        for name in order:
            for _, block in blocks(tensors[name], _BLOCK_BYTES):
                content: Any = block.reshape(-1).view(torch.uint8).numpy()
                file.write(content)
                found = zlib.crc32(content, found)
        file.flush()
        os.fsync(file.fileno())
    return found


def blocks(tensor: Rows, n_bytes: int) -> Iterator[tuple[int, Tensor]]:
    """Yield blocks of rows, each with the number of its first row.

    A number is a block of its own.
    """
    if isinstance(tensor, Tensor) and not tensor.ndim:
        tensor = tensor.reshape(1)
    at_once = max(1, n_bytes // max(1, _size_of(tensor, 1)))
    for start in range(0, tensor.shape[0], at_once):
        block = tensor[start : start + at_once].detach().contiguous()
        if block.numel():
            yield start, block


def _size_of(tensor: Rows, first_dim: int = 0) -> int:
    """Return the bytes of a tensor; with `first_dim` = 1, of one of its rows."""
    return tensor.shape[first_dim:].numel() * tensor.dtype.itemsize


def _name_in_file(dtype: torch.dtype) -> str:
    """Return what the library calls a type."""
    content = save({"": torch.empty(0, dtype=dtype)})
    end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
    name: str = json.loads(content[_LENGTH_BYTES:end])[""]["dtype"]
    return name


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read tensors, which are mapped from the file.

    Raises
    ------
    OSError
        If it can't be read.
    SafetensorError
        If it is no such file.
    """
    path.open("rb").close()  # whatever is wrong, safetensors says that there is no file
    with _errors_of_the_system():
        return load_file(path)


def tensors_in(path: Path) -> dict[str, TensorInFile]:
    """Return the tensors of a file, of which none is read yet.

    Raises
    ------
    OSError, SafetensorError
        As `read_tensors`.
    """
    mapped = read_tensors(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        header = json.loads(file.read(length))
    begin = _LENGTH_BYTES + length
    return {
        name: TensorInFile(path, begin + header[name]["data_offsets"][0], tensor)
        for name, tensor in mapped.items()
    }


@contextmanager
def _errors_of_the_system() -> Iterator[None]:
    """Raise as OSError what safetensors tells of in words."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


FORMAT = "skest.checkpoint/1"
STATE = "state.json"
TENSOR_FILES = {
    "variables": "variables.safetensors",
    "optimizer": "optimizer.safetensors",
}

_FORMAT_OF_SHARDS = "skest.sharded_checkpoint/1"
_CHECKSUM = "crc32"
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

    def stored(self, kind: str) -> dict[str, Callable[[], Rows]]:
        """Return what reads the variables, or the tensors of optimizers, by name.

        One that is whole is a `TensorInFile`. Tables in shards, as parameter servers of
        earlier versions wrote them, are put together.

        Parameters
        ----------
        kind : {"variables", "optimizer"}
            Which ones.
        """
        own, index = TENSOR_FILES[kind], self.state.get("shards", {}).get(kind, {})
        files = dict.fromkeys(self._read(own), own) | index.get("dense", {})
        found: dict[str, Callable[[], Rows]] = {
            name: functools.partial(self._get, name, file)
            for name, file in files.items()
        }
        for name, table in index.get("tables", {}).items():
            found[name] = functools.partial(self._gathered, name, table)
        return found

    def _get(self, name: str, file: str) -> Rows:
        found = self._read(file)[name]
        return found if found.shape else found.mapped  # a number has no rows

    def _gathered(self, name: str, table: dict[str, Any]) -> Tensor:
        shards = [self._read(file)[name].mapped for file in table["files"]]
        return gathered_rows(shards, int(table["rows"]))

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
            kind: {name: whole(read()) for name, read in files.stored(kind).items()}
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
