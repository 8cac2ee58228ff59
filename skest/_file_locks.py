# SPDX-License-Identifier: Apache-2.0
"""Locks of open files, which the operating system releases when their process ends."""

import errno
import sys
from io import FileIO

__all__ = ["UNSUPPORTED", "acquire", "release"]

#: Numbers of the errors of file systems that have no locks.
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)

if sys.platform == "win32":
    import msvcrt

    _FAR = 1 << 30  # the locked byte lies behind the content, which others may read

    def acquire(file: FileIO, wait: bool = False) -> None:
        """Lock a file, or raise OSError if another one holds it; Windows waits 10 s."""
        file.seek(_FAR)
        msvcrt.locking(file.fileno(), msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)

    def release(file: FileIO) -> None:
        """Release the lock of a file."""
        file.seek(_FAR)
        msvcrt.locking(file.fileno(), msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def acquire(file: FileIO, wait: bool = False) -> None:
        """Lock a file; if another one holds it, wait or raise OSError."""
        # flock belongs to the open file and not to the process, as lockf does: two
        # threads exclude each other, and to read the file elsewhere releases nothing.
        fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)

    def release(file: FileIO) -> None:
        """Release the lock of a file."""
        fcntl.flock(file, fcntl.LOCK_UN)
