# SPDX-License-Identifier: Apache-2.0
"""One training: from the checkpoint that it goes on from to its last step."""

import contextlib
import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skest._interrupts import INTERRUPTED
from skest._random import RunRandom
from skest._resources import IntraOpThreads, dense_size, threads_for
from skest.checkpoint_store import CheckpointStore, MemoryStore
from skest.checkpoints import Checkpoint
from skest.execution.choice import make_step
from skest.hooks.base import Hook, Run
from skest.hooks.checkpoint import CheckpointListener
from skest.inputs.array_dataset import count_rows
from skest.inputs.batches import Source
from skest.keys import ModeKeys
from skest.model_builder import ModelBuilder, encoded_batches, restore
from skest.model_fn import ModelFn
from skest.out_of_memory import explained_out_of_memory
from skest.replica import Replica
from skest.run_config import RunConfig
from skest.saving import make_save, recorded
from skest.spec import EstimatorSpec
from skest.training import train_loop
from skest.training_hooks import stop_hooks, training_hooks

__all__ = ["TrainingOrder", "run_training", "train_part"]

_logger = logging.getLogger("skest")


@dataclasses.dataclass(frozen=True)
class TrainingOrder:
    """What a call of `skest.Estimator.train` asks for, checked.

    Parameters
    ----------
    input_fn : callable
        See there, as the others.
    hooks : list of Hook
        The caller's.
    listeners : list of CheckpointListener
        Called around every checkpoint.
    steps, max_steps : int or None
        How many steps to take, or up to which; one of them at most.
    warm_start : callable
        ``warm_start(spec, random)`` is called with a model that has no checkpoint.
    """

    input_fn: Callable[..., Any]
    hooks: list[Hook]
    listeners: list[CheckpointListener]
    steps: int | None
    max_steps: int | None
    warm_start: Callable[[EstimatorSpec, RunRandom], None]

    def steps_ahead(self, source: Source, start: int) -> int | None:
        """Return the number of steps if nothing stops training early; None is unknown."""
        known = [] if self.steps is None else [self.steps]
        if self.max_steps is not None:
            known.append(self.max_steps - start)
        if source.table is not None and source.table.num_epochs is not None:
            known.append(source.table.steps_per_epoch * source.table.num_epochs)
        return min(known, default=None)


def run_training(
    builder: ModelBuilder,
    order: TrainingOrder,
    replica: Replica,
    store: CheckpointStore,
    check_lock: Callable[[], None],
) -> Run | None:
    """Build the model, go on from the latest checkpoint, and train.

    Parameters
    ----------
    builder : ModelBuilder
        Opens the input and builds the model.
    order : TrainingOrder
        What to do.
    replica : Replica
        The part of this process in it; its context is entered.
    store : CheckpointStore
        Where checkpoints are kept.
    check_lock : callable
        Raises an error if another training may have been let in.

    Returns
    -------
    Run or None
        The run, which is over; None if the input has no batch.
    """
    checkpoint = replica.latest(store)
    saved_step = None if checkpoint is None else checkpoint.global_step
    start = saved_step or 0
    source = builder.open_source(
        order.input_fn, ModeKeys.TRAIN, checkpoint, replica.input_context
    )
    first = source.first_batch()
    if first is None:
        _logger.warning("Training made no steps: the input has no batch.")
        return None
    builder.remember(first[0])
    seed = replica.seed(builder.config.random_seed, start)
    random = RunRandom(seed, builder.device)
    with replica.building():
        spec = builder.build(*first, ModeKeys.TRAIN, random)
    replica.built(spec)
    if checkpoint is None and replica.is_chief:
        order.warm_start(spec, random)
    restore(spec, checkpoint, random)
    del checkpoint  # it may be larger than the model
    capture = functools.partial(_capture, random, source)
    run = Run(
        spec,
        builder.config,
        global_step=start,
        model_dir=builder.model_dir,
        table=source.table,
        raw_batch=source.raw_batch,
        capture=functools.partial(replica.capture, capture=capture),
        save=make_save(store, spec, check_lock),
        refresh=replica.refresh,
        summary_dir=builder.model_dir if replica.is_chief else None,
    )
    run.saved_step = saved_step
    n_rows = count_rows(first[0], "features")
    _take_steps(run, order, replica, store, source, random, n_rows)
    _logger.info("Training stopped at step %d: %s.", run.global_step, run.stop_reason)
    return run


def train_part(
    model_fn: Callable[..., EstimatorSpec],
    input_fn: Callable[..., Any],
    config: RunConfig,
    max_steps: int | None,
    replica: Replica,
) -> None:
    """Train as one of several processes beside the chief.

    Parameters
    ----------
    model_fn, input_fn, config
        See `skest.Estimator`.
    max_steps : int or None
        Global step to stop at.
    replica : Replica
        The part of this process; its context is entered.
    """
    directory = None if config.model_dir is None else Path(config.model_dir)
    builder = ModelBuilder(ModelFn(model_fn, None), config, directory, _ignore)
    order = TrainingOrder(input_fn, [], [], None, max_steps, _ignore)
    run_training(builder, order, replica, MemoryStore(), _ignore)


def _ignore(*what: Any) -> None:
    """Do nothing."""


def _take_steps(
    run: Run,
    order: TrainingOrder,
    replica: Replica,
    store: CheckpointStore,
    source: Source,
    random: RunRandom,
    n_rows: int,
) -> None:
    """Take the steps of a training whose model is ready; `n_rows` are those of a batch."""
    spec, config = run.spec, run.config
    batches = encoded_batches(source, spec, random.device)
    hooks = [
        *stop_hooks(order.steps, order.max_steps),
        *training_hooks(
            spec, config, order.hooks, order.listeners, is_chief=replica.is_chief
        ),
    ]
    n_steps = order.steps_ahead(source, run.start_step)
    useful = threads_for(dense_size(run.network), n_rows, passes=3)
    with (
        contextlib.closing(source),
        contextlib.closing(run),
        IntraOpThreads.limited_to(useful, wanted=config.num_threads),
        random.attach(run.network, spec.loss, *spec.optimizers),
        explained_out_of_memory(n_rows, random.device, run.network),
        recorded(run, store),
    ):
        replica.begin(run)
        train_loop(
            run,
            replica.batches(run, batches),
            hooks,
            replica.make_step(
                run,
                functools.partial(
                    make_step,
                    config.execution,
                    spec,
                    hooks,
                    n_steps,
                    has_table=source.table is not None,
                ),
            ),
            replica.steps_taken if replica.counts_steps else None,
            replica.finish,
            replica.make_watched_step(run),
        )
        replica.leave(run)


def _capture(random: RunRandom, source: Source, run: Run) -> Checkpoint:
    is_over = run.should_stop and run.stop_reason != INTERRUPTED
    n_taken = run.global_step - run.start_step
    return Checkpoint.capture(
        run.network,
        run.global_step,
        run.spec.optimizers,
        run.spec.lr_schedulers,
        random,
        None if is_over else source.position(n_taken),
    )
