# SPDX-License-Identifier: Apache-2.0
"""Runs a script or a function as all tasks of a cluster on the nodes of Ray.

It needs the extra "ray". Ray chooses the nodes, starts the tasks there, and starts one
again that dies; all else is as with `skest.distributed.launch`.
"""

import contextlib
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skest.config.cluster import secret_of_cluster
from skest.core.checks import check_integer, check_positive, needing
from skest.distributed.launch import environ_of
from skest.distributed.task import run_script
from skest.exceptions import PeerLostError, TaskFailedError

_logger = logging.getLogger("skest")

# Types of tasks of tf.estimator's TF_CONFIG.
_KINDS = ("chief", "worker", "ps", "evaluator")
_SECONDS_TO_SAVE = 60.0
_SECONDS_FOR_SERVERS = 30.0  # to end, when nobody is left to serve


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
        How often a task that died may be started again, and all of them because a
        parameter server died.
    start_timeout : float, seconds, default=300.0
        How long to wait for the resources.

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
        If parameter servers died more often.
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
    work = script_or_function
    if not callable(work):
        if not isinstance(work, str | os.PathLike):
            raise TypeError(
                "'script_or_function' must be the path of a script or a callable; got "
                f"{work!r}."
            )
        if not Path(work).is_file():
            raise ValueError(f"There is no script {os.fspath(work)!r}.")
        # On other nodes the working directory is another one.
        work = os.path.abspath(work)
    if isinstance(arguments, str) or not isinstance(arguments, Sequence):
        raise TypeError(f"'arguments' must be a list; got {arguments!r}.")
    if isinstance(work, str) and not all(isinstance(a, str) for a in arguments):
        raise TypeError(f"'arguments' of a script must be strings; got {arguments!r}.")
    unknown = sorted(set(resources or {}) - set(_KINDS))
    if unknown:
        raise ValueError(
            f"'resources' must have keys out of {list(_KINDS)}; got {unknown}."
        )
    check_integer(workers, "workers", "launch", minimum=1)
    check_integer(ps, "ps", "launch", minimum=0)
    check_integer(max_restarts, "max_restarts", "launch", minimum=0)
    check_positive(start_timeout, "start_timeout", "launch")
    if not ray.is_initialized():
        ray.init()
    kinds = ["chief", *["worker"] * (workers - 1), *["evaluator"] * bool(evaluator)]
    run = _Run(kinds, ps, resources or {}, max_restarts)
    # Ray starts a worker again by itself. A lost server is the loss of the training so far:
    # all tasks go on from the last checkpoint together.
    for n_left in reversed(range(max_restarts + 1)):
        try:
            run.run(work, list(arguments), start_timeout)
        except PeerLostError as error:
            if not n_left:
                raise
            _logger.warning("All tasks are started again: %s", error)
        else:
            return


class _Server:
    """A parameter server; other tasks need its address before it runs."""

    def address(self) -> str:
        """Return an address of this node, with a port that is free at the moment."""
        host = _ray().util.get_node_ip_address()
        # Asked on the node of the server: only there it is known what is free.
        with socket.create_server((host, 0)) as opened:
            return f"{host}:{opened.getsockname()[1]}"

    def run(self, environ: dict[str, str], work: Any, arguments: list[Any]) -> None:
        """Be the task."""
        # Not by `runtime_env`: it has the addresses, which are asked of actors that
        # run.
        os.environ.update(environ)
        _do(work, arguments)


def _do(work: Any, arguments: list[Any]) -> None:
    """Run the script or the function of a task."""
    if callable(work):
        work(*arguments)
        return
    try:
        run_script(work, arguments)
    except SystemExit as end:
        # Ray would take SystemExit for the end of its worker, not of the task.
        if end.code not in (None, 0):
            raise TaskFailedError(
                f"{work} ended with exit status {end.code}."
            ) from None


@dataclass
class _Run:
    """All tasks of a training, from their start to their end.

    Parameters
    ----------
    kinds : list of str
        Of the tasks that train or evaluate, the chief first.
    ps : int
        Number of parameter servers.
    resources, max_restarts
        See `launch`.
    """

    kinds: list[str]
    ps: int
    resources: Mapping[str, Mapping[str, Any]]
    max_restarts: int

    def __post_init__(self) -> None:
        self._secret = secret_of_cluster() or secrets.token_hex()

    def run(self, work: Any, arguments: list[Any], seconds: float) -> None:
        """Start all tasks, and wait for them; see `launch`."""
        ray = _ray()
        options = self._options("ps")
        servers = [
            ray.remote(_Server).options(**options).remote() for _ in range(self.ps)
        ]
        trainers: dict[Any, str] = {}
        try:
            cluster = self._cluster(servers, seconds)
            serving = {
                server.run.remote(
                    environ_of(cluster, "ps", i, self._secret), work, arguments
                ): f"ps {i}"
                for i, server in enumerate(servers)
            }
            for place, kind in enumerate(self.kinds):
                index = self.kinds[:place].count(kind)
                environ = environ_of(cluster, kind, index, self._secret)
                options = self._options(kind, environ)
                # As a task, which Ray retries if its process dies, and not if it raises.
                # Servers are actors: their address must be known before others start.
                task = ray.remote(_do).options(**options, max_retries=self.max_restarts)
                trainers[task.remote(work, arguments)] = f"{kind} {index}"
            _wait_for_all(trainers, serving)
        finally:
            for server in servers:
                # A server that waits for requests sees no other end.
                ray.kill(server)
            if not isinstance(sys.exception(), KeyboardInterrupt):  # else they save
                for task in trainers:
                    ray.cancel(task, force=True)

    def _options(
        self, kind: str, environ: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Return the options of Ray for a task."""
        if kind == "chief" and kind not in self.resources:
            kind = "worker"
        # Actors of Ray claim no CPU while they run unless they are told to.
        options = {"num_cpus": 1, **self.resources.get(kind, {})}
        if environ is not None:
            own = options.get("runtime_env", {})
            variables = {**own.get("env_vars", {}), **environ}
            options["runtime_env"] = {**own, "env_vars": variables}
        return options

    def _cluster(self, servers: Sequence[Any], seconds: float) -> dict[str, list[str]]:
        """Return the addresses by type of task; nobody connects to others than ps."""
        ray = _ray()
        # All at once: Ray places the actors side by side.
        asked = [server.address.remote() for server in servers]
        try:
            addresses = ray.get(asked, timeout=seconds)
        except ray.exceptions.GetTimeoutError as error:
            raise TimeoutError(
                f"Ray had no resources for {len(asked)} parameter servers within "
                f"{seconds:g} s; it has {ray.available_resources()}. Ask for less by "
                "'resources', or for fewer tasks."
            ) from error
        # Their number says who there is; only servers listen.
        cluster = {"chief": [""], "worker": [""] * self.kinds.count("worker")}
        cluster["ps"] = addresses
        return {kind: addresses for kind, addresses in cluster.items() if addresses}


def _wait_for_all(trainers: Mapping[Any, str], serving: Mapping[Any, str]) -> None:
    """Wait until all tasks have ended; after Ctrl-C, until they have saved."""
    try:
        _wait_for({**trainers, **serving}, trainers)
        _wait_for(serving, serving, _SECONDS_FOR_SERVERS)
    except KeyboardInterrupt:
        for task in trainers:
            _ray().cancel(task)
        # Ray does not tell when they have saved; servers end when the chief has.
        with contextlib.suppress(Exception):
            _wait_for(serving, serving, _SECONDS_TO_SAVE)
        raise


def _wait_for(
    watched: Mapping[Any, str], wanted: Iterable[Any], seconds: float = float("inf")
) -> None:
    """Wait until the wanted tasks have ended; raise what any that is watched raises."""
    ray, end = _ray(), time.monotonic() + seconds
    pending, missing = list(watched), set(wanted)
    while missing and time.monotonic() < end:
        done, pending = ray.wait(pending, timeout=min(seconds, 1.0))
        for task in done:
            try:
                ray.get(task)
            except ray.exceptions.RayTaskError as error:
                # What the task has raised, by which `launch` tells what to do.
                raise error.cause from error
            except ray.exceptions.RayActorError as error:
                raise PeerLostError(
                    f"Ray lost {watched[task]}, or its node. Launch again: the training "
                    f"goes on from its last checkpoint. ({error})"
                ) from error
            except ray.exceptions.WorkerCrashedError as error:
                raise TaskFailedError(
                    f"{watched[task]} died too often: {error}"
                ) from error
        # Whoever ended without an error.
        missing -= set(done)


def _ray() -> Any:
    with needing("ray", "skest.distributed.ray"):
        import ray
    return ray
