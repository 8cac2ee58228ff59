# SPDX-License-Identifier: Apache-2.0
"""`Replica`: the part of one process in a training, and whether it shares it."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Self

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import CheckpointStore, DirectoryStore
from skest.config.run_config import RunConfig
from skest.config.strategies import AsyncParameterServer, Strategy
from skest.engine.loop import Step, WatchedStep, train_step
from skest.hooks.base import Run
from skest.inputs.input_context import InputContext


class Replica:
    """The part of one process in a training; this one trains alone.

    It is the seam for `skest.distributed`: the loop in `skest.engine.loop` and the code of
    models do not know which replica is at work. Its methods are called in the order in
    which they stand here, `steps_taken` after every step if `counts_steps`. It is a
    context manager that calls `close`.

    Attributes
    ----------
    is_chief : bool
        Whether this process reads and writes the checkpoints of ``model_dir``, writes
        summaries, and runs the hooks that are for one process only.
    input_context : InputContext or None
        Which part of the input it reads; None is all of it.
    result : Checkpoint or None
        After `leave`: the last checkpoint of the training, for a process beside the chief
        that has no other way to it.
    """

    is_chief: bool = True
    input_context: InputContext | None = None
    result: Checkpoint | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> bool | None:
        self.close()
        return None

    def latest(self, store: CheckpointStore) -> Checkpoint | None:
        """Return what to go on from, for this process, or None."""
        return store.latest()

    def seed(self, seed: int | None, start: int) -> int | None:
        """Return the seed of the random numbers of this process.

        Parameters
        ----------
        seed : int or None
            ``RunConfig.random_seed``.
        start : int
            The global step to go on from.
        """
        return seed

    def building(self) -> AbstractContextManager[Any]:
        """Return what is entered while the model is built."""
        return nullcontext()

    def begin(self, run: Run) -> None:
        """Take part, before the first step.

        The network and the optimizers of `run` are those of its checkpoint, or freshly
        initialized. Sets ``run.global_step`` if others have taken steps already.
        """

    def make_step(self, run: Run, make: Callable[..., Step]) -> Step:
        """Return what takes the steps; `make` returns what does so in one process.

        ``make(halves=...)`` does so with other `skest.engine.loop.Halves` of a step.
        """
        return make()

    def batches(
        self, run: Run, batches: Iterator[tuple[Any, Any]]
    ) -> Iterator[tuple[Any, Any]]:
        """Return the batches to train on, of those of this process."""
        return batches

    def make_watched_step(self, run: Run) -> WatchedStep:
        """Return what takes the steps of which hooks want the gradients."""
        return functools.partial(train_step, run.spec)

    def steps_taken(self, run: Run) -> int:
        """Return the global step, after this process has taken one more step."""
        return run.global_step + 1

    @property
    def counts_steps(self) -> bool:
        """Whether `steps_taken` does more than to add 1, and is called at every step."""
        return type(self).steps_taken is not Replica.steps_taken

    def capture(self, run: Run, capture: Callable[[Run], Any]) -> Any:
        """Return a checkpoint; `capture` returns that of the state in this process."""
        return capture(run)

    def refresh(self, run: Run) -> None:
        """Bring the network up to date, for who looks at it between two steps."""

    def finish(self, run: Run) -> None:
        """Wait for what others have to do before the last checkpoint.

        Called when the loop has ended by itself, before the ``end`` of the hooks.
        """

    def leave(self, run: Run) -> None:
        """Take no part any more, after the last checkpoint."""

    def close(self) -> None:
        """Let go of connections and memory, also after an error."""


#: What makes the replica of a process that trains alone; `skest.engine.crew` lets its
#: trainings meet.
LONE: ContextVar[Callable[[], Replica]] = ContextVar("skest_lone", default=Replica)


def strategy_of(config: RunConfig) -> Strategy | None:
    """Return how the tasks share a training; None if this process trains alone.

    Parameters
    ----------
    config : RunConfig
        With ``train_distribute=None`` in a cluster that has parameter servers, it is
        ``AsyncParameterServer()``, as with ``TF_CONFIG`` in TensorFlow.
    """
    if config.train_distribute is None and config.num_ps_replicas:
        return AsyncParameterServer()
    return config.train_distribute


def is_alone(config: RunConfig) -> bool:
    """Tell whether a process knows of no others, so that it trains alone."""
    is_worker = config.task_type == "worker"
    return strategy_of(config) is None and is_worker and not config.cluster_spec


class EndOfTraining:
    """Sees in ``model_dir`` whether the chief has ended the training.

    A training that was ended by an error does not count: the chief may be started again.

    Parameters
    ----------
    model_dir : Path
        What is noted there when this is made may be of an earlier training.
    """

    def __init__(self, model_dir: Path) -> None:
        self._store = DirectoryStore(model_dir)
        self._before = self._found()

    @property
    def has_changed(self) -> bool:
        """Whether the chief has done anything since this was made."""
        return self._found() != self._before

    def reason(self) -> str | None:
        """Return why the training has ended since this was made, None if it has not."""
        found = self._found()
        return None if found == self._before else found[1]

    def old_reason(self) -> str | None:
        """Return why a training had ended when this was made, if none has begun since."""
        found = self._found()
        return found[1] if found == self._before else None

    def _found(self) -> tuple[object, str | None]:
        return self._store.version(), self._store.end_reason()
