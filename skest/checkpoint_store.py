# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints are kept: in memory or in a directory.

On disk a checkpoint is a directory ``ckpt-<step>`` of ``variables.safetensors``,
``optimizer.safetensors`` and ``state.json``. It is written under another name, flushed
and then renamed, so that it is complete whenever it can be seen. The file ``checkpoint``
names the one that training continues from; editing it goes back to an older one. The file
``stopped.json`` tells why the last training ended.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from skest._files import flush, published_as, remove_directory, write_file
from skest.checkpoints import Checkpoint
from skest.exceptions import CorruptCheckpointError

__all__ = [
    "CheckpointStore",
    "DirectoryStore",
    "MemoryStore",
    "is_checkpoint",
    "read_checkpoint",
    "write_checkpoint",
]

_FORMAT = "skest.checkpoint/1"
_POINTER = "checkpoint"
_STATE = "state.json"
_STOPPED = "stopped.json"
_TENSOR_FILES = {
    "variables": "variables.safetensors",
    "optimizer": "optimizer.safetensors",
}
_READ_ERRORS = (
    AttributeError,
    KeyError,
    OSError,
    SafetensorError,
    TypeError,
    ValueError,
)
_NAME = re.compile(r"ckpt-(\d+)")
_RETIRED = re.compile(r"\.del-(ckpt-(\d+))-.*")


class CheckpointStore(Protocol):
    """Where an Estimator keeps its checkpoints."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep `checkpoint` and make it the latest."""

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint, or None."""

    def version(self) -> Hashable:
        """Return what differs for every checkpoint that was the newest one."""

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint, or None."""

    def note_stop(self, reason: str) -> None:
        """Record why training ended at the newest checkpoint."""

    def stop_reason(self) -> str | None:
        """Return why training ended at the newest checkpoint, or None if unknown."""


