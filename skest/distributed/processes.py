# SPDX-License-Identifier: Apache-2.0
"""`Processes`: processes of loky, each of which does one job."""

import contextlib
import logging
import os
import pickle
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from multiprocessing.reduction import DupFd
from typing import Any, BinaryIO

import cloudpickle
from joblib.externals.loky.process_executor import (
    BrokenProcessPool,
    ProcessPoolExecutor,
)

from skest.distributed.job import read_job
from skest.distributed.task import end_with
from skest.exceptions import PeerLostError, TaskFailedError

_logger = logging.getLogger("skest")

#: In the environment of these processes: the name of the job.
TASK = "SKEST_LOCAL_TASK"


@dataclass
class _Job:
    """A job, and the process that does it at the moment."""

    file: BinaryIO
    files: Collection[int]
    arguments: Mapping[str, Any]
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

    Parameters
    ----------
    max_restarts : int, default=3
        How often each may be started again.
    """

    def __init__(self, max_restarts: int = 3) -> None:
        self._max_restarts = max_restarts
        self._jobs: dict[str, _Job] = {}

    def start(
        self,
        name: str,
        file: BinaryIO,
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
        file : binary file
            Of `skest.distributed.job.write_job`.
        arguments : mapping of str to object
            For its function.
        files : collection of int, default=()
            Descriptors, of which the function gets copies as ``files``.
        environ : mapping of str to str, default=None
            What its environment has beside that of this process.
        may_die : bool, default=True
            Whether it is started again if it dies; else `check` raises an error.
        """
        own = {**(environ or {}), TASK: name}
        self._jobs[name] = _Job(file, files, arguments, own, may_die)
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
            if job.n_starts > self._max_restarts:
                raise TaskFailedError(
                    f"{name} died, after {self._max_restarts} restarts: {error}"
                ) from error
            _logger.warning("%s died, and is started again: %s", name, error)
            job.executor.shutdown(kill_workers=True)
            self._begin(job)

    def running(self) -> list[str]:
        """Return the names of those that have not ended."""
        return [name for name, job in self._jobs.items() if not job.future.done()]

    def pids(self) -> dict[str, int]:
        """Return the process of each that runs."""
        return {
            name: pid
            for name, job in self._jobs.items()
            if not job.future.done()
            for pid in list(job.executor._processes)
        }

    def close(self) -> None:
        """End all processes."""
        for job in self._jobs.values():
            job.executor.shutdown(kill_workers=True)
        self._jobs = {}

    def _begin(self, job: _Job) -> None:
        job.n_starts += 1
        job.executor = ProcessPoolExecutor(max_workers=1, env=job.environ)
        handles = [DupFd(number) for number in job.files]
        job.future = job.executor.submit(
            _do, DupFd(job.file.fileno()), handles, dict(job.arguments), os.getpid()
        )


def _do(job: Any, handles: list[Any], arguments: dict[str, Any], parent: int) -> None:
    """Do a job in a process of loky."""
    # Ctrl-C reaches all processes of a terminal; the parent asks this one to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent)
    if handles:
        arguments["files"] = [handle.detach() for handle in handles]
    try:
        read_job(job.detach())(**arguments)
    except Exception as error:
        if _can_be_sent(error):
            raise
        raise RuntimeError(f"{type(error).__name__}: {error}") from error


def _can_be_sent(error: Exception) -> bool:
    """Tell whether an error can be raised in another process; some can't be built."""
    with contextlib.suppress(Exception):
        pickle.loads(cloudpickle.dumps(error))
        return True
    return False
