# SPDX-License-Identifier: Apache-2.0
"""Trainings of several processes on one machine, which a call of ``train`` starts."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import torch
from joblib.parallel import get_active_backend

from skest._random import seed_sequence
from skest.checkpoint_store import CheckpointStore
from skest.checkpoints import Checkpoint
from skest.distributed.anonymous_file import anonymous_file
from skest.distributed.job import write_job
from skest.distributed.local_parts import local_context, parts_of
from skest.distributed.supervisor import Supervisor, Task
from skest.distributed.waiting import wait_for_workers
from skest.hooks.base import Run
from skest.replica import Replica
from skest.run_config import RunConfig
from skest.spec import EstimatorSpec
from skest.training import INPUT_ENDED, Step, WatchedStep, move_to_step

__all__ = ["LocalChief", "train_locally"]

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
    ) -> None: ...


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
        ``open`` of `skest.distributed.local_parts.Parts`.
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
