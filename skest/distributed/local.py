# SPDX-License-Identifier: Apache-2.0
"""Trainings of several processes on one machine, which a call of ``train`` starts.

The calling process is the chief. It starts the others when the model is built, and ends
them when the training does, however that is.
"""

import functools
import logging
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from joblib.parallel import get_active_backend

from skest.checkpoints.store import MemoryStore
from skest.config.run_config import AsyncParameterServer, RunConfig, SharedMemory
from skest.core.random import child_seed
from skest.distributed.processes import TASK, Processes, read_job, write_job
from skest.distributed.ps.server import serve_at
from skest.distributed.ps.worker import AsyncReplica
from skest.distributed.shared_memory import SharedMemoryReplica, SharedTensors
from skest.engine.loop import INPUT_ENDED, Replica, move_to_step
from skest.engine.model import ModelBuilder, ModelFn
from skest.engine.training import TrainingOrder, run_training
from skest.hooks.base import Run
from skest.inputs.input_context import context_among

_logger = logging.getLogger("skest")

# Of a look at the other processes: no training ends later by more than that.
_PAUSE = 0.05
_SECONDS_TO_STOP = 60.0  # for the step that a process is in
_NEVER = 1e9  # seconds: servers end with this process, which may be busy for long


def train_locally(
    model_fn: Callable[..., Any],
    input_fn: Callable[..., Any],
    config: RunConfig,
    steps: int | None = None,
    max_steps: int | None = None,
) -> Replica:
    """Prepare a training of several processes, of which the calling one is the chief.

    Hooks run in the chief only, on its own steps; what they ask for, such as to stop,
    holds for all processes. A worker that dies is started again, and begins its part of
    the input anew; its step is lost. One that raises an error ends the training: a
    checkpoint is saved, and the error is raised here.

    Parameters
    ----------
    model_fn, input_fn : callable
        See `skest.Estimator`.
    config : RunConfig
        Its ``train_distribute`` is SharedMemory or AsyncParameterServer.
    steps, max_steps : int or None
        See `skest.Estimator.train`.

    Returns
    -------
    Replica
        The part of the calling process.

    Raises
    ------
    RuntimeError
        If the call is itself one of several that run at the same time.
    ValueError
        If this process is a task of a cluster that somebody else has started.
    TypeError
        If a function holds something that can't be sent to another process.
    """
    _check_may_start(config)
    work = {"model_fn": model_fn, "input_fn": input_fn, "config": config}
    strategy: Any = config.train_distribute
    workers = Workers(work, strategy, steps, max_steps)
    if isinstance(strategy, AsyncParameterServer):
        return ServedChief(config, workers)
    return SharedMemoryChief(strategy, workers)


