# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: the state of a training run, in memory or in a directory.

On disk a checkpoint is a directory ``ckpt-<step>`` of ``variables.safetensors``,
``optimizer.safetensors`` and ``state.json``. It is written under another name, flushed
and then renamed, so that it is complete whenever it can be seen. The file ``checkpoint``
names the one that training continues from; editing it goes back to an older one.
"""

import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from skest._random import RunRandom
from skest.exceptions import CheckpointMismatchError, CorruptCheckpointError
from skest.optimizers import load_named_state, named_state

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "DirectoryStore",
    "MemoryStore",
    "load_variables",
    "read_checkpoint",
]

_FORMAT = "skest.checkpoint/1"
_POINTER = "checkpoint"
_STATE = "state.json"
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


@dataclass(frozen=True)
class Checkpoint:
    """Everything that training needs to go on as if it had not stopped.

    Parameters
    ----------
    global_step : int
        Training steps taken.
    variables : dict of str to Tensor
        The network's ``state_dict``, on the CPU.
    optimizer : dict of str to Tensor
        Optimizer slots and the state of random generators, on the CPU.
    scalars : dict
        Options of optimizers and schedulers; JSON holds it.
    """

    global_step: int
    variables: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def capture(
        cls,
        network: nn.Module,
        global_step: int,
        optimizers: Sequence[Optimizer] = (),
        lr_schedulers: Sequence[Any] = (),
        random: RunRandom | None = None,
    ) -> "Checkpoint":
        """Copy the state of a run to the CPU."""
        tensors: dict[str, Tensor] = {}
        scalars: dict[str, Any] = {
            "optimizers": [],
            "lr_schedulers": [_scheduler_state(s) for s in lr_schedulers],
        }
        for i, optimizer in enumerate(optimizers):
            slots, options = named_state(optimizer, network.named_parameters())
            tensors |= {f"{i}:{name}": slot for name, slot in slots.items()}
            scalars["optimizers"].append(options)
        if random is not None:
            tensors |= {f"random:{k}": v for k, v in random.state_dict().items()}
        return cls(
            global_step,
            {name: _copy(value) for name, value in network.state_dict().items()},
            {name: _copy(value) for name, value in tensors.items()},
            scalars,
        )

    def restore(
        self,
        network: nn.Module,
        optimizers: Sequence[Optimizer] = (),
        lr_schedulers: Sequence[Any] = (),
        random: RunRandom | None = None,
    ) -> None:
        """Load this state into a fresh network, its optimizers and generators.

        Options of the optimizers, such as the learning rate, are what the model function
        says now; only with schedulers, which change them, are they what they were.

        Raises
        ------
        CheckpointMismatchError
            If names or shapes differ; the network must not be used then.
        """
        saved = self.scalars.get("optimizers", [])
        if optimizers and saved and len(saved) != len(optimizers):
            raise CheckpointMismatchError(
                f"The checkpoint of step {self.global_step} holds {len(saved)} "
                f"optimizer(s), but the model has {len(optimizers)}. Train it in a new "
                "model_dir, or use the optimizers that it was trained with."
            )
        load_variables(network, self.variables)
        for i, (optimizer, options) in enumerate(zip(optimizers, saved, strict=False)):
            slots = _with_prefix(self.optimizer, f"{i}:")
            now = [_options(group) for group in optimizer.param_groups]
            load_named_state(optimizer, network.named_parameters(), slots, options)
            if not lr_schedulers:
                for group, options_now in zip(optimizer.param_groups, now, strict=True):
                    group.update(options_now)
        states = self.scalars.get("lr_schedulers", [])
        for scheduler, state in zip(lr_schedulers, states, strict=False):
            scheduler.load_state_dict(_from_json(state, scheduler.state_dict()))
        generators = _with_prefix(self.optimizer, "random:")
        if random is not None and generators:
            random.load_state_dict(generators)


class CheckpointStore(Protocol):
    """Where an Estimator keeps its checkpoints."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep `checkpoint` and make it the latest."""

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint, or None."""

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint, or None."""


class MemoryStore:
    """Keeps the latest checkpoint in memory."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self._checkpoint = checkpoint

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep `checkpoint` in place of the one before."""
        self._checkpoint = checkpoint

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint, or None."""
        return self._checkpoint

    def latest_step(self) -> int | None:
        """Return the step of the checkpoint, or None."""
        return None if self._checkpoint is None else self._checkpoint.global_step


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
        with _published_as(self.model_dir / name) as directory:
            _write_checkpoint(checkpoint, directory)
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
        _write_file(self.model_dir / _POINTER, json.dumps(pointer, indent=1).encode())
        for entry in retired:
            _remove_directory(self.model_dir / entry["name"])

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

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint, or None."""
        path = self.latest_path()
        return None if path is None else _step_of(path)

    def _pointer(self) -> dict[str, Any]:
        try:
            pointer = json.loads((self.model_dir / _POINTER).read_bytes())
        except (FileNotFoundError, json.JSONDecodeError, UnicodeDecodeError):
            return {}
        return pointer if isinstance(pointer, dict) else {}

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
            elif path.name.startswith(f".tmp-{_POINTER}-"):
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
    if not (path / _STATE).is_file():
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
        )
    except _READ_ERRORS as error:
        raise CorruptCheckpointError(
            f"The checkpoint {str(path)!r} is damaged: {error}. Delete it to go on from "
            "an older one."
        ) from error


