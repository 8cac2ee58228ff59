# SPDX-License-Identifier: Apache-2.0
"""Runs a script as all tasks of a cluster on this machine.

``python -m skest.distributed.launch --workers 4 --ps 2 --evaluator train.py ARGUMENT...``
starts a chief, three workers, two parameter servers and an evaluator, each of which runs
the script. Who it is, it reads from the environment variable ``SKEST_CONFIG``, as
`skest.RunConfig` does. All share a random secret, unless ``SKEST_SECRET`` is set. A task
that dies is restarted, the others go on. Ctrl-C reaches chief, workers and evaluator as
if each was alone; a second one ends them at once. When the chief has ended, the training
has: workers that go on nevertheless are ended.
"""

import argparse
import contextlib
import json
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from skest.distributed.authentication import secret_of_cluster
from skest.distributed.supervisor import Supervisor, Task, res_options
from skest.exceptions import TaskFailedError

_SECONDS_IN_A_DAY = 86400
_SECONDS_TO_SAVE = 60.0
_SECONDS_FOR_SERVERS = 30.0  # to end, when nobody is left to serve


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
    cluster = local_cluster(options.workers, options.ps)
    tasks = _tasks(cluster, options)
    trainers = [task.name for task in tasks if not task.name.startswith("ps-")]
    with (
        _ended_by_sigterm(),
        Supervisor(
            max_restarts=options.max_restarts,
            log_dir=options.log_dir,
            inherit_output=options.log_dir is None,
            lease=options.lease,
        ) as supervisor,
    ):
        for task in tasks:
            supervisor.start(task)
        try:
            if cluster.get("ps"):  # without, nothing tells how long a worker has to do
                workers = [name for name in trainers if name.startswith("worker-")]
                supervisor.wait(names=["chief-0"])
                _wait_or_end(supervisor, workers, options.grace, "the chief")
            supervisor.wait(names=trainers)
            others = supervisor.restarts.keys() - trainers
            _wait_or_end(supervisor, others, _SECONDS_FOR_SERVERS, "all others")
        except TaskFailedError as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt, TaskFailedError):
                supervisor.interrupt(trainers)
                supervisor.wait(_SECONDS_TO_SAVE, trainers)
            return 130
    return 0


def _wait_or_end(
    supervisor: Supervisor, names: Collection[str], seconds: float, others: str
) -> None:
    """Wait for tasks that have nothing left to do; end those that go on."""
    if not supervisor.wait(seconds, names):
        late = supervisor.end(names)
        print(
            f"{', '.join(late)} did not end in {seconds:g} s after {others}, and is "
            "ended.",
            file=sys.stderr,
        )


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
    own = res_options()
    if kind == "ps" and "OMP_NUM_THREADS" not in os.environ:
        own["OMP_NUM_THREADS"] = "1"
    return {**own, "SKEST_CONFIG": json.dumps(task), "SKEST_SECRET": secret}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m skest.distributed.launch",
        description="Run a script as all tasks of a cluster on this machine.",
    )
    parser.add_argument(
        "--workers",
        type=_at_least(1),
        default=2,
        help="tasks that train, the chief among them (default: 2)",
    )
    parser.add_argument(
        "--ps", type=_at_least(0), default=1, help="parameter servers (default: 1)"
    )
    parser.add_argument(
        "--evaluator", action="store_true", help="a task that evaluates checkpoints"
    )
    parser.add_argument(
        "--max-restarts",
        type=_at_least(0),
        default=3,
        help="how often each task may be restarted (default: 3)",
    )
    parser.add_argument(
        "--lease",
        type=_seconds,
        default=60.0,
        help="seconds for which a task may be stopped, as SIGSTOP does it, before it is "
        "killed and restarted (default: 60)",
    )
    parser.add_argument(
        "--grace",
        type=_seconds,
        default=60.0,
        help="with --ps: seconds that a worker has to end after the chief, before it is "
        "ended (default: 60)",
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


def _at_least(minimum: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        number = int(text)
        if number < minimum:
            raise argparse.ArgumentTypeError(
                f"must be an integer >= {minimum}; got {number}"
            )
        return number

    return integer


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number <= _SECONDS_IN_A_DAY:
        raise argparse.ArgumentTypeError(
            f"must be > 0 and <= {_SECONDS_IN_A_DAY} seconds; got {text}"
        )
    return number


def _tasks(cluster: dict[str, list[str]], options: argparse.Namespace) -> list[Task]:
    roles = [
        (kind, index)
        for kind, addresses in cluster.items()
        for index in range(len(addresses))
    ]
    if options.evaluator:
        roles.append(("evaluator", 0))
    arguments = ["--script", str(options.script), *options.arguments]
    secret = secret_of_cluster() or secrets.token_hex()
    return [
        Task(f"{kind}-{index}", arguments, environ_of(cluster, kind, index, secret))
        for kind, index in roles
    ]


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM, which ends services and batch jobs, do what Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