class Workers(Processes):
    """The processes that train beside the chief; those of servers are among them, too.

    Parameters
    ----------
    work : dict of str to object
        What they train, and how.
    strategy : SharedMemory or AsyncParameterServer
        How many there are.
    steps, max_steps : int or None
        See `skest.Estimator.train`.
    """

    def __init__(
        self,
        work: dict[str, Any],
        strategy: Any,
        steps: int | None,
        max_steps: int | None,
    ) -> None:
        super().__init__()
        self._n = strategy.num_workers
        self._steps, self._max_steps = steps, max_steps
        # Written at once, so that what can't be sent is told before the model is built.
        self._job = write_job(train_part, work)

    def start_all(
        self, run: Run, open_part: Callable[..., Replica], files: tuple[int, ...] = ()
    ) -> None:
        """Start them; ``open_part(index, files)`` makes the part of each, there."""
        # `steps` counts those of all workers together, as the global step does.
        last_step = self._max_steps
        if self._steps is not None:
            last_step = run.start_step + self._steps
        # The processes share the cores: with all threads in each, they would slow each
        # other down.
        threads = max(1, torch.get_num_threads() // self._n)
        # Number 0 is the process that calls.
        for index in range(1, self._n):
            self.start(
                f"worker-{index}",
                _do_part,
                {"index": index, "max_steps": last_step, "open_part": open_part},
                files=(self._job.fileno(), *files),
                environ={"OMP_NUM_THREADS": str(threads)},
            )

    def wait(self, seconds: float, moved: Callable[[], Any] = lambda: None) -> None:
        """Wait until they have ended, unless nothing moves for so long.

        Parameters
        ----------
        seconds : float
            How long.
        moved : callable, optional
            What it returns changes when one of them takes a step.

        Raises
        ------
        BaseException
            As `Processes.check`.
        """
        before, since = moved(), time.monotonic()
        while True:
            self.check()
            # Servers run until they are told to end.
            late = [n for n in self.running() if n.startswith("worker")]
            if not late:
                return
            if (now := moved()) != before:
                before, since = now, time.monotonic()
            if time.monotonic() - since > seconds:
                _logger.warning(
                    "%s did nothing for %g s, and is ended.", ", ".join(late), seconds
                )
                return
            time.sleep(_PAUSE)

    def close(self) -> None:
        """End all processes."""
        super().close()
        self._job.close()


class SharedMemoryChief(SharedMemoryReplica):
    """The chief of a training in shared memory.

    Parameters
    ----------
    strategy : SharedMemory
        How many processes there are.
    workers : Workers
        The others.
    """

    def __init__(self, strategy: SharedMemory, workers: Workers) -> None:
        super().__init__(0, strategy.num_workers)
        self._strategy, self._workers = strategy, workers

    def begin(self, run: Run) -> None:
        """Move the variables into the memory, and start the other processes."""
        super().begin(run)
        n, memory = self._strategy.num_workers, self.memory
        open_part = functools.partial(_open_memory, n, memory.layout)
        self._workers.start_all(run, open_part, (memory.file.fileno(),))

    def steps_taken(self, run: Run) -> int:
        """Count a step, and return how many all have taken."""
        # What another process raised ends the chief's loop here, and a checkpoint is saved.
        self._workers.check()
        return super().steps_taken(run)

    def finish(self, run: Run) -> None:
        """Wait for the others, which stop at once if this process was made to stop."""
        if run.stop_reason == INPUT_ENDED:
            self._workers.wait(self._strategy.lease, lambda: self.global_step)
        # Also where the input had ended: one that is late would go on without end.
        self.stop_others()
        self._workers.wait(_SECONDS_TO_STOP)
        move_to_step(run, self.global_step)

    def close(self) -> None:
        """End the other processes, and let go of the memory."""
        self._workers.close()
        super().close()


class ServedChief(AsyncReplica):
    """The chief of a training with parameter servers on this machine.

    The servers listen on the loopback interface, at ports that are free, and know a
    secret of this training.

    Parameters
    ----------
    config : RunConfig
        Its strategy says how many processes there are.
    workers : Workers
        Those that train.
    """

    def __init__(self, config: RunConfig, workers: Workers) -> None:
        strategy: Any = config.train_distribute
        self._workers = workers
        # They listen before the servers run: workers can connect at once, and no port
        # is lost to another program between its choice and its use.
        self._sockets = [
            socket.create_server(("127.0.0.1", 0)) for _ in range(strategy.num_ps)
        ]
        # What workers need as well, for sessions with the same servers.
        self._sessions: dict[str, Any] = {
            "ps_addresses": ["{}:{}".format(*s.getsockname()) for s in self._sockets],
            # Other users of the machine reach the loopback interface, too.
            "secret": secrets.token_hex(16),
            "attach_timeout": config.session_creation_timeout_secs,
        }
        super().__init__(
            strategy,
            **self._sessions,
            task_type="chief",
            input_context=context_among(strategy.num_workers, 0),
            check=workers.check,
        )

    def begin(self, run: Run) -> None:
        """Start the other processes, and give the servers their variables."""
        strategy, secret = self._strategy, self._sessions["secret"]
        options = {"strategy": strategy, "secret": secret, "orphan_timeout": _NEVER}
        # With the sockets, not their addresses: who connects already waits in their queues.
        for ps, listening in enumerate(self._sockets):
            self._workers.start(
                f"ps-{ps}",
                serve_at,
                {"ps": ps, **options},
                files=(listening.fileno(),),
                environ={"OMP_NUM_THREADS": "1"},
                # What it held would be lost with it.
                may_die=False,
            )
        self._workers.start_all(
            run, functools.partial(_open_session, strategy, self._sessions)
        )
        super().begin(run)
        for listening in self._sockets:  # or who connects would wait for a dead server
            listening.close()

    def steps_taken(self, run: Run) -> int:
        """Return the global step; raise the error of a process that has failed."""
        self._check()
        return super().steps_taken(run)

    def finish(self, run: Run) -> None:
        """Wait for the others, which stop at once if this process was made to stop."""
        super().finish(run)
        self._workers.wait(_SECONDS_TO_STOP)

    def close(self) -> None:
        """End the other processes."""
        super().close()
        for listening in self._sockets:
            listening.close()
        self._workers.close()


def _do_part(files: list[int], **arguments: Any) -> None:
    """Train in a process that a chief has started; the first file has the job."""
    read_job(files[0])(files=files[1:], **arguments)


def train_part(
    model_fn: Callable[..., Any],
    input_fn: Callable[..., Any],
    config: RunConfig,
    index: int,
    max_steps: int | None,
    open_part: Callable[[int, list[int]], Replica],
    files: list[int],
) -> None:
    """Train in a process that a chief has started.

    Parameters
    ----------
    model_fn, input_fn, config
        As for `train_locally`.
    index : int
        Which of the processes this is.
    max_steps : int or None
        Global step to stop at.
    open_part : callable
        ``open_part(index, files)`` makes the part of this process.
    files : list of int
        Descriptors of what it shares with others.
    """
    if config.random_seed is not None:
        # Dropout and shuffling of each process differ, and are the same for each run.
        seed = child_seed(config.random_seed, index)
        config = config.replace(random_seed=seed)
    # For `model_fn`, which may look into it; nothing is written there.
    directory = None if config.model_dir is None else Path(config.model_dir)
    builder = ModelBuilder(ModelFn(model_fn, None), config, directory, _ignore)
    # Hooks run in the chief only, and what is saved is the chief's.
    order = TrainingOrder(input_fn, [], [], None, max_steps, _ignore)
    with open_part(index, files) as replica:
        run_training(builder, order, replica, MemoryStore(), _ignore)


def _ignore(*what: Any) -> None:
    """Do nothing."""


def _open_memory(
    num_workers: int, layout: Any, index: int, files: list[int]
) -> Replica:
    memory = SharedTensors(os.fdopen(files[0], "r+b"), layout)
    return SharedMemoryReplica(index, num_workers, memory)


def _open_session(
    strategy: AsyncParameterServer,
    sessions: dict[str, Any],
    index: int,
    files: list[int],
) -> Replica:
    return AsyncReplica(
        strategy,
        **sessions,
        task_type="worker",
        task_index=index,
        input_context=context_among(strategy.num_workers, index),
    )


def _check_may_start(config: RunConfig) -> None:
    """Raise if this is a task of a cluster, or one of several trainings at a time."""
    if config.cluster_spec:  # memory ends with the machine
        raise ValueError(
            f"train_distribute={config.train_distribute!r} starts processes on this "
            "machine, but the environment says that this one is a task of "
            f"{config.cluster_spec!r}. Use AsyncParameterServer there, or unset "
            "SKEST_CONFIG and TF_CONFIG."
        )
    backend, _ = get_active_backend()
    is_parallel = backend.nesting_level or _is_dask_task()
    if is_parallel or TASK in os.environ:
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
