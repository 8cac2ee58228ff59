# SPDX-License-Identifier: Apache-2.0
"""`Supervisor`: starts the tasks of a training, restarts those that die, ends them."""

import contextlib
import functools
import json
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

import cloudpickle

from skest.distributed.job import anonymous_file
from skest.exceptions import TaskFailedError

_logger = logging.getLogger("skest")

_LINES_SHOWN = 15
_SECONDS_TO_END = 2.0  # after SIGTERM


@dataclass(frozen=True)
class Task:
    """A process to start.

    Parameters
    ----------
    name : str
        For people and for the name of its log, such as "worker-1".
    arguments : sequence of str
        Of ``python -m skest.distributed.task``.
    environ : mapping of str to str, default={}
        What its environment has beside that of this process.
    files : sequence of binary file, default=()
        Open files that it inherits, under the same descriptors.
    report : binary file, default=None
        Where the task writes an error that it raises. Such an error would come again, so
        that the task is not restarted.
    """

    name: str
    arguments: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    files: Sequence[BinaryIO] = ()
    report: BinaryIO | None = None

    @classmethod
    def of_job(
        cls,
        name: str,
        job: BinaryIO,
        arguments: Mapping[str, Any],
        *,
        report: BinaryIO,
        environ: Mapping[str, str],
        files: Sequence[BinaryIO] = (),
    ) -> Self:
        """Return a task that does a job.

        Parameters
        ----------
        job : binary file
            Of `skest.distributed.job.write_job`.
        arguments : mapping of str to object
            For its function; JSON holds them.
        name, report, environ, files
            As for `Task`. Where the environment of this process has no ``RES_OPTIONS``,
            the task has some: it shall not wait for a name server.
        """
        options = {"--job": job.fileno(), "--report": report.fileno()}
        words = [str(word) for option in options.items() for word in option]
        return cls(
            name,
            [*words, json.dumps(arguments)],
            environ={**res_options(), **environ},
            files=[job, *files],
            report=report,
        )


