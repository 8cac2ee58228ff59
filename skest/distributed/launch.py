# SPDX-License-Identifier: Apache-2.0
"""Runs a script as all tasks of a cluster on this machine.

``python -m skest.distributed.launch --workers 4 --ps 2 --evaluator train.py ARGUMENT...``
starts a chief, three workers, two parameter servers and an evaluator, each of which runs
the script. Who it is, it reads from the environment variable ``SKEST_CONFIG``, as
`skest.RunConfig` does. All share a random secret, unless ``SKEST_SECRET`` is set.

A task that dies is started again, the others go on; if it is a parameter server, all are
started again, and go on from the last checkpoint. Ctrl-C reaches chief, workers and
evaluator as if each was alone; a second one ends them at once. When the chief has ended,
the training has: workers and servers that go on nevertheless are ended.
"""

import argparse
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

# Nothing that loads PyTorch: 0.26 processor seconds and 32 MiB in place of 2.6 and 219.
from skest.config.cluster import secret_of_cluster
from skest.core.checks import ArgumentParser
from skest.exceptions import TaskFailedError

# Kubernetes and SLURM leave 30 by default between SIGTERM and SIGKILL.
_SECONDS_TO_SAVE = 60.0
_SECONDS_TO_END = 2.0  # after SIGTERM
_GLANCE = 0.05


def main(argv: Sequence[str] | None = None) -> int:
    """Run a script as all tasks of a cluster; return the exit status.

    Parameters
    ----------
    argv : sequence of str, default=None
        Arguments, see ``--help``; None is the command line.

    Returns
    -------
    int
        0 if the training ended well, 1 if a task died too often, 130 after Ctrl-C.
    """
    options = _parser().parse_args(argv)
    if not options.script.is_file():
        _parser().error(f"there is no script {str(options.script)!r}")
    tasks = _tasks(options)
    # SIGTERM, which ends services and batch jobs, does what Ctrl-C does.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for task in tasks:
            task.start()
        _see_to(tasks, options)
    except TaskFailedError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        # A second Ctrl-C ends all tasks at once. Servers go on until the chief has
        # saved what they hold.
        with contextlib.suppress(KeyboardInterrupt):
            trainers = [task for task in tasks if task.kind != "ps"]
            for task in trainers:
                task.signal(signal.SIGINT)
            _wait(trainers, _SECONDS_TO_SAVE)
        return 130
    finally:
        _end(tasks)
        signal.signal(signal.SIGTERM, before)
    return 0


class Task:
    """A task of the cluster, and the process that runs it.

    Parameters
    ----------
    kind, index : str, int
        Type and number of the task.
    command : sequence of str
        Script and arguments.
    environ : dict of str to str
        What its environment has beside that of this process.
    folder : Path or None
        Where its output goes; the next process goes on in the same file.
    """

    def __init__(
        self,
        kind: str,
        index: int,
        command: Sequence[str],
        environ: Mapping[str, str],
        folder: Path | None,
    ) -> None:
        self.kind, self.name = kind, f"{kind}-{index}"
        self.n_starts = 0
        self.is_over = False  # whether it was ended
        self._command, self._environ = command, environ
        self._log = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._log = folder / f"{self.name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start a process."""
        self.n_starts += 1
        self.is_over = False
        # What this process imports, its tasks can, too.
        places = os.pathsep.join(os.path.abspath(place) for place in sys.path)
        own = ["-P", "-m", "skest.distributed.task", str(os.getpid())]
        # A task that is started again goes on in it.
        log = None if self._log is None else self._log.open("ab")
        with log or contextlib.nullcontext():
            self._process = subprocess.Popen(
                # -P: what is imported must not depend on the working directory.
                [sys.executable, *own, *self._command],
                env={**os.environ, "PYTHONPATH": places, **self._environ},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=None if log is None else subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the launcher only
            )

    @property
    def status(self) -> int | None:
        """The exit status; None as long as it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def has_failed(self) -> bool:
        """Whether it ended by itself, and not well."""
        return self.status not in (None, 0) and not self.is_over

    def signal(self, number: int) -> None:
        """Send a signal to it, and to the processes that it has started."""
        if self._process is not None and self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def tell(self, what_follows: str, max_restarts: int) -> None:
        """Say how it ended, and what follows; raise TaskFailedError if it is enough."""
        status = self.status or 0
        how = f"ended with exit status {status}"
        if status < 0:
            how = f"was killed by signal {-status}"
        words = "above" if self._log is None else f"in {str(self._log)!r}"
        told = f"{self.name} {how}; what it wrote is {words}"
        if self.n_starts > max_restarts:
            raise TaskFailedError(f"{told}, after {max_restarts} restarts.")
        # The standard output is that of the script, and may go into a pipe.
        print(f"{told}; {what_follows}.", file=sys.stderr)


def _see_to(tasks: Sequence[Task], options: argparse.Namespace) -> None:
    """Return when the training has ended; start again what dies before."""
    # As `_tasks` puts them.
    chief, *_ = tasks
    servers = [task for task in tasks if task.kind == "ps"]
    trainers = [task for task in tasks if task.kind != "ps"]
    chief_ended = None
    while any(task.status is None for task in tasks) or any(
        task.has_failed for task in trainers
    ):
        # Servers first: the others fail because of them.
        lost = [task for task in servers if task.has_failed]
        # A server that ends with an error behind the chief has nothing left to lose.
        if chief.status == 0:
            chief_ended = chief_ended or time.monotonic()
        elif lost:
            lost[0].tell("all tasks are started again", options.max_restarts)
            _end(tasks)
            for task in tasks:
                task.start()
            chief_ended = None
        for task in trainers:
            if task.has_failed:
                task.tell("it is started again", options.max_restarts)
                task.start()
        # Without servers, nothing tells how long a worker has to do.
        if servers and chief_ended and time.monotonic() - chief_ended > options.grace:
            late = [t for t in tasks if t.kind in ("worker", "ps") and t.status is None]
            for task in late:
                print(
                    f"{task.name} did not end in {options.grace:g} s after the chief, "
                    "and is ended.",
                    file=sys.stderr,
                )
            _end(late)
        time.sleep(_GLANCE)


def _end(tasks: Sequence[Task]) -> None:
    """End tasks for good, with the processes that they have started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for task in tasks:
            task.is_over = True
            task.signal(number)
        _wait(tasks, _SECONDS_TO_END)


