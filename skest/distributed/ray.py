# SPDX-License-Identifier: Apache-2.0
"""Runs a script or a function as all tasks of a cluster on the nodes of Ray.

It needs the extra "ray". Ray chooses the nodes and starts a process on one for each task,
which runs the task and restarts it; all else is as with `skest.distributed.launch`.
"""

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from skest.core.checks import check_integer, check_positive
from skest.distributed.authentication import secret_of_cluster
from skest.distributed.job import anonymous_file, write_job
from skest.distributed.launch import environ_of
from skest.distributed.supervisor import Supervisor, Task, dump_error, load_error
from skest.exceptions import PeerLostError

_KINDS = ("chief", "worker", "ps", "evaluator")
_SECONDS_TO_SAVE = 60.0
_SECONDS_FOR_SERVERS = 30.0  # to end, when nobody is left to serve

Names = Sequence[tuple[str, int]]


def launch(
    script_or_function: str | os.PathLike[str] | Callable[..., Any],
    arguments: Sequence[Any] = (),
    *,
    workers: int = 2,
    ps: int = 1,
    evaluator: bool = False,
    resources: Mapping[str, Mapping[str, Any]] | None = None,
    max_restarts: int = 3,
    start_timeout: float = 300.0,
    log_dir: str | os.PathLike[str] | None = None,
) -> None:
    """Run a script or a function as all tasks of a cluster, and wait for them.

    Parameters
    ----------
    script_or_function : path or callable
        A script must be at this place on all nodes. A function is sent to them; what it
        returns is not. Either finds out which task it is as `skest.RunConfig` does.
    arguments : sequence, default=()
        Of the command line of the script (strings), or of the function.
    workers : int, default=2
        Tasks that train, the chief among them.
    ps : int, default=1
        Parameter servers.
    evaluator : bool, default=False
        Whether there is a task that evaluates checkpoints.
    resources : dict of str to dict, default=None
        What Ray shall reserve, by "chief", "worker", "ps" and "evaluator": options of
        Ray's actors, such as ``{"worker": {"num_cpus": 4, "num_gpus": 1}}``. What is not
        there is one CPU; the chief gets what a worker gets.
    max_restarts : int, default=3
        How often each task may be restarted, on its node.
    start_timeout : float, seconds, default=300.0
        How long to wait for the resources.
    log_dir : path, default=None
        Directory on the nodes for a file with the output of each task. None hands it to
        Ray, which shows it here.

    Raises
    ------
    ImportError
        If Ray is not installed.
    ValueError, TypeError
        If an argument is wrong.
    TimeoutError
        If Ray does not have the resources in time.
    TaskFailedError
        If a task died more often than it may be restarted.
    PeerLostError
        If Ray lost the process or the node that a task was on.
    BaseException
        What the function raised in a task, with its traceback there as ``__cause__``.

    Notes
    -----
    Ray is used as it is when ``ray.init`` was called before, or else started by Ray's own
    defaults. Checkpoints need a ``model_dir`` that all nodes share. Tasks share a secret,
    ``SKEST_SECRET``, which is made unless there is one. Ctrl-C lets chief, workers and
    evaluator save; a second one ends them at once.

    Examples
    --------
    >>> from skest.distributed.ray import launch
    >>> launch("train.py", ["--rate", "3"], workers=4, ps=2)  # doctest: +SKIP
    """
    ray = _ray()
    _check(script_or_function, arguments, resources)
    check_integer(workers, "workers", "launch", minimum=1)
    check_integer(ps, "ps", "launch", minimum=0)
    check_integer(max_restarts, "max_restarts", "launch", minimum=0)
    check_positive(start_timeout, "start_timeout", "launch")
    work = _work(script_or_function, arguments)
    if not ray.is_initialized():
        ray.init()
    names = _names(workers, ps, evaluator)
    actors: dict[tuple[str, int], Any] = {}
    try:
        for name in names:
            options = {"num_cpus": 1, **_options_of(name[0], resources or {})}
            # One thread runs the task, the other one interrupts it.
            made = ray.remote(_Place).options(**options, max_concurrency=2)
            actors[name] = made.remote(max_restarts, log_dir and os.fspath(log_dir))
        cluster = _cluster(actors, start_timeout)
        secret = secret_of_cluster() or secrets.token_hex()
        running = {
            actor.run.remote(
                "-".join(map(str, name)),
                environ_of(cluster, *name, secret),
                work,
            ): name
            for name, actor in actors.items()
        }
        _wait(running, actors)
    finally:
        for actor in actors.values():
            ray.kill(actor)  # its task ends with it


