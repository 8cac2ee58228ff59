# SPDX-License-Identifier: Apache-2.0
"""One training: from the checkpoint that it goes on from to its last step."""

import contextlib
import dataclasses
import functools
import logging
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import CheckpointStore
from skest.config.run_config import RunConfig
from skest.core.console import INTERRUPTED, stopping_on_interrupt
from skest.core.random import RunRandom
from skest.core.resources import (
    IntraOpThreads,
    dense_size,
    explained_out_of_memory,
    threads_for,
)
from skest.engine.loop import Replica, train_loop, trained_parameters
from skest.engine.model import ModelBuilder, encoded_batches, restore
from skest.engine.recorded.choice import make_step
from skest.exceptions import ModelDirInUseError, NanLossDuringTrainingError
from skest.hooks.base import Hook, Run
from skest.hooks.early_stopping import EarlyStoppingHook
from skest.hooks.logging import LoggingHook
from skest.hooks.nan import NanLossHook
from skest.hooks.steps import CheckpointListener, CheckpointSaverHook, StopAtStepHook
from skest.hooks.summaries import MISSING_TENSORBOARD, tensorboard_is_installed
from skest.hooks.summary_saver import SummarySaverHook
from skest.inputs.array_dataset import count_rows
from skest.inputs.batches import Source
from skest.keys import ModeKeys
from skest.spec import EstimatorSpec

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
            # An upper bound: a resumed input goes on in the middle of its table.
            known.append(source.table.steps_per_epoch * source.table.num_epochs)
        return min(known, default=None)


