# SPDX-License-Identifier: Apache-2.0
"""What is kept of a training: whole steps, whose variables are numbers."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from skest._interrupts import INTERRUPTED, stopping_on_interrupt
from skest.checkpoint_format import ShardedCheckpoint
from skest.checkpoint_store import CheckpointStore
from skest.checkpoints import Checkpoint
from skest.exceptions import ModelDirInUseError, NanLossDuringTrainingError
from skest.hooks.base import Run
from skest.spec import EstimatorSpec
from skest.training import trained_parameters

__all__ = ["make_save", "recorded"]

_logger = logging.getLogger("skest")

_NAMES_SHOWN = 5


def make_save(
    store: CheckpointStore, spec: EstimatorSpec, check_lock: Callable[[], None]
) -> Callable[[Checkpoint | ShardedCheckpoint], None]:
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
    saved = {} if spec.network is None else spec.network.state_dict(keep_vars=True)
    names = [name for name, value in saved.items() if id(value) in trained]
    del saved  # or the network would live as long as this

    def save(checkpoint: Checkpoint | ShardedCheckpoint) -> None:
        check_lock()
        # A sum is NaN if a value is, or for values of infinity: it is asked first
        # because it needs no memory.
        # Of a `ShardedCheckpoint` the others are looked at where they are.
        variables = checkpoint.variables
        values = [(name, variables[name]) for name in names if name in variables]
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


@contextmanager
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
    except ModelDirInUseError:
        raise  # what is in the directory now is of another training
    except BaseException as error:
        if _is_worth_saving(run, store, error):
            _try_to_save(run)
        is_error = not isinstance(error, KeyboardInterrupt)
        _note_stop(store, _reason_of(error), is_error=is_error)
        raise
    _note_stop(store, str(run.stop_reason))


def _is_worth_saving(run: Run, store: CheckpointStore, error: BaseException) -> bool:
    """Tell whether there is something new, and of a whole step."""
    if run.loss is None or run.global_step == run.start_step:
        return False
    if isinstance(error, NanLossDuringTrainingError) or run.loss_is_nan:
        return False
    if run.in_step:
        _logger.warning(
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
        store.note_stop(reason, is_error=is_error)
    except OSError as error:
        _logger.warning("Why training ended is not recorded: %s", error)


def _reason_of(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    return f"{type(error).__name__}: {error}"
