# SPDX-License-Identifier: Apache-2.0
"""Files of safetensors that are like any other file of the program.

The library gives them permissions of its own, and reports errors of the system under
other names.
"""

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

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
            for block in _blocks(tensors[name]):
                content: Any = block.reshape(-1).view(torch.uint8).numpy()
                file.write(content)
                found = zlib.crc32(content, found)
        file.flush()
        os.fsync(file.fileno())
    return found


def _blocks(tensor: Rows) -> Iterator[Tensor]:
    """Yield all rows, several at a time; a number is a block of its own."""
    if isinstance(tensor, Tensor) and not tensor.ndim:
        tensor = tensor.reshape(1)
    at_once = max(1, _BLOCK_BYTES // max(1, _size_of(tensor, 1)))
    for start in range(0, tensor.shape[0], at_once):
        block = tensor[start : start + at_once].detach().contiguous()
        if block.numel():
            yield block


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
