# SPDX-License-Identifier: Apache-2.0
"""One training at a time in a ``model_dir``."""

import contextlib
import errno
import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from skest.core.files import explained, write_file
from skest.exceptions import ModelDirInUseError

_LOCK = "training.lock"
_OWNER = "training.json"
# What file systems say that know no locks, as some of networks.
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)

_logger = logging.getLogger("skest")


@contextlib.contextmanager
def training_lock(model_dir: Path) -> Iterator[Callable[[], None]]:
    """Hold the lock of a directory, which is made if need be.

    The operating system holds the lock of the file ``training.lock`` and releases it when
    the process ends, however it ends. ``training.json`` says which process that is, and
    outlives one that is killed. On file systems without locks training goes on without
    one, with a warning.

    Parameters
    ----------
    model_dir : Path
        Directory of checkpoints.

    Yields
    ------
    callable
        Raises ModelDirInUseError if ``training.json`` is not of this training any more; to
        be called before a save.

    Raises
    ------
    ModelDirInUseError
        If another training, of this or of another process, holds the lock.
    OSError
        If the directory can't be written to.
    """
    path = model_dir / _OWNER
    # Process numbers and host names come again, as in containers: the "id" does not.
    own = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "id": uuid.uuid4().hex,
    }

    def check() -> None:
        if _owner(path) != own:
            raise ModelDirInUseError(
                f"{str(path)!r} was deleted or replaced during this training, perhaps "
                "with its directory. This training saves nothing any more, because "
                "another one may be at work there by now. See that no other training "
                "runs, and call train again: it goes on from the last checkpoint that is "
                "left. Don't delete this file: the lock goes with the process that holds "
                "it."
            )

    # Not one for each thread: a training may be ended by another thread than began it.
    lock = FileLock(model_dir / _LOCK, thread_local=False)
    try:
        with explained(
            f"Training needs to write to 'model_dir' {str(model_dir)!r}, and can't",
            "Make room, see to the permissions, or use another model_dir.",
        ):
            model_dir.mkdir(parents=True, exist_ok=True)
            _acquire(lock, model_dir)
            # Who ends in order deletes it, also at an error: a file that is left tells
            # of a kill.
            before = _owner(path)
            write_file(path, json.dumps(own).encode())
        if before:
            _logger.warning(
                "The last training in %s, of process %s on %s, was killed.",
                *(model_dir, before.get("pid"), before.get("host")),
            )
        yield check
    finally:
        if _owner(path) == own and os.getpid() == own["pid"]:  # not a fork of it
            path.unlink(missing_ok=True)
        lock.release()


def _acquire(lock: Any, model_dir: Path) -> None:
    try:
        # Who waited would train on from what the other one has reached, unasked.
        lock.acquire(timeout=0)
    except Timeout:
        owner = _owner(model_dir / _OWNER)
        where = f"process {owner.get('pid', '?')} on {owner.get('host', '?')}"
        # Also numbers of processes on other machines may be this one's.
        if [owner.get("pid"), owner.get("host")] == [os.getpid(), socket.gethostname()]:
            where = "another call in this process"
        since = f" since {owner['since']}" if "since" in owner else ""
        raise ModelDirInUseError(
            f"'model_dir' {str(model_dir)!r} is being trained in by {where}{since}. Two "
            "trainings would overwrite each other's checkpoints: wait for the other one, "
            "end it, or use another model_dir."
        ) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        _logger.warning(
            "%s can't be locked (%s): take care that only one process trains there.",
            *(model_dir, error.strerror),
        )


def _owner(path: Path) -> dict[str, Any]:
    """Return what is written about the training that holds the lock."""
    try:
        owner = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}
