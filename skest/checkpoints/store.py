# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints are kept: in memory or in a directory.

On disk a checkpoint is a directory ``ckpt-<step>``, see `skest.checkpoints.format`, which
appears when it is complete. One of a step that is saved again is a new directory,
``ckpt-<step>-1``, and the one before goes when the new one is pointed to. The file
``checkpoint`` names the one that training continues from, as ``latest``; editing it goes
back to an older one that is still there. It also lists which ones are kept for good; where
that list was lost, all that are found are. The file ``stopped.json`` tells why the last
training ended.

The result of an evaluation is a file ``<global step>.json`` in its directory. It holds
``{"global_step": 10, "loss": 0.5, ...}`` and a checksum: a digit that changed would choose
another best checkpoint. If a step is evaluated again, its file is replaced. NaN and
infinities are written as Python's `json` does.
"""

import contextlib
import functools
import json
import logging
import os
import re
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.format import (
    CHECKSUM,
    FORMAT,
    STATE,
    crc32_of,
    is_checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from skest.config.run_config import KeepBest
from skest.core.checks import check_directory_name
from skest.core.files import explained, remove_directory, write_directory, write_file
from skest.keys import MetricKeys

_logger = logging.getLogger("skest")

# The name that tf.train.latest_checkpoint looks for.
_POINTER = "checkpoint"
_OF_TENSORFLOW = b"model_checkpoint_path:"
_STOPPED = "stopped.json"
_NAME = re.compile(r"ckpt-(\d+)(?:-(\d+))?")


class MemoryStore:
    """Keeps the latest checkpoint in memory."""

    def __init__(self, checkpoint: Checkpoint | None = None) -> None:
        self._checkpoint = checkpoint
        self._stop_reason: str | None = None

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep `checkpoint` in place of the one before, and make it the latest."""
        # Not copied: `Checkpoint.capture` has done so.
        self._checkpoint, self._stop_reason = checkpoint, None

    def latest(self) -> Checkpoint | None:
        """Return the checkpoint, or None."""
        return self._checkpoint

    def version(self) -> Hashable:
        """Return what differs for every checkpoint that was the newest one: itself."""
        return self._checkpoint

    def latest_step(self) -> int | None:
        """Return the step of the checkpoint, or None."""
        return None if self._checkpoint is None else self._checkpoint.global_step

    def note_start(self) -> None:
        """Withdraw the reason why the last training ended."""
        self._stop_reason = None

    def note_stop(self, reason: str, *, is_error: bool = False) -> None:
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
    keep_best : KeepBest, default=None
        Which ones stay in addition because of their evaluation.
    clock : callable, default=time.time
        Gives the time in seconds.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        keep_max: int | None = 5,
        keep_every_n_hours: float = 10_000,
        keep_best: KeepBest | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.model_dir = Path(model_dir)
        self._keep_max = keep_max
        self._keep_every_secs = keep_every_n_hours * 3600
        self._keep_best = keep_best
        self._clock = clock

    def save(self, checkpoint: Checkpoint) -> None:
        """Write `checkpoint`, point to it and delete what is not to be kept.

        Raises
        ------
        OSError
            If it can't be written, as on a full disk; the one before is still the latest.
        """
        what = f"The checkpoint of step {checkpoint.global_step} was not saved in "
        before = self.latest_step()
        kept = "" if before is None else f"; that of step {before} is still there"
        advice = f"Make room, or see to the permissions{kept}."
        with explained(f"{what}{str(self.model_dir)!r}", advice):
            self._save(checkpoint)

    def _save(self, checkpoint: Checkpoint) -> None:
        self.model_dir.mkdir(parents=True, exist_ok=True)
        step, present = checkpoint.global_step, self._entries()
        # Never a name that was used: who reads the old directory of this step finds it
        # whole.
        name = write_directory(
            self.model_dir,
            functools.partial(write_checkpoint, checkpoint),
            functools.partial(self._free_name, step),
        ).name
        replaced = [e for e in present if _order(e["name"])[0] == step]
        entries = [e for e in present if e not in replaced]
        entries.append({"name": name, "time": self._clock()})
        # A training that goes on from one that is kept for good begins with saving it.
        if any(e.get("for_good") for e in replaced):
            entries[-1]["for_good"] = True
        # As tf.train.Saver, which counts hours from the start of training.
        since = self._pointer().get("kept_for_good_at", entries[0]["time"])
        kept, retired, since = self._retained(entries, since)
        pointer = {
            "format": FORMAT,
            "latest": name,
            "all": kept,
            "kept_for_good_at": since,
        }
        # From here on the new one is the latest: only now may others go.
        write_file(self.model_dir / _POINTER, json.dumps(pointer, indent=1).encode())
        for entry in replaced + retired:
            remove_directory(self.model_dir / entry["name"])

    def _free_name(self, step: int) -> str:
        found = [_order(path.name) for path in self._directories()]
        # Also of directories that are no longer pointed to, and may still be read.
        numbers = [number for at, number in found if at == step]
        return f"ckpt-{step}" + (f"-{max(numbers) + 1}" if numbers else "")

    def latest_path(self) -> Path | None:
        """Return the directory of the newest checkpoint, or None.

        If the one that the file ``checkpoint`` names is gone, it is the one with the
        highest step.
        """
        complete = {p.name: p for p in self._directories() if is_checkpoint(p)}
        named = complete.get(str(self._pointer().get("latest")))
        # As in TensorFlow, a user goes back by writing an older name into the pointer.
        # Unlike `tf.train.latest_checkpoint`, one that names nothing falls back to what
        # is there.
        return named or complete.get(max(complete, key=_order, default=""))

    def best_path(self, rule: KeepBest) -> Path | None:
        """Return the directory of the best checkpoint, or None if none was evaluated.

        Raises
        ------
        ValueError
            If the last evaluation lacks the metric of `rule`, or results are damaged.
        """
        results = read_eval_results(eval_dir_of(self.model_dir, rule.eval_name))
        # Earlier evaluations may be of a model that had other metrics.
        for metrics in list(results.values())[-1:]:
            rule.check(metrics)
        return next(iter(self._ranked(rule, results)), None)

    def _ranked(
        self, rule: KeepBest, results: dict[int, dict[str, float]]
    ) -> list[Path]:
        """Return the directories of evaluated checkpoints, best first."""
        complete = [path for path in self._directories() if is_checkpoint(path)]
        # Of a step that was saved twice, the later one stays in the dictionary below.
        complete.sort(key=lambda path: _order(path.name))
        of_step = {_order(path.name)[0]: path for path in complete}
        return [of_step[step] for step in rule.ranked(results) if step in of_step]

    def _best_names(self, entries: list[dict[str, Any]]) -> set[str]:
        """Return the names of the checkpoints that `keep_best` keeps."""
        rule = self._keep_best
        if rule is None:
            return set()
        try:
            results = read_eval_results(eval_dir_of(self.model_dir, rule.eval_name))
        except (OSError, ValueError) as error:
            _logger.warning("All checkpoints stay: which are the best? %s", error)
            return {entry["name"] for entry in entries}
        return {path.name for path in self._ranked(rule, results)[: rule.number]}

    def latest(self) -> Checkpoint | None:
        """Read the newest checkpoint, or return None.

        Another process may replace and delete checkpoints meanwhile.
        """
        while (version := self.version()) is not None:
            try:
                checkpoint = read_checkpoint(version[0])
            except ValueError:
                # Else another process has saved a newer one and removed this one
                # meanwhile.
                if self.version() == version:
                    raise
            else:
                self._check_pointer(version[0])
                return checkpoint
        return None

    def _check_pointer(self, latest: Path) -> None:
        """Warn if `latest` is not what the file ``checkpoint`` asks for."""
        path = self.model_dir / _POINTER
        if self._pointer().get("latest") == latest.name or not path.exists():
            return
        if self.latest_path() == latest:  # no newer one came meanwhile
            _logger.warning(
                "%s names no checkpoint that is there. %r is used, which has the highest "
                "step; for another one, write its name there as 'latest'.",
                *(path, latest.name),
            )

    def version(self) -> tuple[Path, int, int] | None:
        """Return the path, and the file behind it: a step may be saved again."""
        while (path := self.latest_path()) is not None:
            with contextlib.suppress(FileNotFoundError):  # it has just been deleted
                status = (path / STATE).stat()
                # The time alone would not do: two files may be written within one tick
                # of the clock.
                return path, status.st_mtime_ns, status.st_ino
        return None

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint, or None."""
        path = self.latest_path()
        return None if path is None else _order(path.name)[0]

    def note_start(self) -> None:
        """Withdraw the reason why the last training ended."""
        # Before the first step: nobody shall take the end of the last training for that of
        # this one, also if it is killed.
        (self.model_dir / _STOPPED).unlink(missing_ok=True)

    def note_stop(self, reason: str, *, is_error: bool = False) -> None:
        """Record why training ended at the newest checkpoint."""
        record = {"global_step": self.latest_step(), "reason": reason}
        if is_error:
            record["is_error"] = True
        write_file(self.model_dir / _STOPPED, json.dumps(record).encode())

    def stop_reason(self) -> str | None:
        """Return why training ended at the newest checkpoint, or None if unknown.

        It is unknown while a training goes on, and after one that was killed.
        """
        record = self._read(_STOPPED)
        # Of an older step it is left from before: training went on, and was killed.
        at_latest = record.get("global_step") == self.latest_step()
        return record.get("reason") if at_latest else None

    def end_reason(self) -> str | None:
        """Return `stop_reason`, but None if an error was the reason."""
        return None if self._read(_STOPPED).get("is_error") else self.stop_reason()

    def _pointer(self) -> dict[str, Any]:
        found = self._read(_POINTER)
        path = self.model_dir / _POINTER
        # TensorFlow has a file of this name.
        if not found and path.exists() and _OF_TENSORFLOW in path.read_bytes():
            raise ValueError(
                f"{str(self.model_dir)!r} holds checkpoints of TensorFlow, which skest "
                "does not read. Give another directory, and train there."
            )
        return found

    def _read(self, name: str) -> dict[str, Any]:
        """Return what is in a file; nothing if it is not there, or was spoiled by hand."""
        try:
            content = json.loads((self.model_dir / name).read_bytes())
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}

    def _entries(self) -> list[dict[str, Any]]:
        """Return the checkpoints that are there, oldest first.

        Those that are found without a list may have been kept for good, so they are.
        """
        present = {path.name: path.stat().st_mtime for path in self._directories()}
        listed = self._pointer().get("all")
        known = [e for e in listed or [] if e["name"] in present]
        names = {e["name"] for e in known}
        times = sorted((t, name) for name, t in present.items() if name not in names)
        found: list[dict[str, Any]] = [{"name": name, "time": t} for t, name in times]
        path = self.model_dir / _POINTER
        if found and listed is None and path.exists():
            _logger.warning(
                "%s has no list of the checkpoints: all are kept for good, because they "
                "may have been. Delete what you don't need.",
                path,
            )
            # Which of them `keep_checkpoint_every_n_hours` had kept stood in the list
            # only.
            found = [{**entry, "for_good": True} for entry in found]
        # Found ones count as older: those in the list are the newest.
        return found + known

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
        best = self._best_names(entries)
        # As tf.train.Saver with max_to_keep and keep_checkpoint_every_n_hours. Those
        # that stay for good are neither counted among the newest nor asked about again.
        survivors, retired = [], []
        for entry in entries[: -self._keep_max]:
            if entry.get("for_good"):
                survivors.append(entry)
            elif entry["time"] - since >= self._keep_every_secs:
                survivors.append({**entry, "for_good": True})
                since = entry["time"]
            elif entry["name"] in best:
                survivors.append(entry)
            else:
                retired.append(entry)
        return survivors + entries[-self._keep_max :], retired, since


def _order(name: str) -> tuple[int, int]:
    """Return the step of a checkpoint, and how often that had been saved before."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2] or 0)) if found else (-1, 0)


