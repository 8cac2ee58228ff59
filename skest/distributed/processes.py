# SPDX-License-Identifier: Apache-2.0
"""`Processes`: processes of loky, each of which does one job.

What all of them need, such as the data, is in a file that they inherit (`write_job`).
"""

import contextlib
import functools
import logging
import mmap
import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, BinaryIO, cast

import cloudpickle
from joblib.externals.loky.process_executor import (
    BrokenProcessPool,
    ProcessPoolExecutor,
)

from skest.core.files import explained
from skest.distributed.task import end_with
from skest.exceptions import PeerLostError, TaskFailedError

_logger = logging.getLogger("skest")

_MAX_RESTARTS = 3  # of each process

#: In the environment of these processes: the name of the job.
TASK = "SKEST_LOCAL_TASK"


@dataclass
class _Job:
    """A job, and the process that does it at the moment."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    files: Collection[int]
    environ: dict[str, str]
    may_die: bool
    n_starts: int = 0
    executor: Any = None
    future: Any = None


class Processes:
    """Does jobs in processes of their own; starts one again that died.

    loky starts them: they need no ``if __name__ == "__main__"`` in the program, and end
    when this process does, however it ends. Each has an executor for itself, because an
    executor is of no use when one of its processes has died.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def start(
        self,
        name: str,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        *,
        files: Collection[int] = (),
        environ: Mapping[str, str] | None = None,
        may_die: bool = True,
    ) -> None:
        """Start a process.

        Parameters
        ----------
        name : str
            For people.
        function : callable
            What to do.
        arguments : mapping of str to object
            For the function.
        files : collection of int, default=()
            Descriptors, of which the function gets copies as ``files``.
        environ : mapping of str to str, default=None
            What its environment has beside that of this process.
        may_die : bool, default=True
            Whether it is started again if it dies; else `check` raises an error.
        """
        # By TASK, a process that trains is known, and starts no further ones.
        own = {**(environ or {}), TASK: name}
        self._jobs[name] = _Job(function, arguments, files, own, may_die)
        self._begin(self._jobs[name])

    def check(self) -> None:
        """Start processes again that died; raise the error of one that raised it.

        Raises
        ------
        TaskFailedError
            If one died too often.
        PeerLostError
            If one died that is not started again.
        BaseException
            What one raised, with its traceback there as ``__cause__``.
        """
        # Who must not die comes first: others end because of it.
        for name, job in sorted(self._jobs.items(), key=lambda item: item[1].may_die):
            error = job.future.exception() if job.future.done() else None
            if error is None:
                continue
            # A worker that lost its servers may have been stopped for too long.
            if not isinstance(error, BrokenProcessPool | PeerLostError):
                raise error
            if not job.may_die:
                raise PeerLostError(f"{name} died: {error}")
            if job.n_starts > _MAX_RESTARTS:
                raise TaskFailedError(
                    f"{name} died, after {_MAX_RESTARTS} restarts: {error}"
                ) from error
            _logger.warning("%s died, and is started again: %s", name, error)
            job.executor.shutdown(kill_workers=True)
            self._begin(job)

    def running(self) -> list[str]:
        """Return the names of those that have not ended."""
        return [name for name, job in self._jobs.items() if not job.future.done()]

    def close(self) -> None:
        """End all processes."""
        for job in self._jobs.values():
            job.executor.shutdown(kill_workers=True)
        self._jobs = {}

    def _begin(self, job: _Job) -> None:
        job.n_starts += 1
        # The environment is read when torch is imported: threads of OpenMP can't be chosen
        # later for all threads of a process.
        job.executor = ProcessPoolExecutor(max_workers=1, env=job.environ)
        handles = [DupFd(number) for number in job.files]
        job.future = job.executor.submit(
            _do, job.function, dict(job.arguments), handles, os.getpid()
        )


def _do(
    function: Callable[..., Any],
    arguments: dict[str, Any],
    handles: list[Any],
    parent: int,
) -> None:
    """Do a job in a process of loky."""
    # Ctrl-C reaches all processes of a terminal; the parent asks this one to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent)
    if handles:
        arguments["files"] = [handle.detach() for handle in handles]
    try:
        function(**arguments)
    except Exception as error:
        try:  # some can be raised here only, because they can't be built again
            pickle.loads(cloudpickle.dumps(error))
        except Exception:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error
        raise


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
    >>> from skest.distributed.processes import read_job, write_job
    >>> with write_job(lambda base, n: base**n, {"base": 2}) as file:
    ...     function = read_job(file.fileno())
    >>> function(n=3)
    8
    """
    # Arrays stay outside of the pickle (PEP 574): all processes map the same pages of
    # the file, and none is copied.
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
    processes get copies of its descriptor.

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
    # In memory: the pages of a file on a disk would be written back to it.
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