class _Place:
    """The process on a node of Ray in which one task is seen to."""

    def __init__(self, max_restarts: int, log_dir: str | None) -> None:
        self._supervisor = Supervisor(
            max_restarts=max_restarts,
            log_dir=None if log_dir is None else Path(log_dir),
            inherit_output=log_dir is None,
        )

    def address(self) -> str:
        """Return an address of this node, with a port that is free at the moment."""
        host = _ray().util.get_node_ip_address()
        with socket.create_server((host, 0)) as opened:
            return f"{host}:{opened.getsockname()[1]}"

    def run(
        self, name: str, environ: dict[str, str], work: list[str] | bytes
    ) -> bytes | None:
        """Run the task until it has ended; return its error, if it ended with one."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._supervisor)
            if isinstance(work, bytes):
                job, report = (stack.enter_context(anonymous_file()) for _ in range(2))
                job.write(work)
                job.flush()
                task = Task.of_job(name, job, {}, report=report, environ=environ)
            else:
                task = Task(name, work, environ)
            self._supervisor.start(task)
            try:
                self._supervisor.wait()
            except Exception as error:
                return dump_error(error)
        return None

    def interrupt(self) -> None:
        """Let the task save, and end."""
        self._supervisor.interrupt(list(self._supervisor.pids))


def _wait(running: dict[Any, tuple[str, int]], actors: Mapping[Any, Any]) -> None:
    """Wait until all tasks have ended; after Ctrl-C, until they have saved."""
    trainers = {task: name for task, name in running.items() if name[0] != "ps"}
    try:
        _wait_for(running, trainers)
        _wait_for(running, running, _SECONDS_FOR_SERVERS)
    except KeyboardInterrupt:
        for name in trainers.values():
            actors[name].interrupt.remote()
        with contextlib.suppress(Exception):
            _wait_for(trainers, trainers, _SECONDS_TO_SAVE)
        raise


def _wait_for(
    watched: Mapping[Any, tuple[str, int]],
    wanted: Iterable[Any],
    seconds: float = float("inf"),
) -> None:
    """Wait until the wanted tasks have ended; raise what any that is watched raises."""
    ray, end = _ray(), time.monotonic() + seconds
    pending, missing = list(watched), set(wanted)
    while missing and time.monotonic() < end:
        done, pending = ray.wait(pending, timeout=min(seconds, 1.0))
        for task in done:
            name = " ".join(map(str, watched[task]))
            try:
                error = ray.get(task)
            except ray.exceptions.RayActorError as lost:
                raise PeerLostError(
                    f"Ray lost the process of {name}, or its node. Launch again: the "
                    f"training goes on from its last checkpoint. ({lost})"
                ) from lost
            if error is not None:
                raise load_error(error, name)
        missing -= set(done)


def _cluster(
    actors: Mapping[tuple[str, int], Any], seconds: float
) -> dict[str, list[str]]:
    """Return the addresses by type of task; of an evaluator, there is none."""
    ray = _ray()
    asked = {name: actor.address.remote() for name, actor in actors.items()}
    _, missing = ray.wait(list(asked.values()), num_returns=len(asked), timeout=seconds)
    if missing:
        waiting = [f"{kind} {i}" for (kind, i), at in asked.items() if at in missing]
        raise TimeoutError(
            f"Ray had no resources for {', '.join(waiting)} within {seconds:g} s; it has "
            f"{ray.available_resources()}. Ask for less by 'resources', or for fewer "
            "tasks."
        )
    cluster: dict[str, list[str]] = {}
    for (kind, _), address in asked.items():
        if kind != "evaluator":
            cluster.setdefault(kind, []).append(ray.get(address))
    return cluster


def _names(workers: int, ps: int, evaluator: bool) -> Names:
    return [
        ("chief", 0),
        *(("worker", i) for i in range(workers - 1)),
        *(("ps", i) for i in range(ps)),
        *([("evaluator", 0)] if evaluator else []),
    ]


def _options_of(
    kind: str, resources: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any]:
    if kind == "chief" and kind not in resources:
        kind = "worker"
    return resources.get(kind, {})


def _work(
    script_or_function: str | os.PathLike[str] | Callable[..., Any],
    arguments: Sequence[Any],
) -> list[str] | bytes:
    """Return the command line of a task, or the content of the file of its job."""
    if not callable(script_or_function):
        return ["--script", os.path.abspath(script_or_function), *arguments]
    work = {"function": script_or_function, "arguments": list(arguments)}
    with write_job(_call, work) as job:
        job.seek(0)
        return job.read()


def _call(function: Callable[..., Any], arguments: Sequence[Any]) -> None:
    function(*arguments)


def _check(
    script_or_function: Any,
    arguments: Sequence[Any],
    resources: Mapping[str, Any] | None,
) -> None:
    is_script = isinstance(script_or_function, str | os.PathLike)
    if not is_script and not callable(script_or_function):
        raise TypeError(
            "'script_or_function' must be the path of a script or a callable; got "
            f"{script_or_function!r}."
        )
    if is_script and not Path(script_or_function).is_file():
        raise ValueError(f"There is no script {os.fspath(script_or_function)!r}.")
    if isinstance(arguments, str) or not isinstance(arguments, Sequence):
        raise TypeError(f"'arguments' must be a list; got {arguments!r}.")
    if is_script and not all(isinstance(argument, str) for argument in arguments):
        raise TypeError(f"'arguments' of a script must be strings; got {arguments!r}.")
    unknown = sorted(set(resources or {}) - set(_KINDS))
    if unknown:
        raise ValueError(
            f"'resources' must have keys out of {list(_KINDS)}; got {unknown}."
        )


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "skest.distributed.ray needs Ray. Install it with: pip install ray"
        ) from error
    return ray
