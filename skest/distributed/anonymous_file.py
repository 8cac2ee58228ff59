# SPDX-License-Identifier: Apache-2.0
"""Files without a name, for processes that inherit them."""

import os
import tempfile
from pathlib import Path
from typing import IO, BinaryIO, cast

from skest._files import explained

__all__ = ["anonymous_file"]

_IN_MEMORY = Path("/dev/shm")
_LEFT_FREE = 64 << 20  # bytes, for others
_FIRST = 3  # descriptor


def anonymous_file(size: int = 0) -> BinaryIO:
    """Open a new file that no directory lists.

    It is gone when the last process that has it open ends, however it ends. Child
    processes get it through ``pass_fds`` of `subprocess.Popen`.

    Parameters
    ----------
    size : int, bytes, default=0
        Its size; that much room is taken at once.

    Returns
    -------
    binary file
        In memory if that has room, on a disk otherwise.

    Raises
    ------
    OSError
        If there is no room.

    Examples
    --------
    >>> from skest.distributed.anonymous_file import anonymous_file
    >>> with anonymous_file(10) as file:
    ...     file.seek(0, 2)
    10
    """
    in_memory = _IN_MEMORY.is_dir() and _free(_IN_MEMORY) >= size + _LEFT_FREE
    directory = str(_IN_MEMORY) if in_memory else tempfile.gettempdir()
    with explained(
        f"A training of several processes needs {size:,} bytes in {directory!r}",
        "Make room, or name another directory in the environment variable TMPDIR.",
    ):
        file = _beside_standard_streams(tempfile.TemporaryFile(dir=directory))
        try:
            if size and hasattr(os, "posix_fallocate"):
                # Writing to a mapped file that can't grow would kill the process.
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
        except BaseException:
            file.close()
            raise
    return file


def _beside_standard_streams(file: IO[bytes]) -> BinaryIO:
    """Return a file under a descriptor that is not used otherwise in a child process.

    It may be one of those in a program that has closed them, as services do.
    """
    if file.fileno() >= _FIRST:
        return cast(BinaryIO, file)
    import fcntl  # not there on Windows

    with file:
        own = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD_CLOEXEC, _FIRST)
    return os.fdopen(own, "w+b")


def _free(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize
