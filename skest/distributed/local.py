# SPDX-License-Identifier: Apache-2.0
"""Trainings of several processes on one machine, which a call of ``train`` starts."""

import contextlib
import functools
import logging
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import torch
from joblib.parallel import get_active_backend

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import CheckpointStore
from skest.config.run_config import RunConfig
from skest.config.strategies import AsyncParameterServer, SharedMemory
from skest.core.random import seed_sequence
from skest.distributed.job import anonymous_file, write_job
from skest.distributed.ps.server import serve_parameters
from skest.distributed.ps.worker import AsyncReplica, Beginning
from skest.distributed.shared_memory import SharedMemoryReplica
from skest.distributed.supervisor import Supervisor, Task, res_options
from skest.engine.loop import INPUT_ENDED, Step, WatchedStep, move_to_step
from skest.engine.replica import Replica
from skest.hooks.base import Run
from skest.inputs.input_context import InputContext
from skest.spec import EstimatorSpec

_logger = logging.getLogger("skest")

_TASK = "SKEST_LOCAL_TASK"
_LOGS = "logs"
_SECONDS_TO_STOP = 60.0  # for the step that a process is in


class Train(Protocol):
    """Trains a model as one of several processes."""

    def __call__(
        self,
        model_fn: Any,
        input_fn: Any,
        config: RunConfig,
        max_steps: int | None,
        replica: Replica,
    ) -> None:
        """Train."""


def train_locally(
    train: Train,
    model_fn: Callable[..., Any],
    input_fn: Callable[..., Any],
    config: RunConfig,
    steps: int | None = None,
    max_steps: int | None = None,
) -> "LocalChief":
    """Prepare a training of several processes, of which the calling one is the chief.

    Parameters
    ----------
    train : callable
        What the other processes call.
    model_fn, input_fn : callable
        See `skest.Estimator`.
    config : RunConfig
        Its ``train_distribute`` is SharedMemory or AsyncParameterServer.
    steps, max_steps : int or None
        See `skest.Estimator.train`.

    Returns
    -------
    LocalChief
        The part of the calling process. It starts the others when its training begins,
        that is when the model is built, and ends them when it is closed.

    Raises
    ------
    RuntimeError
        If the call is itself one of several that run at the same time.
    ValueError
        If this process is a task of a cluster that somebody else has started.
    TypeError
        If a function holds something that can't be sent to another process.
    """
    _refuse_in_cluster(config)
    _refuse_if_nested(config)
    return LocalChief(train, model_fn, input_fn, config, steps, max_steps)


class LocalChief(Replica):
    """The part of the process that called ``train``, which is the chief.

    Hooks run here only, on the steps of this process; what they ask for, such as to stop,
    holds for all processes. A process that dies is restarted, and begins its part of the
    input anew; its step is lost. One that is stopped for ``lease`` seconds, or is silent
    for so long while this process waits for it, counts as dead, and is killed. One that
    raises an error ends the training: a checkpoint is saved, and the error is raised
    here. Parameters are those of `train_locally`.

    Attributes
    ----------
    supervisor : Supervisor
        Sees to the other processes.
    """

    def __init__(
        self,
        train: Train,
        model_fn: Callable[..., Any],
        input_fn: Callable[..., Any],
        config: RunConfig,
        steps: int | None,
        max_steps: int | None,
    ) -> None:
        self._steps, self._max_steps = steps, max_steps
        strategy: Any = config.train_distribute
        self._num_workers: int = strategy.num_workers
        self._lease: float = strategy.lease
        self.input_context = local_context(self._num_workers, 0)
        directory = None if config.model_dir is None else Path(config.model_dir) / _LOGS
        self.supervisor = Supervisor(log_dir=directory, lease=strategy.lease)
        timeout = config.session_creation_timeout_secs
        self.parts = parts_of(strategy, self.supervisor, timeout)
        self._workers = [f"worker-{i}" for i in range(1, self._num_workers)]
        self._files = contextlib.ExitStack()
        arguments = {
            "train": train,
            "model_fn": model_fn,
            "input_fn": input_fn,
            "config": config,
            "open_part": self.parts.open,
        }
        self._job = self._files.enter_context(write_job(train_part, arguments))

    def latest(self, store: CheckpointStore) -> Checkpoint | None:
        """Return what to go on from."""
        return self.parts.latest(store)

    def building(self) -> contextlib.AbstractContextManager[Any]:
        """Return what is entered while the model is built."""
        return self.parts.building()

    def built(self, spec: EstimatorSpec) -> None:
        """Look at the model that was built."""
        self.parts.built(spec)

    def begin(self, run: Run) -> None:
        """Bring the variables to where all have them, and start the other processes."""
        self.parts.prepare(run)
        last_step = self._max_steps
        if self._steps is not None:
            last_step = run.start_step + self._steps
        for index in range(1, self._num_workers):
            self.supervisor.start(self._task(index, last_step))
        self.parts.begin(run)

    def make_step(self, run: Run, make: Callable[..., Step]) -> Step:
        """Return what takes a step with the variables that all have."""
        return self.parts.replica.make_step(run, make)

    def batches(
        self, run: Run, batches: Iterator[tuple[Any, Any]]
    ) -> Iterator[tuple[Any, Any]]:
        """Return the batches of this process."""
        return self.parts.replica.batches(run, batches)

    def make_watched_step(self, run: Run) -> WatchedStep:
        """Return the same as `make_step` for steps of which hooks want the gradients."""
        return self.parts.replica.make_watched_step(run)

    def steps_taken(self, run: Run) -> int:
        """Count a step; stop if a process has failed."""
        if self.supervisor.failure is not None:
            run.request_stop("another process failed")
        return self.parts.replica.steps_taken(run)

    def capture(self, run: Run, capture: Callable[[Run], Any]) -> Any:
        """Return a checkpoint of the common variables as they are at the moment."""
        return self.parts.replica.capture(run, capture)

    def refresh(self, run: Run) -> None:
        """Bring the network of this process up to date."""
        self.parts.replica.refresh(run)

    def finish(self, run: Run) -> None:
        """Wait for the others, which stop at once if this process was made to stop."""
        self.supervisor.check()
        if run.stop_reason == INPUT_ENDED:
            self._wait_for_input_of_others(run)
        self.parts.stop_others(run)
        if not self.parts.is_alone(run):  # who has not begun will not
            if not self.supervisor.wait(_SECONDS_TO_STOP, self._workers):
                late = ", ".join(self.supervisor.end(self._workers))
                _logger.warning(
                    "%s did not end in %g s after it was asked to, and is ended.",
                    *(late, _SECONDS_TO_STOP),
                )
        move_to_step(run, self.parts.global_step(run))

    def _wait_for_input_of_others(self, run: Run) -> None:
        def silent_for() -> dict[str, float]:
            return {f"worker-{i}": s for i, s in self.parts.silent_for(run).items()}

        wait_for_workers(self.supervisor, self._workers, silent_for, self._lease)

    def leave(self, run: Run) -> None:
        """Tell those who hold variables that nobody needs them any more."""
        self.parts.replica.leave(run)

    def close(self) -> None:
        """End the other processes, and let go of what they had in common."""
        self.supervisor.stop()
        self.parts.close()
        self._files.close()

    def _task(self, index: int, last_step: int | None) -> Task:
        threads = max(1, torch.get_num_threads() // self._num_workers)
        name = self._workers[index - 1]
        return Task.of_job(
            name,
            self._job,
            {
                "index": index,
                "files": [file.fileno() for file in self.parts.files],
                "max_steps": last_step,
            },
            report=self._files.enter_context(anonymous_file()),
            environ={_TASK: name, "OMP_NUM_THREADS": str(threads)},
            files=self.parts.files,
        )


def train_part(
    train: Train,
    model_fn: Callable[..., Any],
    input_fn: Callable[..., Any],
    config: RunConfig,
    open_part: Callable[[list[int], int], Replica],
    index: int,
    files: list[int],
    max_steps: int | None,
) -> None:
    """Train in a process that a `LocalChief` has started.

    Parameters
    ----------
    train, model_fn, input_fn, config
        As for `train_locally`.
    open_part : callable
        ``open`` of `skest.distributed.local.Parts`.
    index : int
        Which of the processes this is.
    files : list of int
        Descriptors of what it shares with others.
    max_steps : int or None
        Global step to stop at.
    """
    if config.random_seed is not None:
        # Dropout and shuffling of each process differ, and are the same for each run.
        (seed,) = seed_sequence(config.random_seed, index).generate_state(1)
        config = config.replace(random_seed=int(seed))
    with open_part(files, index) as replica:
        train(model_fn, input_fn, config, max_steps, replica)


def _refuse_in_cluster(config: RunConfig) -> None:
    """Raise if the environment describes a cluster: memory ends with the machine."""
    if config.cluster_spec:
        raise ValueError(
            f"train_distribute={config.train_distribute!r} starts processes on this "
            "machine, but the environment says that this one is a task of "
            f"{config.cluster_spec!r}. Use AsyncParameterServer there, or unset "
            "SKEST_CONFIG and TF_CONFIG."
        )


def _refuse_if_nested(config: RunConfig) -> None:
    """Raise if several such trainings would run at the same time."""
    backend, _ = get_active_backend()
    is_parallel = backend.nesting_level or _is_dask_task()
    if is_parallel or _TASK in os.environ:
        where = "a process that it has started itself"
        if is_parallel:
            where = "a parallel call of joblib, such as a search with n_jobs=2"
        raise RuntimeError(
            f"train_distribute={config.train_distribute!r} starts processes, and this "
            f"training runs in {where}: they would multiply. Use n_jobs=1 there, or "
            "train_distribute=None."
        )


def _is_dask_task() -> bool:
    """Tell whether dask runs this; joblib counts no levels there."""
    distributed = sys.modules.get("distributed")
    try:
        return distributed is not None and distributed.get_worker() is not None
    except ValueError:
        return False


_PAUSE = 0.02
_ADDRESS_BYTES = 64  # at most
_ANY_PORT = "127.0.0.1:0"


class Parts(Protocol):
    """What the chief and the workers of a training have in common."""

    @property
    def replica(self) -> Replica:
        """The part of the chief, after `begin`."""

    @property
    def files(self) -> list[BinaryIO]:
        """What workers inherit, after `prepare`."""

    @property
    def open(self) -> Callable[[list[int], int], Replica]:
        """What makes the part of a worker in its process.

        It is called with the descriptors of `files` and the number of the worker.
        """

    def latest(self, store: CheckpointStore) -> Checkpoint | None:
        """Return what the chief goes on from."""

    def building(self) -> contextlib.AbstractContextManager[Any]:
        """Return what is entered while the chief builds the model."""

    def built(self, spec: EstimatorSpec) -> None:
        """Look at the model that the chief has built."""

    def prepare(self, run: Run) -> None:
        """Do what must be done before workers are started."""

    def begin(self, run: Run) -> None:
        """Take part, when workers have been started."""

    def stop_others(self, run: Run) -> None:
        """Ask all workers to stop after the step that they are in."""

    def is_alone(self, run: Run) -> bool:
        """Tell whether no worker has begun."""

    def silent_for(self, run: Run) -> dict[int, float]:
        """Return how many seconds ago each worker that has begun was heard of.

        The chief asks for it when it takes no more steps.
        """

    def global_step(self, run: Run) -> int:
        """Return how many steps all have taken."""

    def close(self) -> None:
        """Let go of all."""


def parts_of(strategy: Any, supervisor: Supervisor, timeout: float) -> Parts:
    """Return what the processes of a strategy have in common.

    Parameters
    ----------
    strategy : SharedMemory or AsyncParameterServer
        Which one.
    supervisor : Supervisor
        Starts processes.
    timeout : float, seconds
        How long to wait for a process that others need.
    """
    if isinstance(strategy, AsyncParameterServer):
        return InServers(strategy, supervisor, timeout)
    return InMemory(strategy)


def local_context(num_workers: int, index: int) -> InputContext | None:
    """Return which part of the input a process reads; the chief is number 0."""
    return InputContext(num_workers, index) if num_workers > 1 else None


class InMemory:
    """Variables in memory that all processes see.

    Parameters
    ----------
    strategy : SharedMemory
        How many processes there are.
    """

    def __init__(self, strategy: SharedMemory) -> None:
        self._num_workers = strategy.num_workers
        self.replica = SharedMemoryReplica(0, self._num_workers)
        self._silence = Silence()

    @property
    def files(self) -> list[BinaryIO]:
        """The memory."""
        return [self.replica.file]

    @property
    def open(self) -> Callable[[list[int], int], Replica]:
        """What makes the part of a worker in its process."""
        return functools.partial(_open_memory, self._num_workers)

    def latest(self, store: CheckpointStore) -> Checkpoint | None:
        """Return the newest checkpoint."""
        return store.latest()

    def building(self) -> contextlib.AbstractContextManager[Any]:
        """Nothing is special: steps are taken in the memory of all."""
        return contextlib.nullcontext()

    def built(self, spec: EstimatorSpec) -> None:
        """Nothing is left to do."""

    def prepare(self, run: Run) -> None:
        """Move the variables into the memory."""
        self.replica.begin(run)

    def begin(self, run: Run) -> None:
        """Nothing is left to do."""

    def stop_others(self, run: Run) -> None:
        """Ask all workers to stop after the step that they are in."""
        self.replica.stop_others()

    def is_alone(self, run: Run) -> bool:
        """Tell whether no worker has begun."""
        return self.replica.is_alone

    def silent_for(self, run: Run) -> dict[int, float]:
        """Return how many seconds ago each worker that has begun took a step."""
        return self._silence.of(self.replica.steps_of_others)

    def global_step(self, run: Run) -> int:
        """Return how many steps all have taken."""
        return self.replica.global_step

    def close(self) -> None:
        """Let go of the memory."""
        self.replica.close()


def _open_memory(num_workers: int, files: list[int], index: int) -> Replica:
    return SharedMemoryReplica(index, num_workers, os.fdopen(files[0], "r+b"))


class InServers:
    """Variables in parameter servers, which are processes of their own.

    They listen on the loopback interface, at ports that are free, and know a secret of
    this training. One that is started again listens at the same port.

    Parameters
    ----------
    strategy : AsyncParameterServer
        How many processes there are, and how they work together.
    supervisor : Supervisor
        Starts the servers.
    timeout : float, seconds
        How long to wait for them.
    """

    def __init__(
        self, strategy: AsyncParameterServer, supervisor: Supervisor, timeout: float
    ) -> None:
        self._strategy, self._supervisor = strategy, supervisor
        self._timeout = timeout
        self._beginning = Beginning()
        self._secret = secrets.token_hex(16)
        self._closing = contextlib.ExitStack()
        self._replica: AsyncReplica | None = None
        self.files: list[BinaryIO] = []

    @property
    def replica(self) -> AsyncReplica:
        """The part of the chief, after `begin`."""
        if self._replica is None:
            raise RuntimeError("The training has not begun: there are no servers.")
        return self._replica

    @property
    def open(self) -> Callable[..., AsyncReplica]:
        """What makes the part of a worker in its process."""
        return functools.partial(
            _open_session, self._strategy, self._secret, self._timeout
        )

    def latest(self, store: CheckpointStore) -> Checkpoint | None:
        """Return the newest checkpoint, but for the values that go to the servers."""
        return self._beginning.latest(store)

    def building(self) -> contextlib.AbstractContextManager[Any]:
        """Slots of optimizers are only to be described; steps are taken in servers."""
        return self._beginning.building()

    def built(self, spec: EstimatorSpec) -> None:
        """Tell slots of optimizers, which servers will have, from what the model has."""
        self._beginning.built(spec.optimizers)

    def prepare(self, run: Run) -> None:
        """Start the servers; workers import their modules at the same time."""
        strategy = self._strategy
        options = {
            "secret": self._secret,
            "model_dir": run.model_dir,
            "lease": strategy.lease,
            "max_staleness": strategy.max_staleness,
            "use_locking": strategy.use_locking,
            "timeout": strategy.timeout,
            # They end with this process, which may be stopped or busy for long.
            "orphan_timeout": math.inf,
        }
        job = self._closing.enter_context(write_job(serve_part, options))
        for ps in range(strategy.num_ps):
            place = self._closing.enter_context(anonymous_file(_ADDRESS_BYTES))
            self.files.append(place)
            self._supervisor.start(
                Task.of_job(
                    f"ps-{ps}",
                    job,
                    {"ps": ps, "place": place.fileno()},
                    report=self._closing.enter_context(anonymous_file()),
                    environ={"OMP_NUM_THREADS": "1"},
                    files=[place],
                )
            )

    def begin(self, run: Run) -> None:
        """Give the servers their variables, or take those that they have."""
        places = [file.fileno() for file in self.files]
        self._replica = self.open(
            places, 0, check=self._supervisor.check, beginning=self._beginning
        )
        with _short_waits():
            self._replica.begin(run)

    def stop_others(self, run: Run) -> None:
        """Ask all workers to stop after the step that they are in."""
        self.replica.stop_others(run)

    def is_alone(self, run: Run) -> bool:
        """Tell whether no worker has begun."""
        return self.replica.tasks_seen(run) <= 1

    def silent_for(self, run: Run) -> dict[int, float]:
        """Return how many seconds ago each worker asked a server for something."""
        return self.replica.silence_of_workers(run)

    def global_step(self, run: Run) -> int:
        """Return how many steps all have taken."""
        self.replica.tasks_seen(run)  # the answer tells the step as well
        return self.replica.client.step

    def close(self) -> None:
        """Let go of the sessions."""
        if self._replica is not None:
            self._replica.close()
        self._closing.close()


@contextlib.contextmanager
def _short_waits() -> Iterator[None]:
    """Let this thread not wait for a name server when it connects with a store.

    The C library reads the variable when a thread looks up its first name; even for
    127.0.0.1 the store asks.
    """
    added = res_options()
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def serve_part(ps: int, place: int, **options: Any) -> None:
    """Be a parameter server that a `LocalChief` has started.

    Parameters
    ----------
    ps : int
        Its number.
    place : int
        Descriptor of the file for its address; what is there is that of the process
        before it.
    **options
        Of `skest.distributed.ps.server.ParameterServer`.
    """

    def announce(address: str) -> None:
        os.pwrite(place, address.encode().ljust(_ADDRESS_BYTES), 0)

    serve_parameters(_address_at(place) or _ANY_PORT, ps, announce=announce, **options)


def _open_session(
    strategy: AsyncParameterServer,
    secret: str,
    timeout: float,
    places: list[int],
    index: int,
    check: Callable[[], None] = lambda: None,
    beginning: Beginning | None = None,
) -> AsyncReplica:
    """Return the part of a process, as soon as all servers have an address."""
    end = time.monotonic() + timeout
    while not all(addresses := [_address_at(place) for place in places]):
        check()
        if time.monotonic() > end:
            raise TimeoutError(f"The parameter servers did not start in {timeout:g} s.")
        time.sleep(_PAUSE)
    return AsyncReplica(
        strategy,
        ps_addresses=addresses,
        task_type="worker" if index else "chief",
        task_index=index,
        input_context=local_context(strategy.num_workers, index),
        secret=secret,
        attach_timeout=timeout,
        may_fall_short=True,  # nobody would start the program of the user again
        check=check,
        beginning=beginning,
    )


def _address_at(place: int) -> str:
    """Return the address that is in a file; it is empty if there is none yet."""
    return os.pread(place, _ADDRESS_BYTES, 0).strip(b"\0 ").decode()


_SECONDS_TO_BEGIN = 60.0  # to import, and to read and encode the first batch


def wait_for_workers(
    supervisor: Supervisor,
    names: Sequence[str],
    silent_for: Callable[[], Mapping[str, float]],
    lease: float,
) -> None:
    """Wait until workers have ended; one that stands still is killed.

    The supervisor starts it again, as one that died.

    Parameters
    ----------
    supervisor : Supervisor
        Sees to the workers.
    names : sequence of str
        Their names.
    silent_for : callable
        Returns how many seconds ago each worker that has begun was heard of.
    lease : float, seconds
        How long a worker may be silent. One that has just been started has a minute to
        begin, or `lease` if that is longer.

    Raises
    ------
    TaskFailedError
        If a worker died, or was killed, more often than it may be restarted.
    BaseException
        What a worker raised.
    """
    while not supervisor.wait(min(1.0, lease / 4), names):
        silence = silent_for()
        for name in names:
            age = supervisor.age(name)
            if age is None:
                continue
            silent = silence.get(name, age)
            limit = lease if silent < age else max(lease, _SECONDS_TO_BEGIN)
            if min(silent, age) > limit:
                supervisor.kill(name, f"stands still for {limit:g} s")


class Silence:
    """Tells for how long counters have not moved.

    Parameters
    ----------
    now : callable, default=time.monotonic
        The time, in seconds.

    Examples
    --------
    >>> from skest.distributed.local import Silence
    >>> clock = iter([0.0, 5.0, 7.0])
    >>> silence = Silence(lambda: next(clock))
    >>> for steps in [1, 1, 2]:
    ...     print(silence.of({1: steps}))
    {1: 0.0}
    {1: 5.0}
    {1: 0.0}
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._moved: dict[int, tuple[int, float]] = {}

    def of(self, counters: Mapping[int, int]) -> dict[int, float]:
        """Return for how many seconds each counter, by its number, has been as it is."""
        now = self._now()
        for name, value in counters.items():
            if self._moved.get(name, (None,))[0] != value:
                self._moved[name] = (value, now)
        return {name: now - self._moved[name][1] for name in counters}