@torch.inference_mode(False)  # a caller may have switched gradients off, in any way
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
    config = builder.config
    # Before the input is opened, which may go on behind the batch of the checkpoint.
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
    random = RunRandom(replica.seed(config.random_seed, start), builder.device)
    # Parameter servers hold tables that are too large to be built in every process.
    with replica.building():
        spec = builder.build(*first, ModeKeys.TRAIN, random)
    # As in tf.estimator: who goes on from a checkpoint has started before.
    if checkpoint is None and replica.is_chief:
        order.warm_start(spec, random)
    # After a warm start there is no checkpoint, and this does nothing.
    restore(spec, checkpoint, random)
    del checkpoint  # it may be larger than the model
    capture = functools.partial(_capture, random, source)
    run = Run(
        spec,
        config,
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
    batches = encoded_batches(source, spec, random.device)
    hooks = training_hooks(
        spec, config, order.hooks, order.listeners, is_chief=replica.is_chief
    )
    if order.steps is not None or order.max_steps is not None:
        # First, so that what saves the last step knows that it is the last.
        hooks.insert(0, StopAtStepHook(order.steps, order.max_steps))
    make = functools.partial(
        make_step,
        config.execution,
        spec,
        hooks,
        order.steps_ahead(source, start),
        has_table=source.table is not None,
    )
    # A backward pass computes about twice as much as a forward pass.
    useful = threads_for(dense_size(run.network), n_rows, passes=3)
    with (
        # Entered first, left last: hooks and the save after an error still read the
        # input.
        contextlib.closing(source),
        contextlib.closing(run),
        IntraOpThreads.limited_to(useful, wanted=config.num_threads),
        random.attach(run.network, spec.loss, *spec.optimizers),
        explained_out_of_memory(n_rows, random.device, run.network),
        recorded(run, store),
    ):
        replica.begin(run)
        batches = replica.batches(run, batches)
        train_loop(run, batches, hooks, replica.make_step(run, make), replica)
        replica.leave(run)
    _logger.info("Training stopped at step %d: %s.", run.global_step, run.stop_reason)
    return run


def _capture(random: RunRandom, source: Source, run: Run) -> Checkpoint:
    is_over = run.should_stop and run.stop_reason != INTERRUPTED
    n_taken = run.global_step - run.start_step
    return Checkpoint.capture(
        run.network,
        run.global_step,
        run.spec.optimizers,
        run.spec.lr_schedulers,
        random,
        # A training that is over begins its input anew, as train called twice does in
        # tf.estimator; an interrupted one goes on.
        None if is_over else source.position(n_taken),
    )


# What writes into `model_dir`, or decides by what is written there, is for one process:
# as in tf.estimator, where only the chief has these.
_OF_CHIEF = (CheckpointSaverHook, EarlyStoppingHook, SummarySaverHook)


def training_hooks(
    spec: EstimatorSpec,
    config: RunConfig,
    hooks: list[Hook],
    listeners: list[CheckpointListener],
    *,
    is_chief: bool = True,
) -> list[Hook]:
    """Return the caller's hooks, those of the model and those of the configuration.

    Processes beside the chief of a cluster neither save nor write summaries.

    What saves comes last, so that nothing is saved that another hook refuses, but for
    early stopping, which reads the evaluation of what was saved. Summaries show what
    other hooks make of the learning rates and gradients of a step.
    """
    others = [*hooks, *spec.training_hooks]
    if is_chief:
        others += spec.training_chief_hooks
    if not any(isinstance(hook, NanLossHook) for hook in others):
        others.append(NanLossHook())
    if config.log_step_count_steps is not None:
        others.append(LoggingHook(every_steps=config.log_step_count_steps))
    if not is_chief:
        return [h for h in others if not isinstance(h, _OF_CHIEF)]
    if config.save_summary_steps and config.model_dir is not None:
        # Nobody has asked for them: without the extra, there are none.
        if tensorboard_is_installed():
            others.append(SummarySaverHook(save_steps=config.save_summary_steps))
        else:
            _logger.info("No summaries are written: %s", MISSING_TENSORBOARD)
    savers = [hook for hook in others if isinstance(hook, CheckpointSaverHook)]
    if not savers:
        # Without steps and seconds, a saver saves when the training ends.
        steps, secs = config.save_checkpoints_steps, config.save_checkpoints_secs
        if config.model_dir is None:
            steps = secs = None  # a copy in memory serves only the end of the call
        # As tf.estimator: a saver of the user's replaces the one of the configuration.
        savers = [CheckpointSaverHook(steps or None, secs or None)]
    summaries = [hook for hook in others if isinstance(hook, SummarySaverHook)]
    late = [hook for hook in others if isinstance(hook, EarlyStoppingHook)]
    free = [hook for hook in others if not isinstance(hook, _OF_CHIEF)]
    # As tf.estimator: of several savers, the first one tells the listeners.
    return [*free, *summaries, savers[0].with_listeners(listeners), *savers[1:], *late]


_NAMES_SHOWN = 5


def make_save(
    store: CheckpointStore, spec: EstimatorSpec, check_lock: Callable[[], None]
) -> Callable[[Checkpoint], None]:
    """Return what saves the checkpoints of a training, unless they are of no use.

    Parameters
    ----------
    store : CheckpointStore
        Where they are kept.
    spec : EstimatorSpec
        The model in training.
    check_lock : callable
        Raises an error if another training may have been let in.

    Returns
    -------
    callable
        ``save(checkpoint)``. It raises NanLossDuringTrainingError if a variable that is
        trained is NaN: training from there would never come to anything.
    """
    trained = set(map(id, trained_parameters(spec)))
    # A network may save its parameters under names of its own.
    saved = spec.network.state_dict(keep_vars=True)
    names = [name for name, value in saved.items() if id(value) in trained]
    del saved  # or the network would live as long as this

    def save(checkpoint: Checkpoint) -> None:
        check_lock()
        # A sum is NaN if a value is, or for values of infinity: it is asked first
        # because it needs no memory.
        # What is in parameter servers is looked at while it is fetched.
        found = [(name, checkpoint.variables.get(name)) for name in names]
        values = [(name, v) for name, v in found if isinstance(v, Tensor)]
        bad = [n for n, v in values if v.sum().isnan() and v.isnan().any()]
        if bad:
            raise NanLossDuringTrainingError(
                _describe(bad, checkpoint.global_step, store.latest_step())
            )
        store.save(checkpoint)

    return save


def _describe(names: list[str], step: int, before: int | None) -> str:
    """Say what is NaN, what is left, and what may help."""
    shown = ", ".join(map(repr, names[:_NAMES_SHOWN]))
    if len(names) > _NAMES_SHOWN:
        shown += f" and {len(names) - _NAMES_SHOWN} more"
    found = f"The variables {shown} are NaN at step {step}"
    return (
        f"{found}, though its loss is a number: a gradient was not. They are not saved; "
        f"{_left(before)}. Look for a function whose gradient is NaN where its value is "
        "not, such as a square root or a norm at 0, lower the learning rate, or clip the "
        "gradients."
    )


@contextlib.contextmanager
def recorded(run: Run, store: CheckpointStore) -> Iterator[None]:
    """Save what a training has reached if it is interrupted; note why it ended.

    Parameters
    ----------
    run : Run
        The training. The first Ctrl-C asks it to stop, unless it has taken its last step.
    store : CheckpointStore
        Where its checkpoints are kept.
    """

    def ask_to_stop(reason: str) -> None:
        if run.should_stop:  # it may wait for other processes, and long
            raise KeyboardInterrupt
        run.request_stop(reason)

    store.note_start()
    try:
        with stopping_on_interrupt(ask_to_stop):
            yield
    # Before BaseException, which would save.
    except ModelDirInUseError:
        raise  # what is in the directory now is of another training
    except BaseException as error:
        # Later ones have the shapes of the first.
        if run.in_step and run.n_taken == 0 and run.batch is not None:
            short = reprlib.Repr()
            short.maxdict, short.maxstring = 20, 80
            x, y = (short.repr(_shapes(data)) for data in run.batch)
            error.add_note(f"The first step was given the features {x}, labels {y}.")
        if _is_worth_saving(run, store, error):
            _try_to_save(run)
        is_error = not isinstance(error, KeyboardInterrupt)
        reason = f"{type(error).__name__}: {error}" if is_error else INTERRUPTED
        _note_stop(store, reason, is_error=is_error)
        raise
    _note_stop(store, str(run.stop_reason))


def _shapes(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: _shapes(value) for key, value in data.items()}
    if isinstance(data, Tensor) and not data.is_nested:
        return f"{tuple(data.shape)} {data.dtype}"
    return type(data).__name__


def _is_worth_saving(run: Run, store: CheckpointStore, error: BaseException) -> bool:
    """Tell whether there is something new, and of a whole step."""
    # What it went on from is still on disk.
    if run.loss is None or run.global_step == run.start_step:
        return False
    # The update of such a step is in the variables.
    if isinstance(error, NanLossDuringTrainingError) or run.loss_is_nan:
        return False
    if run.in_step:
        # Of files that nobody asked for, a search that is stopped would speak each time.
        is_silent = run.model_dir is None and isinstance(error, KeyboardInterrupt)
        _logger.log(
            logging.DEBUG if is_silent else logging.WARNING,
            "Training ended inside a step behind step %d, of which some variables may be "
            "updated and some not: nothing is saved; %s.",
            run.global_step,
            _left(store.latest_step()),
        )
        return False
    return True


def _left(step: int | None) -> str:
    """Say which checkpoint is left."""
    if step is None:
        return "there is no checkpoint"
    return f"the checkpoint of step {step} is still the latest"


def _try_to_save(run: Run) -> None:
    """Save without hiding the error that the training ended with."""
    if run.model_dir is not None:
        _logger.warning("Interrupted at step %d; saving.", run.global_step)
    try:
        run.save_checkpoint()
    except Exception:
        _logger.exception("The checkpoint of step %d is lost.", run.global_step)


def _note_stop(store: CheckpointStore, reason: str, *, is_error: bool = False) -> None:
    """Note why training ended; if that can't be written, the training counts."""
    try:
        # Other processes of a cluster read it, see `EndOfTraining`.
        store.note_stop(reason, is_error=is_error)
    except OSError as error:
        _logger.warning("Why training ended is not recorded: %s", error)
