# SPDX-License-Identifier: Apache-2.0
"""Trainings of several processes on one machine, which a call of ``train`` starts."""

import contextlib
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from joblib.parallel import get_active_backend

from skest._interrupts import broken_off_by_interrupt
from skest._random import seed_sequence
from skest.distributed.anonymous_file import anonymous_file
from skest.distributed.job import write_job
from skest.distributed.shared_memory import SharedMemoryReplica
from skest.distributed.supervisor import Supervisor, Task
from skest.hooks.base import Run
from skest.replica import Replica
from skest.run_config import RunConfig
from skest.training import INPUT_ENDED, Step, move_to_step

__all__ = ["LocalChief", "train_locally", "wants_local_tasks"]

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
    ) -> None: ...


def wants_local_tasks(config: RunConfig) -> bool:
    """Tell whether a training shall start processes on this machine.

    Parameters
    ----------
    config : RunConfig
        ``train_distribute`` describes the processes.
    """
    strategy = getattr(config, "train_distribute", None)
    return hasattr(strategy, "num_workers") and not hasattr(strategy, "num_ps")


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
        `wants_local_tasks` of it is true.
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
    input anew; its step is lost. One that raises an error ends the training: a checkpoint
    is saved, and the error is raised here. Parameters are those of `train_locally`.

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
        strategy: Any = getattr(config, "train_distribute", None)
        self._num_workers: int = strategy.num_workers
        self._replica = SharedMemoryReplica(0, self._num_workers)
        self.input_context = self._replica.input_context
        directory = None if config.model_dir is None else Path(config.model_dir) / _LOGS
        self.supervisor = Supervisor(log_dir=directory)
        self._files = contextlib.ExitStack()
        arguments = {
            "train": train,
            "model_fn": model_fn,
            "input_fn": input_fn,
            "config": config,
            "num_workers": self._num_workers,
        }
        self._job = self._files.enter_context(write_job(train_part, arguments))

    def begin(self, run: Run) -> None:
        """Move the variables into common memory, and start the other processes."""
        self._replica.begin(run)
        last_step = self._max_steps
        if self._steps is not None:
            last_step = run.start_step + self._steps
        for index in range(1, self._num_workers):
            self.supervisor.start(self._task(index, last_step))

    def make_step(self, run: Run, make: Callable[[], Step]) -> Step:
        """Return the step of one process, which works in the common memory."""
        return self._replica.make_step(run, make)

    def steps_taken(self, run: Run) -> int:
        """Count a step; stop if a process has failed."""
        if self.supervisor.failure is not None:
            run.request_stop("another process failed")
        return self._replica.steps_taken(run)

    def capture(self, run: Run, capture: Callable[[Run], Any]) -> Any:
        """Return a checkpoint of the common variables as they are at the moment."""
        return self._replica.capture(run, capture)

    def finish(self, run: Run) -> None:
        """Wait for the others, which stop at once if this process was made to stop."""
        self.supervisor.check()
        if run.stop_reason == INPUT_ENDED:
            with broken_off_by_interrupt(
                functools.partial(setattr, run, "stop_reason")
            ):
                self.supervisor.wait()
        self._replica.stop_others()
        if not self._replica.is_alone:  # who has not begun will not
            self.supervisor.wait(_SECONDS_TO_STOP)
        move_to_step(run, self._replica.global_step)

    def close(self) -> None:
        """End the other processes, and let go of what they had in common."""
        self.supervisor.stop()
        self._replica.close()
        self._files.close()

    def _task(self, index: int, last_step: int | None) -> Task:
        memory = self._replica.file
        report = self._files.enter_context(anonymous_file())
        options = {"--job": self._job.fileno(), "--report": report.fileno()}
        arguments = {"index": index, "memory": memory.fileno(), "max_steps": last_step}
        threads = max(1, torch.get_num_threads() // self._num_workers)
        name = f"worker-{index}"
        return Task(
            name,
            [str(part) for option in options.items() for part in option]
            + [json.dumps(arguments)],
            environ={_TASK: name, "OMP_NUM_THREADS": str(threads)},
            files=[self._job, memory],
            report=report,
        )


def train_part(
    train: Train,
    model_fn: Callable[..., Any],
    input_fn: Callable[..., Any],
    config: RunConfig,
    num_workers: int,
    index: int,
    memory: int,
    max_steps: int | None,
) -> None:
    """Train in a process that a `LocalChief` has started.

    Parameters
    ----------
    train, model_fn, input_fn, config
        As for `train_locally`.
    num_workers, index : int
        See `skest.distributed.shared_memory.SharedMemoryReplica`.
    memory : int
        Descriptor of its file.
    max_steps : int or None
        Global step to stop at.
    """
    if config.random_seed is not None:
        # Dropout and shuffling of each process differ, and are the same for each run.
        (seed,) = seed_sequence(config.random_seed, index).generate_state(1)
        config = config.replace(random_seed=int(seed))
    with (
        os.fdopen(memory, "r+b") as file,
        SharedMemoryReplica(index, num_workers, file) as replica,
    ):
        train(model_fn, input_fn, config, max_steps, replica)


def _refuse_in_cluster(config: RunConfig) -> None:
    """Raise if the environment describes a cluster: memory ends with the machine."""
    cluster = getattr(config, "cluster_spec", None)
    if cluster:
        strategy = getattr(config, "train_distribute", None)
        raise ValueError(
            f"train_distribute={strategy!r} starts processes on this machine, but the "
            f"environment says that this one is a task of {cluster!r}. Use "
            "AsyncParameterServer there, or unset SKEST_CONFIG and TF_CONFIG."
        )


def _refuse_if_nested(config: RunConfig) -> None:
    """Raise if several such trainings would run at the same time."""
    backend, _ = get_active_backend()
    if backend.nesting_level or _TASK in os.environ:
        where = "a process that it has started itself"
        if backend.nesting_level:
            where = "a parallel call of joblib, such as a search with n_jobs=2"
        strategy = getattr(config, "train_distribute", None)
        raise RuntimeError(
            f"train_distribute={strategy!r} starts processes, and this training runs in "
            f"{where}: they would multiply. Use n_jobs=1 there, or train_distribute=None."
        )
