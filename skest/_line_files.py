# SPDX-License-Identifier: Apache-2.0
"""Files of lines that several processes add to."""

import json
import os
from io import FileIO
from pathlib import Path

from skest._file_locks import UNSUPPORTED, acquire, release
from skest._files import flush

__all__ = ["append_line", "is_part_of_object"]


def append_line(path: Path, line: bytes) -> None:
    """Add a line to a file that others may add lines to at the same time.

    What stands behind the last end of a line, because a process was killed while it
    wrote, is removed first; a whole object of JSON, of which an editor took the end of the
    line, gets it back, and so does what no process wrote, for readers to complain of. If
    the line can't be written the file ends as it did.
    """
    is_new = not path.exists()
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags, 0o666), "r+b", buffering=0) as file:
        is_locked = _try_to_wait_for(file)
        try:
            size, end = _end_of_whole_lines(file) if is_locked else (None, b"")
            try:
                _write_all(file, end + line + b"\n")
            except BaseException:
                if size is not None:
                    file.truncate(size)
                raise
        finally:
            if is_locked:
                release(file)
    if is_new:
        flush(path.parent)


def _try_to_wait_for(file: FileIO) -> bool:
    """Lock a file; tell whether it has locks."""
    try:
        acquire(file, wait=True)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        return False
    return True


def _end_of_whole_lines(file: FileIO) -> tuple[int, bytes]:
    """Cut off a part of a line; return the size of the file, and the end it lacks."""
    file.seek(0)
    content = file.read()
    size = content.rfind(b"\n") + 1
    if not is_part_of_object(content[size:]):
        return len(content), b"\n"
    if size < len(content):
        file.truncate(size)
    return size, b""


def is_part_of_object(line: bytes) -> bool:
    """Tell whether a process may have got as far as this with an object of JSON.

    A whole object is not a part, whatever follows it, and what no process wrote is none.
    """
    if not line:
        return True
    try:
        json.JSONDecoder().raw_decode(line.decode(errors="replace"))
    except ValueError:
        return line.startswith(b"{") and b"\0" not in line
    return False


def _write_all(file: FileIO, content: bytes) -> None:
    while content:
        content = content[file.write(content) :]
    os.fsync(file.fileno())
