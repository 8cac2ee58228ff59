# SPDX-License-Identifier: Apache-2.0
"""Where the variables of a training on one machine are, for each strategy."""

import contextlib
import functools
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol

from skest.checkpoint_store import CheckpointStore
from skest.checkpoints import Checkpoint
from skest.distributed.anonymous_file import anonymous_file
from skest.distributed.async_replica import AsyncReplica
from skest.distributed.beginning import Beginning
from skest.distributed.job import write_job
from skest.distributed.server import serve_parameters
from skest.distributed.shared_memory import SharedMemoryReplica
from skest.distributed.supervisor import Supervisor, Task, res_options
from skest.distributed.waiting import Silence
from skest.hooks.base import Run
from skest.inputs.input_context import InputContext
from skest.replica import Replica
from skest.spec import EstimatorSpec
from skest.strategies import AsyncParameterServer, SharedMemory

__all__ = ["InMemory", "InServers", "Parts", "local_context", "parts_of"]

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
        Of `skest.distributed.server.ParameterServer`.
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
