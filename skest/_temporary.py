# SPDX-License-Identifier: Apache-2.0
"""Temporary directories whose owner may be killed, and what removes them then."""

import contextlib
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from skest._file_locks import acquire, release
from skest._files import remove

__all__ = ["owned_directory", "sweep"]

_PREFIX = ".tmp-"
_LOCK = ".lock"
_DAY = 86400.0


@contextlib.contextmanager
def owned_directory(base: Path) -> Iterator[Path]:
    """Give a temporary directory; what is left of it behind the block is removed.

    As long as its process lives, it holds the lock of a file beside the directory.
    """
    path = base / f"{_PREFIX}{uuid.uuid4().hex}"
    lock = path.with_name(path.name + _LOCK)
    try:
        with lock.open("w+b", buffering=0) as file:
            with contextlib.suppress(OSError):  # no locks here: a day has to pass
                acquire(file, wait=True)  # `sweep` may hold it for a moment
            # Behind the lock, for whoever finds a name without a lock takes it for given
            # up; and before the directory, so that an empty file stands for nothing yet.
            file.write(socket.gethostname().encode())
            path.mkdir()
            yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        lock.unlink(missing_ok=True)


def sweep(base: Path) -> None:
    """Remove temporary files and directories that nobody will complete.

    These are the ones whose owner, on this machine, holds their lock no more, and all that
    have not changed for a day.
    """
    for path in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is held, or another one was faster
            if _is_old(path) or _is_given_up(path):
                remove(path)
                path.with_name(path.name + _LOCK).unlink(missing_ok=True)


def _is_given_up(path: Path) -> bool:
    """Tell whether the owner was a process of this machine, and is gone.

    A lock alone is what it leaves before it makes its directory, or when that is renamed;
    an empty one, of whatever machine, is not even locked yet. A living process whose lock
    is removed there goes on without it: what it leaves, if it is killed, stays for a day.
    """
    directory = path.with_name(path.name.removesuffix(_LOCK))
    lock = directory.with_name(directory.name + _LOCK)
    if (path == lock and directory.exists()) or not lock.is_file():
        return False
    with lock.open("r+b", buffering=0) as file:
        owner = file.read()
        if owner != socket.gethostname().encode() and (owner or directory.exists()):
            return False
        acquire(file)  # an OSError if it is held
        release(file)
    return True


def _is_old(path: Path) -> bool:
    newest = max(
        (found.lstat().st_mtime for found in [path, *path.rglob("*")]), default=0.0
    )
    return time.time() - newest > _DAY
