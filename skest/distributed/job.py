# SPDX-License-Identifier: Apache-2.0
"""What another process shall do: a function with arguments, in a file."""

import contextlib
import functools
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import cloudpickle

from skest.core.files import explained

_ALIGNMENT = 64  # bytes, for vector instructions
_LENGTH = 8  # bytes of the number that the file ends with


def write_job(function: Callable[..., Any], arguments: Mapping[str, Any]) -> BinaryIO:
    """Write a function and its arguments into a file that child processes inherit.

    Functions and classes of a script, a notebook or standard input are written whole,
    those of modules by name. Arrays are written as they are in memory.

    Parameters
    ----------
    function : callable
        What to call.
    arguments : mapping of str to object
        With what, by name.

    Returns
    -------
    binary file
        Without a name; see `read_job`.

    Raises
    ------
    TypeError
        If an argument can't be sent to another process.

    Examples
    --------
    >>> from skest.distributed.job import read_job, write_job
    >>> with write_job(lambda base, n: base**n, {"base": 2}) as file:
    ...     function = read_job(file.fileno())
    >>> function(n=3)
    8
    """
    buffers: list[pickle.PickleBuffer] = []
    bound = functools.partial(function, **arguments)
    try:
        body = cloudpickle.dumps(bound, protocol=5, buffer_callback=buffers.append)
    except Exception as error:
        names = [repr(n) for n, value in arguments.items() if not _can_be_sent(value)]
        raise TypeError(
            f"{' and '.join(names) or 'It'} can't be sent to the other processes of this "
            f"training: {error}. Make what it holds inside the function that uses it, or "
            "leave out 'train_distribute'."
        ) from error
    parts, spans, end = [buffer.raw() for buffer in buffers], [], 0
    for part in parts:
        start = end + -end % _ALIGNMENT
        end = start + part.nbytes
        spans.append((start, end))
    index = pickle.dumps((body, spans))
    file = anonymous_file(end + len(index) + _LENGTH)
    for (start, _), part in zip(spans, parts, strict=True):
        file.seek(start)
        file.write(part)
    file.seek(end)
    file.write(index + len(index).to_bytes(_LENGTH, "little"))
    file.flush()
    return file


def _can_be_sent(value: Any) -> bool:
    with contextlib.suppress(Exception):
        cloudpickle.dumps(value, protocol=5, buffer_callback=lambda buffer: None)
        return True
    return False


def read_job(descriptor: int) -> Callable[..., Any]:
    """Read what `write_job` wrote.

    Parameters
    ----------
    descriptor : int
        The open file. It must come from a process that is trusted: reading it may run
        any code.

    Returns
    -------
    callable
        The function with its arguments bound. Arrays in them use the memory of the file
        until somebody writes to them, so that all readers share it.
    """
    size = os.fstat(descriptor).st_size
    whole = memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY))
    n_bytes = int.from_bytes(whole[-_LENGTH:], "little")
    body, spans = pickle.loads(whole[-_LENGTH - n_bytes : -_LENGTH])
    return pickle.loads(body, buffers=[whole[start:end] for start, end in spans])


_IN_MEMORY = Path("/dev/shm")
_LEFT_FREE = 64 << 20  # bytes, for others


def anonymous_file(size: int) -> BinaryIO:
    """Open a new file that no directory lists.

    It is gone when the last process that has it open ends, however it ends. Child
    processes get it through ``pass_fds`` of `subprocess.Popen`.

    Parameters
    ----------
    size : int, bytes
        Its size; that much room is taken at once.

    Returns
    -------
    binary file
        In memory if that has room, on a disk otherwise.

    Raises
    ------
    OSError
        If there is no room.
    """
    directory = tempfile.gettempdir()
    if _IN_MEMORY.is_dir():
        found = os.statvfs(_IN_MEMORY)
        if found.f_bavail * found.f_frsize >= size + _LEFT_FREE:
            directory = str(_IN_MEMORY)
    with explained(
        f"A training of several processes needs {size:,} bytes in {directory!r}",
        "Make room, or name another directory in the environment variable TMPDIR.",
    ):
        file = cast(BinaryIO, tempfile.TemporaryFile(dir=directory))
        try:
            if hasattr(os, "posix_fallocate"):
                # Writing to a mapped file that can't grow would kill the process.
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
        except BaseException:
            file.close()
            raise
    return file