#: Where an Estimator keeps its checkpoints.
CheckpointStore: TypeAlias = MemoryStore | DirectoryStore


def eval_dir_of(model_dir: Path, name: str | None) -> Path:
    """Return the directory of the evaluations with a name, or of those without.

    Raises
    ------
    ValueError
        If `name` is a path.
    """
    if name:
        check_directory_name(name, "name", "an evaluation")
    return model_dir / (f"eval_{name}" if name else "eval")


def write_eval_result(eval_dir: Path, metrics: Mapping[str, float]) -> None:
    """Write the result of an evaluation into `eval_dir`, which is made if need be.

    Parameters
    ----------
    eval_dir : Path
        As ``Estimator.eval_dir`` returns it.
    metrics : dict of str to float
        As ``Estimator.evaluate`` returns them.
    """
    # tf.estimator.experimental.read_eval_metrics parses event files instead; a file for
    # each step is read without TensorBoard, and replaced as a whole.
    eval_dir.mkdir(parents=True, exist_ok=True)
    path = eval_dir / f"{metrics[MetricKeys.GLOBAL_STEP]}.json"
    write_file(path, json.dumps({**metrics, CHECKSUM: crc32_of(metrics)}).encode())


def read_eval_results(eval_dir: str | os.PathLike[str]) -> dict[int, dict[str, float]]:
    """Read the results of the evaluations in a directory.

    Parameters
    ----------
    eval_dir : str or path
        As ``Estimator.eval_dir`` returns it.

    Returns
    -------
    dict of int to dict of str to float
        Metrics by global step, in the order of the steps; empty if there are none.

    Raises
    ------
    ValueError
        If a file is not what an evaluation has written: it is damaged.

    Examples
    --------
    >>> from skest.checkpoints.store import read_eval_results
    >>> read_eval_results("model/eval")
    {}
    """
    return {step: _read(path, step) for step, path in sorted(_files(eval_dir).items())}


def version_of_eval_results(eval_dir: str | os.PathLike[str]) -> Hashable:
    """Return what differs whenever the results differ, without reading them."""
    # The inode, too: a file may be replaced within one tick of the clock.
    states = [(path.name, path.stat()) for path in _files(eval_dir).values()]
    return frozenset((name, s.st_mtime_ns, s.st_ino) for name, s in states)


def _files(eval_dir: str | os.PathLike[str]) -> dict[int, Path]:
    found = Path(eval_dir).glob("*.json")
    return {int(path.stem): path for path in found if path.stem.isdecimal()}


def _read(path: Path, step: int) -> dict[str, float]:
    content = path.read_bytes()
    try:
        metrics: dict[str, float] = json.loads(content)
        if metrics.pop(CHECKSUM) != crc32_of(metrics):
            raise ValueError("its checksum is another one")
        if metrics[MetricKeys.GLOBAL_STEP] != step:
            raise ValueError("its global step is another one")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{str(path)!r} is not the result of an evaluation, or is damaged: "
            f"{content[:80].decode(errors='replace')!r}. Delete it."
        ) from error
    return metrics