def _wait(tasks: Iterable[Task], seconds: float) -> None:
    end = time.monotonic() + seconds
    while any(task.status is None for task in tasks) and time.monotonic() < end:
        time.sleep(_GLANCE)


def local_cluster(num_workers: int, num_ps: int) -> dict[str, list[str]]:
    """Return a cluster of this machine, with ports that are free at the moment.

    Parameters
    ----------
    num_workers : int
        How many tasks train, with the chief.
    num_ps : int
        How many tasks hold variables.

    Returns
    -------
    dict of str to list of str
        ``cluster`` of ``SKEST_CONFIG``: addresses by type of task.

    Examples
    --------
    >>> from skest.distributed.launch import local_cluster
    >>> {kind: len(tasks) for kind, tasks in local_cluster(3, 2).items()}
    {'chief': 1, 'worker': 2, 'ps': 2}
    """
    with contextlib.ExitStack() as stack:
        # All are open at the same time, so that all are different.
        sockets = [
            stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            for _ in range(num_workers + num_ps)
        ]
        addresses = [f"127.0.0.1:{opened.getsockname()[1]}" for opened in sockets]
    # As tf.estimator counts them: the chief is none of the "worker" tasks.
    cluster = {"chief": addresses[:1]}
    if num_workers > 1:
        cluster["worker"] = addresses[1:num_workers]
    if num_ps:
        cluster["ps"] = addresses[num_workers:]
    return cluster


def environ_of(
    cluster: Mapping[str, Sequence[str]], kind: str, index: int, secret: str
) -> dict[str, str]:
    """Return what the environment of a task has beside that of who starts it.

    Parameters
    ----------
    cluster : dict of str to list of str
        Addresses by type of task.
    kind, index : str, int
        Type and number of the task.
    secret : str
        Shared by all tasks.

    Returns
    -------
    dict of str to str
        ``SKEST_CONFIG``, ``SKEST_SECRET``, and settings that are not in the environment
        yet.
    """
    task = {"cluster": cluster, "task": {"type": kind, "index": index}}
    own = {}
    if kind == "ps" and "OMP_NUM_THREADS" not in os.environ:
        # By the environment: `torch.set_num_threads` holds for one thread, and a server
        # has one for each session.
        own["OMP_NUM_THREADS"] = "1"
    return {**own, "SKEST_CONFIG": json.dumps(task), "SKEST_SECRET": secret}


def _parser() -> argparse.ArgumentParser:
    parser = ArgumentParser(
        prog="python -m skest.distributed.launch",
        description="Run a script as all tasks of a cluster on this machine.",
    )
    for name, minimum, default, text in (
        ("--workers", 1, 2, "tasks that train, the chief among them"),
        ("--ps", 0, 1, "parameter servers"),
        ("--max-restarts", 0, 3, "how often each task may be restarted"),
    ):
        described = f"{text} (default: {default})"
        kind = _at_least(int, minimum)
        parser.add_argument(name, type=kind, default=default, help=described)
    parser.add_argument(
        "--evaluator", action="store_true", help="a task that evaluates checkpoints"
    )
    parser.add_argument(
        "--grace",
        type=_at_least(float, 0.001),
        default=60.0,
        help="with --ps: seconds that workers and servers have to end after the chief, "
        "before they are ended (default: 60)",
    )
    parser.add_argument(
        "--log-dir",
        type=Path,
        help="directory for a file with the output of each task (default: output and "
        "error of this process)",
    )
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _at_least(kind: type, least: float) -> Callable[[str], float]:
    def number(text: str) -> float:
        found: float = kind(text)
        if not found >= least:  # NaN is not
            raise argparse.ArgumentTypeError(
                f"must be a number of at least {least}; got {text}"
            )
        return found

    return number


def _tasks(options: argparse.Namespace) -> list[Task]:
    cluster = local_cluster(options.workers, options.ps)
    roles = [
        (kind, i) for kind, of_kind in cluster.items() for i in range(len(of_kind))
    ]
    roles += [("evaluator", 0)] * options.evaluator
    command = [str(options.script), *options.arguments]
    # A new one for each cluster: a task of an earlier one that still runs gets no
    # session.
    secret = secret_of_cluster() or secrets.token_hex()
    return [
        Task(
            *(kind, index, command),
            environ_of(cluster, kind, index, secret),
            options.log_dir,
        )
        for kind, index in roles
    ]


if __name__ == "__main__":
    sys.exit(main())