def load_variables(network: nn.Module, variables: Mapping[str, Tensor]) -> None:
    """Copy `variables` into `network` after comparing names and shapes.

    Raises
    ------
    CheckpointMismatchError
        With one list of everything that differs; nothing is loaded then.
    """
    wanted = network.state_dict()
    differences = [
        f"  {name}: missing in the checkpoint, the network has {_shape(wanted[name])}"
        for name in wanted.keys() - variables.keys()
    ]
    differences += [
        f"  {name}: {_shape(variables[name])} in the checkpoint, not in the network"
        for name in variables.keys() - wanted.keys()
    ]
    differences += [
        f"  {name}: {_shape(variables[name])} in the checkpoint, "
        f"{_shape(wanted[name])} in the network"
        for name in wanted.keys() & variables.keys()
        if wanted[name].shape != variables[name].shape
    ]
    if differences:
        listed = "\n".join(sorted(differences))
        raise CheckpointMismatchError(
            "The checkpoint was made by another network than the one that should load "
            f"it. These variables differ:\n{listed}\nBuild the network as it was, or "
            "train it in a new model_dir."
        )
    with torch.no_grad():
        for name, value in wanted.items():
            value.copy_(variables[name])


def _write_checkpoint(checkpoint: Checkpoint, directory: Path) -> None:
    tensors = {"variables": checkpoint.variables, "optimizer": checkpoint.optimizer}
    for kind, name in _TENSOR_FILES.items():
        save_file(dict(tensors[kind]), directory / name)
        _flush(directory / name)
    state = {
        "format": _FORMAT,
        "global_step": checkpoint.global_step,
        "scalars": checkpoint.scalars,
        "files": {n: (directory / n).stat().st_size for n in _TENSOR_FILES.values()},
    }
    _write_file(directory / _STATE, json.dumps(state).encode())


@contextmanager
def _published_as(target: Path) -> Iterator[Path]:
    """Give a temporary directory; rename it to `target` when it is complete."""
    unique = uuid.uuid4().hex
    temporary = target.with_name(f".tmp-{target.name}-{unique}")
    retired = target.with_name(f".del-{target.name}-{unique}")
    temporary.mkdir()
    try:
        yield temporary
        _flush(temporary)
        if target.exists():
            target.rename(retired)
        temporary.rename(target)
        _flush(target.parent)
    except BaseException:
        if retired.exists() and not target.exists():
            retired.rename(target)
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    shutil.rmtree(retired, ignore_errors=True)


def _write_file(path: Path, content: bytes) -> None:
    """Write a file so that its old or its new content is there, never a part."""
    temporary = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush(path.parent)


def _flush(path: Path) -> None:
    """Make a file's content, or a directory's entries, survive a power failure."""
    if path.is_dir() and os.name == "nt":  # Windows can't open a directory
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_directory(path: Path) -> None:
    """Delete a checkpoint; it is out of sight before the first file goes."""
    gone = path.with_name(f".tmp-{path.name}-{uuid.uuid4().hex}")
    try:
        path.rename(gone)
    except FileNotFoundError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def _is_complete(path: Path) -> bool:
    return _step_of(path) >= 0 and (path / _STATE).is_file()


def _step_of(path: Path) -> int:
    kept, retired = _NAME.fullmatch(path.name), _RETIRED.fullmatch(path.name)
    if kept:
        return int(kept[1])
    return int(retired[2]) if retired else -1


def _options(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _scheduler_state(scheduler: Any) -> dict[str, Any]:
    state = _to_json(scheduler.state_dict())
    try:
        return json.loads(json.dumps(state))
    except TypeError as error:
        raise TypeError(
            f"The state of {type(scheduler).__name__} can't be saved as JSON: {error}."
        ) from error


def _to_json(value: Any) -> Any:
    """Write dictionaries whose keys are no strings as pairs; JSON has strings only."""
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    items = {key: _to_json(item) for key, item in value.items()}
    return items if all(isinstance(key, str) for key in items) else list(items.items())


def _from_json(value: Any, current: Any) -> Any:
    """Return what `_to_json` wrote in the types that are there now."""
    kind: Any = type(current)
    if isinstance(current, Mapping):
        items = dict(value).items()
        return kind({key: _from_json(item, current.get(key)) for key, item in items})
    if isinstance(current, list | tuple) and len(current) == len(value):
        pairs = zip(value, current, strict=True)
        return kind(_from_json(item, of) for item, of in pairs)
    return value


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)
    }


def _copy(tensor: Tensor) -> Tensor:
    """Return a contiguous copy on the CPU that shares no memory."""
    return tensor.detach().to("cpu", copy=True).contiguous()


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))
