# SPDX-License-Identifier: Apache-2.0
"""One training at a time in a ``model_dir``."""

import contextlib
import errno
import functools
import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from skest._file_locks import UNSUPPORTED, acquire, release
from skest._files import explained
from skest.exceptions import ModelDirInUseError

__all__ = ["training_lock"]

_LOCK = "training.lock"
_HELD = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)

_logger = logging.getLogger("skest")


@contextlib.contextmanager
def training_lock(model_dir: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock of a directory, which is made if need be.

    The operating system holds the lock of the file ``training.lock`` and releases it when
    the process ends, however it ends; what the file says is for people. On file systems
    without locks training goes on without one, with a warning. Who deletes the file takes
    the protection away, because the next training makes and locks another one.

    Parameters
    ----------
    model_dir : Path
        Directory of checkpoints.

    Yields
    ------
    callable
        Raises ModelDirInUseError if the file or the directory is gone; to be called
        before a save.

    Raises
    ------
    ModelDirInUseError
        If another training, of this or of another process, holds the lock.
    OSError
        If the directory can't be written to.
    """
    path = model_dir / _LOCK
    what = f"Training needs to write to 'model_dir' {str(model_dir)!r}, and can't"
    with explained(
        what, "Make room, see to the permissions, or use another model_dir."
    ):
        model_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    with open(descriptor, "r+b", buffering=0) as file:
        held = True
        try:
            acquire(file)
        except OSError as error:
            held = False
            if error.errno in _HELD:
                raise ModelDirInUseError(_describe(model_dir, _owner(path))) from None
            if error.errno not in UNSUPPORTED:
                raise
            _logger.warning(
                "%s can't be locked (%s): take care that only one process trains there.",
                path,
                error.strerror,
            )
        check = functools.partial(_check_is_there, file if held else None, path)
        check()
        before = _owner(path)
        if before:
            _logger.warning(
                "The last training in %s, of process %s on %s, was killed.",
                model_dir,
                before.get("pid"),
                before.get("host"),
            )
        owner = {"pid": os.getpid(), "host": socket.gethostname(), "since": _now()}
        try:
            _write(file, owner)
            _open_files.add(file)
            yield check
        finally:
            _open_files.discard(file)
            if not file.closed:  # in a process that was forked meanwhile it is
                _write(file, {})
                if held:
                    release(file)


# A forked process shares the open files, and with them the locks: it would hold a lock
# beyond the death of the process that trains, or release it by leaving the context.
_open_files: set[FileIO] = set()


def _close_in_child() -> None:
    while _open_files:
        _open_files.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


def _check_is_there(file: FileIO | None, path: Path) -> None:
    """Raise unless the file that was locked is the one that others find."""
    if file is None:
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return
    if not path.parent.is_dir():
        raise ModelDirInUseError(
            f"'model_dir' {str(path.parent)!r} is gone, with its checkpoints: it was "
            "deleted, moved or replaced during this training, which saves nothing any "
            "more. Put it back to go on from its last checkpoint, or call train again "
            "to begin anew."
        )
    raise ModelDirInUseError(
        f"{str(path)!r} was deleted during this training, which saves nothing any more: "
        "another one may be at work there by now. The last checkpoint is still there; "
        "see that no other training runs, and call train again. Don't delete this file: "
        "the lock goes with the process that holds it."
    )


def _write(file: FileIO, owner: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk; the lock is held all the same
        file.seek(0)
        file.truncate()
        file.write(json.dumps(owner).encode())


def _owner(path: Path) -> dict[str, Any]:
    """Return what the lock file says about its owner; it may be just being written."""
    try:
        owner = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _describe(model_dir: Path, owner: dict[str, Any]) -> str:
    where = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
    if owner.get("pid") == os.getpid() and owner.get("host") == socket.gethostname():
        where = "another call in this process"
    since = f" since {owner['since']}" if "since" in owner else ""
    return (
        f"'model_dir' {str(model_dir)!r} is being trained in by {where}{since}. Two "
        "trainings would overwrite each other's checkpoints: wait for the other one, end "
        "it, or use another model_dir."
    )


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S %z")
