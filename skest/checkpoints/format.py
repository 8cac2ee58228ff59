# SPDX-License-Identifier: Apache-2.0
"""The files of a checkpoint: tensors, mapped or written in blocks, and a state."""

import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from skest.checkpoints.checkpoint import Checkpoint
from skest.core.files import explained, write_file
from skest.exceptions import CorruptCheckpointError

# A file of safetensors begins with the length of its header; that is a multiple of it,
# too.
_LENGTH_BYTES = 8
# So much of a table in parameter servers is in memory while it is saved (4 MB).
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
    # Not by its `save_file`: rows in parameter servers are fetched while they are written,
    # and the checksum is that of what was meant, not of what a disk gives back.
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
    # Spaces, which JSON passes over, so that values begin at a multiple of eight bytes.
    header = header.ljust(-(-len(header) // _LENGTH_BYTES) * _LENGTH_BYTES)
    with path.open("wb") as file:
        begin = len(header).to_bytes(_LENGTH_BYTES, "little") + header
        file.write(begin)
        found = zlib.crc32(begin)
        for name in order:
            for _, block in blocks(tensors[name], _BLOCK_BYTES):
                # As bytes: NumPy has no bfloat16.
                content: Any = block.reshape(-1).view(torch.uint8).numpy()
                file.write(content)
                found = zlib.crc32(content, found)
    return found


def blocks(tensor: Rows, n_bytes: int) -> Iterator[tuple[int, Tensor]]:
    """Yield blocks of rows, each with the number of its first row.

    A number is a block of its own.
    """
    if isinstance(tensor, Tensor) and not tensor.ndim:
        tensor = tensor.reshape(1)
    # Rows; one at least, however wide it is.
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
    # It has no public table of them.
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
    try:
        return load_file(path)
    except SafetensorError as error:
        # Errors of the system, it tells in words.
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

# It finds what a disk or a copy has changed, and is no protection from people.
CHECKSUM = "crc32"
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


def read_checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint directory.

    Parameters
    ----------
    path : str or path
        A directory ``ckpt-<step>``.

    Returns
    -------
    Checkpoint
        Its tensors are mapped from the file.

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
    path = Path(path)
    what = f"The checkpoint {str(path)!r} can't be read"
    with explained(what, "See to the permissions, or try again."):
        if not is_checkpoint(path):
            raise ValueError(
                f"There is no checkpoint at {str(path)!r}: a checkpoint is a directory "
                f"ckpt-<step> that holds {STATE}."
            )
        try:
            return _read(path)
        except _DAMAGE as error:
            raise CorruptCheckpointError(
                f"The checkpoint {str(path)!r} is damaged: {error}. Delete it to go on "
                "from an older one."
            ) from error


def _read(path: Path) -> Checkpoint:
    """Read a checkpoint; what is wrong with it is one of the errors of `_DAMAGE`."""
    state = json.loads((path / STATE).read_bytes())
    if state["format"] != FORMAT:
        raise ValueError(f"its format is {state['format']!r}, not {FORMAT!r}")
    _check_sum(STATE, crc32_of(state), state.pop(CHECKSUM))
    tensors = {}
    for kind, name in TENSOR_FILES.items():
        _check_sum(name, checksum(path / name), state["files"][name])
        tensors[kind] = read_tensors(path / name)
    return Checkpoint(
        int(state["global_step"]),
        **tensors,
        scalars=state["scalars"],
        input_position=state.get("input_position"),
    )


def write_checkpoint(checkpoint: Checkpoint, directory: Path) -> None:
    """Write the files of a checkpoint into a directory that exists.

    Its tensors may be anything that is read in blocks of rows.
    """
    state = {
        "format": FORMAT,
        "global_step": checkpoint.global_step,
        "scalars": checkpoint.scalars,
        "input_position": checkpoint.input_position,
        "files": {
            name: write_in_blocks(getattr(checkpoint, kind), directory / name)
            for kind, name in TENSOR_FILES.items()
        },
    }
    state[CHECKSUM] = crc32_of(state)
    # Last, for what has no such file is no checkpoint.
    write_file(directory / STATE, json.dumps(state).encode())


def checksum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    with path.open("rb") as file:
        found = 0
        while content := file.read(_BLOCK_BYTES):
            found = zlib.crc32(content, found)
        return found


def crc32_of(state: Mapping[str, Any]) -> int:
    """Return the checksum of what a JSON file holds beside it."""
    # As the file has it: json keeps the order of keys, and floats exactly.
    content = {key: value for key, value in state.items() if key != CHECKSUM}
    return zlib.crc32(json.dumps(content).encode())


def _check_sum(name: str, found: int, recorded: Any) -> None:
    if found != recorded:
        raise ValueError(
            f"{name} has the checksum {found}, not the recorded {recorded}"
        )


def is_checkpoint(path: Path) -> bool:
    """Tell whether a directory is a checkpoint, under any name."""
    return (path / STATE).is_file()
