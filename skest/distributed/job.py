# SPDX-License-Identifier: Apache-2.0
"""What another process shall do: a function with arguments, in a file."""

import functools
import inspect
import json
import mmap
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import cloudpickle

from skest.core.files import explained

_ALIGNMENT = 64  # bytes, for vector instructions
_LENGTH = 8  # bytes of the number that the file begins with
_DEEPEST = 8


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
        If something can't be sent to another process; it says where that is.

    Examples
    --------
    >>> from skest.distributed.job import read_job, write_job
    >>> with write_job(lambda base, n: base**n, {"base": 2}) as file:
    ...     function = read_job(file.fileno())
    >>> function(n=3)
    8
    """
    buffers: list[pickle.PickleBuffer] = []
    try:
        body = cloudpickle.dumps(
            functools.partial(function, **arguments),
            protocol=5,
            buffer_callback=buffers.append,
        )
    except Exception as error:
        raise TypeError(_explanation(arguments, error)) from error
    parts = [memoryview(body), *(buffer.raw() for buffer in buffers)]
    sizes = json.dumps([part.nbytes for part in parts]).encode()
    offsets = _offsets(_LENGTH + len(sizes), [part.nbytes for part in parts])
    file = anonymous_file(offsets[-1])
    file.write(len(sizes).to_bytes(_LENGTH, "little") + sizes)
    for part, offset in zip(parts, offsets, strict=False):
        file.seek(offset)
        file.write(part)
    file.flush()
    return file


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
    whole = memoryview(
        mmap.mmap(descriptor, os.fstat(descriptor).st_size, access=mmap.ACCESS_COPY)
    )
    n_sizes = int.from_bytes(whole[:_LENGTH], "little")
    sizes = json.loads(bytes(whole[_LENGTH : _LENGTH + n_sizes]))
    offsets = _offsets(_LENGTH + n_sizes, sizes)
    body, *buffers = (
        whole[offset : offset + size]
        for offset, size in zip(offsets, sizes, strict=False)
    )
    return pickle.loads(body, buffers=buffers)


def _offsets(start: int, sizes: list[int]) -> list[int]:
    """Return where parts of these sizes begin, and where the last one ends."""
    offsets = []
    for size in sizes:
        start += -start % _ALIGNMENT
        offsets.append(start)
        start += size
    return [*offsets, start]


def _explanation(arguments: Mapping[str, Any], error: Exception) -> str:
    """Say what can't be pickled, and through what it is reached."""
    for name, value in arguments.items():
        if not _can_be_sent(value):
            path, culprit = _culprit(value, f"'{name}'", set(), _DEEPEST)
            return (
                f"{path} can't be sent to the other processes of this training: it is of "
                f"type {type(culprit).__name__} ({error}). Make it inside the function "
                "that uses it, or leave out 'train_distribute'."
            )
    return f"The training can't be sent to other processes: {error}"


def _culprit(value: Any, path: str, seen: set[int], depth: int) -> tuple[str, Any]:
    """Return the innermost part that can't be sent, and how it is reached."""
    seen.add(id(value))
    for name, part in _parts(value) if depth else ():
        if id(part) not in seen and not _can_be_sent(part):
            return _culprit(part, f"{name} of {path}", seen, depth - 1)
    return path, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what an object refers to, with names for people."""
    if isinstance(value, Mapping):
        yield from ((f"item {key!r}", item) for key, item in value.items())
    elif isinstance(value, list | tuple | set):
        yield from ((f"element {i}", item) for i, item in enumerate(value))
    elif isinstance(value, functools.partial):
        yield "the function", value.func
        yield "the arguments", [*value.args]
        yield "the arguments", value.keywords
    elif inspect.ismethod(value):
        yield "the object", value.__self__
    elif inspect.isfunction(value):
        found = inspect.getclosurevars(value)
        for names in (found.nonlocals, found.globals):
            yield from ((f"variable {name!r}", item) for name, item in names.items())
        yield "the defaults", [*(value.__defaults__ or ())]
    elif hasattr(value, "__dict__") and not inspect.ismodule(value):
        yield from ((f"attribute {n!r}", item) for n, item in vars(value).items())


def _can_be_sent(value: Any) -> bool:
    try:
        cloudpickle.dumps(value, protocol=5, buffer_callback=lambda buffer: None)
    except Exception:
        return False
    return True


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
    >>> from skest.distributed.job import anonymous_file
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