class Supervisor:
    r"""Starts tasks, restarts those that die, and ends all that are left.

    It is a context manager that calls `stop`. A task ends when this process ends, however
    it does, and belongs to no terminal: Ctrl-C reaches this process only.

    Parameters
    ----------
    max_restarts : int, default=3
        How often each task may be restarted. A task that has ended by itself, with exit
        status 0, never is.
    log_dir : Path, default=None
        Directory for the files ``<name>.log`` with what tasks write to their standard
        output and error; the next attempt goes on in the same file. None keeps it for
        error messages only.
    inherit_output : bool, default=False
        Whether tasks write to the standard output and error of this process instead.
    lease : float, default=60.0
        Seconds for which a task may be stopped, as SIGSTOP does it, before it is killed,
        and started again as one that died.

    Attributes
    ----------
    restarts : dict of str to int
        How often each task was restarted.
    pids : dict of str to int
        The process of each task that runs.
    failure : BaseException or None
        What `check` raises.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from skest.distributed.supervisor import Supervisor, Task
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     script = pathlib.Path(directory, "hello.py")
    ...     _ = script.write_text("print('hello')")
    ...     with Supervisor(log_dir=pathlib.Path(directory)) as supervisor:
    ...         supervisor.start(Task("greeter", ["--script", str(script)]))
    ...         supervisor.wait(timeout=60)
    ...     pathlib.Path(directory, "greeter.log").read_text()
    True
    'hello\n'
    """

    def __init__(
        self,
        *,
        max_restarts: int = 3,
        log_dir: Path | None = None,
        inherit_output: bool = False,
        lease: float = 60.0,
    ) -> None:
        self.restarts: dict[str, int] = {}
        self.pids: dict[str, int] = {}
        self._max_restarts = max_restarts
        self._log_dir = log_dir
        self._inherit_output = inherit_output
        self._lease = lease
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._running: set[str] = set()
        self._ending: set[str] = set()
        self._started: dict[str, float] = {}
        self.failure: BaseException | None = None
        self._is_stopping = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self, task: Task) -> None:
        """Start a task, and see to it from now on."""
        self.restarts[task.name] = 0
        self._running.add(task.name)
        # The kernel takes the thread that starts a process for its parent: this one lives
        # as long as the process.
        thread = threading.Thread(
            target=self._see_to, args=(task,), name=f"skest {task.name}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def check(self) -> None:
        """Raise the error of a task that failed for good, if one did.

        Raises
        ------
        TaskFailedError
            If a task died more often than it may be restarted.
        BaseException
            What the task raised, with its traceback there as ``__cause__``.
        """
        if self.failure is not None:
            raise self.failure

    def wait(
        self, timeout: float | None = None, names: Collection[str] | None = None
    ) -> bool:
        """Wait until tasks have ended by themselves.

        Parameters
        ----------
        timeout : float, seconds, default=None
            How long; None is for ever.
        names : collection of str, default=None
            Which tasks; None is all.

        Returns
        -------
        bool
            Whether all have.

        Raises
        ------
        BaseException
            As `check`.
        """
        wanted = self.restarts.keys() if names is None else set(names)
        with self._changed:
            self._changed.wait_for(
                lambda: self.failure is not None or not wanted & self._running, timeout
            )
            self.check()
            return not wanted & self._running

    def age(self, name: str) -> float | None:
        """Return for how many seconds a task has been running; None if it is not."""
        with self._changed:
            if name not in self.pids:
                return None
            return time.monotonic() - self._started[name]

    def kill(self, name: str, reason: str) -> None:
        """End a task as if it had died; it is started again if it may be."""
        _logger.warning("%s %s: it is killed.", name, reason)
        self._signal(signal.SIGKILL, name)

    def interrupt(self, names: Collection[str]) -> None:
        """Send tasks what Ctrl-C sends, so that they save and end."""
        with self._changed:
            self._is_stopping = True
            self._signal(signal.SIGINT, *names)

    def end(self, names: Collection[str]) -> list[str]:
        """End tasks for good, with the processes that they have started.

        Parameters
        ----------
        names : collection of str
            Which ones.

        Returns
        -------
        list of str
            Those that were still at work.

        Raises
        ------
        BaseException
            As `check`.
        """
        with self._changed:
            late = sorted(self._running & set(names))
            self._ending |= set(names)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.wait(0.0, names):
                self._signal(number, *names)
                self.wait(_SECONDS_TO_END, names)
        return late

    def stop(self) -> None:
        """End all tasks, with the processes that they have started."""
        with self._changed:
            self._is_stopping = True
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + _SECONDS_TO_END
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._signal(signal.SIGKILL)
        for thread in self._threads:
            thread.join()

    def _signal(self, number: int, *names: str) -> None:
        """Send a signal to tasks, or to all, and to the processes that they started."""
        with self._changed:
            for name in self.pids.keys() & (names or self.pids):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pids[name], number)

    def _see_to(self, task: Task) -> None:
        """Run a task until it has ended well, or for good."""
        failure: BaseException | None = None
        try:
            with self._log(task.name) as log:
                while not self._has_ended(task, log):
                    pass
        except BaseException as error:
            failure = error
        with self._changed:
            self.failure = self.failure or failure
            self._running.discard(task.name)
            self._changed.notify_all()

    def _has_ended(self, task: Task, log: BinaryIO | None) -> bool:
        """Run a task once; False if it is to be started again."""
        with self._changed:
            if self._is_to_end(task):
                return True
            process = self._spawn(task, log)
            self.pids[task.name] = process.pid
            self._started[task.name] = time.monotonic()
        reason = f"stands still for {self._lease:g} s"
        kill = functools.partial(self.kill, task.name, reason)
        wait_for_end(process.pid, self._lease, kill)
        with (
            self._changed,
            process,
        ):  # as long as it is not waited for, its id is its own
            self._signal(signal.SIGKILL, task.name)  # what it has started and left
            del self.pids[task.name]
            status = process.wait()
        if status == 0 or self._is_to_end(task):
            return True
        reported = _content(task.report)
        if reported:
            raise load_error(reported, task.name)
        if self.restarts[task.name] == self._max_restarts:
            raise TaskFailedError(
                f"{task.name} {_end_of(status)}, after {self._max_restarts} restarts. "
                f"{_last_lines(log)}"
            )
        self.restarts[task.name] += 1
        _logger.warning(
            "%s %s; it is restarted (%d of %d times).",
            task.name,
            _end_of(status),
            self.restarts[task.name],
            self._max_restarts,
        )
        return False

    def _is_to_end(self, task: Task) -> bool:
        return self._is_stopping or task.name in self._ending

    def _spawn(self, task: Task, log: BinaryIO | None) -> subprocess.Popen[bytes]:
        files = [*task.files, *([task.report] if task.report else [])]
        places = os.pathsep.join(os.path.abspath(place) for place in sys.path)
        return subprocess.Popen(
            # -P: what is imported must not depend on the working directory.
            [sys.executable, "-P", "-m", "skest.distributed.task", *task.arguments],
            env={**os.environ, "PYTHONPATH": places, **task.environ},
            stdin=subprocess.PIPE,  # closes with this process, see end_with_parent
            stdout=log,
            stderr=None if log is None else subprocess.STDOUT,
            pass_fds=[file.fileno() for file in files],
            start_new_session=True,
        )

    @contextlib.contextmanager
    def _log(self, name: str) -> Iterator[BinaryIO | None]:
        if self._inherit_output:
            yield None
        elif self._log_dir is None:
            with anonymous_file() as file:
                yield file
        else:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            with (self._log_dir / f"{name}.log").open("a+b", buffering=0) as file:
                yield file