class MemoryStore:
    """Keeps the latest checkpoint in memory."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self._checkpoint = checkpoint
        self._stop_reason: str | None = None

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep `checkpoint` in place of the one before."""
        self._checkpoint, self._stop_reason = checkpoint, None

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint, or None."""
        return self._checkpoint

    def version(self) -> Hashable:
        """Return the checkpoint, which is equal to no other one."""
        return self._checkpoint

    def latest_step(self) -> int | None:
        """Return the step of the checkpoint, or None."""
        return None if self._checkpoint is None else self._checkpoint.global_step

    def note_stop(self, reason: str) -> None:
        """Record why training ended at the checkpoint."""
        self._stop_reason = reason

    def stop_reason(self) -> str | None:
        """Return why training ended at the checkpoint, or None if unknown."""
        return self._stop_reason


class DirectoryStore:
    """Keeps checkpoints in a directory.

    Parameters
    ----------
    model_dir : str or path
        Created with the first checkpoint.
    keep_max : int or None, default=5
        How many of the newest stay; None or 0 keeps all.
    keep_every_n_hours : float, hours, default=10000
        One checkpoint of each such span stays in addition.
    clock : callable, default=time.time
        Gives the time in seconds.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        keep_max: int | None = 5,
        keep_every_n_hours: float = 10_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.model_dir = Path(model_dir)
        self._keep_max = keep_max
        self._keep_every_secs = keep_every_n_hours * 3600
        self._clock = clock

    def save(self, checkpoint: Checkpoint) -> None:
        """Write `checkpoint`, point to it and delete what is not to be kept."""
        self.model_dir.mkdir(parents=True, exist_ok=True)
        self._sweep()
        name = f"ckpt-{checkpoint.global_step}"
        with published_as(self.model_dir / name) as directory:
            write_checkpoint(checkpoint, directory)
        entries = [e for e in self._entries() if e["name"] != name]
        entries.append({"name": name, "time": self._clock()})
        since = self._pointer().get("kept_for_good_at", entries[0]["time"])
        kept, retired, since = self._retained(entries, since)
        pointer = {
            "format": _FORMAT,
            "latest": name,
            "all": kept,
            "kept_for_good_at": since,
        }
        write_file(self.model_dir / _POINTER, json.dumps(pointer, indent=1).encode())
        for entry in retired:
            remove_directory(self.model_dir / entry["name"])

    def latest_path(self) -> Path | None:
        """Return the directory of the newest checkpoint, or None.

        If the one that the file ``checkpoint`` names is gone, it is the complete one
        with the highest step.
        """
        named = str(self._pointer().get("latest"))
        # A process killed while it replaced a checkpoint leaves the old one renamed.
        for path in (self.model_dir / named, *self.model_dir.glob(f".del-{named}-*")):
            if _is_complete(path):
                return path
        complete = [path for path in self._directories() if _is_complete(path)]
        return max(complete, key=_step_of, default=None)

    def latest(self) -> Checkpoint | None:
        """Read the newest checkpoint, or return None."""
        path = self.latest_path()
        return None if path is None else read_checkpoint(path)

    def version(self) -> Hashable:
        """Return the path, and the time of writing: a step may be saved again."""
        path = self.latest_path()
        return None if path is None else (path, (path / _STATE).stat().st_mtime_ns)

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint, or None."""
        path = self.latest_path()
        return None if path is None else _step_of(path)

    def note_stop(self, reason: str) -> None:
        """Record why training ended at the newest checkpoint."""
        record = {"global_step": self.latest_step(), "reason": reason}
        write_file(self.model_dir / _STOPPED, json.dumps(record).encode())

    def stop_reason(self) -> str | None:
        """Return why training ended at the newest checkpoint, or None if unknown.

        It is unknown while a training goes on, and after one that was killed.
        """
        record = self._read(_STOPPED)
        at_latest = record.get("global_step") == self.latest_step()
        return record.get("reason") if at_latest else None

    def _pointer(self) -> dict[str, Any]:
        return self._read(_POINTER)

    def _read(self, name: str) -> dict[str, Any]:
        """Return what a file of JSON holds; nothing if it is none."""
        try:
            content = json.loads((self.model_dir / name).read_bytes())
        except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
            return {}
        return content if isinstance(content, dict) else {}

    def _entries(self) -> list[dict[str, Any]]:
        """Return the known checkpoints, oldest first."""
        present = {path.name: path.stat().st_mtime for path in self._directories()}
        listed = [e for e in self._pointer().get("all", []) if e["name"] in present]
        names = {e["name"] for e in listed}
        found = sorted((t, name) for name, t in present.items() if name not in names)
        return [{"name": name, "time": t} for t, name in found] + listed

    def _directories(self) -> list[Path]:
        if not self.model_dir.is_dir():
            return []
        return [p for p in self.model_dir.iterdir() if _NAME.fullmatch(p.name)]

    def _retained(
        self, entries: list[dict[str, Any]], since: float
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]], float]:
        """Split the entries into those to keep and those to delete.

        `since` is the time of the last checkpoint that was kept for good.
        """
        if not self._keep_max:
            return entries, [], since
        survivors, retired = [], []
        for entry in entries[: -self._keep_max]:
            if entry.get("for_good"):
                survivors.append(entry)
            elif entry["time"] - since >= self._keep_every_secs:
                survivors.append({**entry, "for_good": True})
                since = entry["time"]
            else:
                retired.append(entry)
        return survivors + entries[-self._keep_max :], retired, since

    def _sweep(self) -> None:
        """Finish or undo what a killed process left behind."""
        for path in list(self.model_dir.iterdir()):
            retired = _RETIRED.fullmatch(path.name)
            if retired and not (self.model_dir / retired[1]).exists():
                # Killed between the two renames that replace a checkpoint.
                path.rename(self.model_dir / retired[1])
            elif retired or path.name.startswith(".tmp-ckpt-"):
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith((f".tmp-{_POINTER}-", f".tmp-{_STOPPED}-")):
                path.unlink(missing_ok=True)


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
        If a file is missing, has another size than recorded or is unreadable.
    """
    path = Path(path)
    if not is_checkpoint(path):
        raise ValueError(
            f"There is no checkpoint at {str(path)!r}: a checkpoint is a directory "
            f"ckpt-<step> that holds {_STATE}."
        )
    try:
        state = json.loads((path / _STATE).read_bytes())
        if state["format"] != _FORMAT:
            raise ValueError(f"its format is {state['format']!r}, not {_FORMAT!r}")
        for name, size in state["files"].items():
            if (path / name).stat().st_size != size:
                raise ValueError(f"{name} does not have the recorded {size} bytes")
        tensors = {k: load_file(path / name) for k, name in _TENSOR_FILES.items()}
        return Checkpoint(
            global_step=int(state["global_step"]),
            variables=tensors["variables"],
            optimizer=tensors["optimizer"],
            scalars=state["scalars"],
            input_position=state.get("input_position"),
        )
    except _READ_ERRORS as error:
        raise CorruptCheckpointError(
            f"The checkpoint {str(path)!r} is damaged: {error}. Delete it to go on from "
            "an older one."
        ) from error


def write_checkpoint(checkpoint: Checkpoint, directory: Path) -> None:
    """Write the files of a checkpoint into a directory that exists."""
    tensors = {"variables": checkpoint.variables, "optimizer": checkpoint.optimizer}
    for kind, name in _TENSOR_FILES.items():
        save_file(dict(tensors[kind]), directory / name)
        flush(directory / name)
    state = {
        "format": _FORMAT,
        "global_step": checkpoint.global_step,
        "scalars": checkpoint.scalars,
        "input_position": checkpoint.input_position,
        "files": {n: (directory / n).stat().st_size for n in _TENSOR_FILES.values()},
    }
    write_file(directory / _STATE, json.dumps(state).encode())


def is_checkpoint(path: Path) -> bool:
    """Tell whether a directory is a checkpoint, under any name."""
    return (path / _STATE).is_file()


def _is_complete(path: Path) -> bool:
    return _step_of(path) >= 0 and is_checkpoint(path)


def _step_of(path: Path) -> int:
    kept, retired = _NAME.fullmatch(path.name), _RETIRED.fullmatch(path.name)
    if kept:
        return int(kept[1])
    return int(retired[2]) if retired else -1