def res_options() -> dict[str, str]:
    """Return what the environment of a task needs so as not to wait for a name server.

    Every connection with a store asks for the name of its peer, on both sides. Nothing is
    returned where the user has set ``RES_OPTIONS``.
    """
    if "RES_OPTIONS" in os.environ:
        return {}
    return {"RES_OPTIONS": "timeout:1 attempts:1"}


def _content(file: BinaryIO | None) -> bytes:
    """Return what is in a file, wherever its readers and writers are."""
    if file is None:
        return b""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)


def _last_lines(log: BinaryIO | None) -> str:
    if log is None:
        return "What it wrote is above."
    lines = _content(log).decode(errors="replace").splitlines()[-_LINES_SHOWN:]
    return "\n  ".join(["Its last lines are:", *(lines or ["(it wrote nothing)"])])


def _end_of(status: int) -> str:
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


class RemoteTraceback(Exception):  # noqa: N818 (it shows where an error was raised)
    """Where in another process an error was raised; the ``__cause__`` of that error.

    Parameters
    ----------
    text : str
        The traceback there.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text}"


def dump_error(error: BaseException) -> bytes:
    """Return an error as bytes for `load_error`.

    Parameters
    ----------
    error : BaseException
        As it was caught. One that can't be pickled becomes a RuntimeError with its type
        and text.
    """
    text = "".join(traceback.format_exception(error))
    try:
        dumped = cloudpickle.dumps((error.with_traceback(None), text))
        pickle.loads(dumped)  # some can't be built from their arguments
    except Exception:
        substitute = RuntimeError(f"{type(error).__name__}: {error}")
        dumped = cloudpickle.dumps((substitute, text))
    return dumped


def load_error(dumped: bytes, task: str) -> BaseException:
    """Return the error that `dump_error` was given, to be raised here.

    Parameters
    ----------
    dumped : bytes
        From a process that is trusted.
    task : str
        What raised it, for people.

    Examples
    --------
    >>> from skest.distributed.supervisor import dump_error, load_error
    >>> error = load_error(dump_error(KeyError("x")), "worker 1")
    >>> error, type(error.__cause__).__name__
    (KeyError('x'), 'RemoteTraceback')
    """
    error, text = pickle.loads(dumped)
    error.__cause__ = RemoteTraceback(f"In {task}:\n{text}")
    return error


def wait_for_end(pid: int, lease: float, stands_still: Callable[[], None]) -> None:
    """Wait until a child process has ended; its exit status is still to be asked for.

    The kernel tells who is stopped and who goes on: a process needs to do nothing for it,
    and may be as busy or as idle as it likes.

    Parameters
    ----------
    pid : int
        The process.
    lease : float, seconds
        How long it may be stopped without a break.
    stands_still : callable
        Called, in another thread, if it is stopped for longer.
    """
    while True:
        change = os.waitid(os.P_PID, pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        if change is None or change.si_code not in (os.CLD_STOPPED, os.CLD_TRAPPED):
            return
        timer = threading.Timer(lease, stands_still)
        timer.daemon = True
        timer.start()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WCONTINUED | os.WNOWAIT)
        timer.cancel()
