# SPDX-License-Identifier: Apache-2.0
"""The step loop of training, with hooks around it, and the part of one process in it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import CheckpointStore, DirectoryStore
from skest.hooks.base import Hook, Run
from skest.inputs.input_context import InputContext
from skest.optimizers.row_sparse import take_step
from skest.spec import EstimatorSpec


@torch.no_grad()
def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale gradients together so that their norm is at most `max_norm`.

    The norm is the L2 norm of all gradients as one vector. Dense gradients become what
    ``torch.nn.utils.clip_grad_norm_`` makes of them (in TensorFlow
    ``tf.clip_by_global_norm``, without the 1e-6 added to the norm here). It takes
    row-sparse gradients, too: rows that occur several times count by their sum.

    Parameters
    ----------
    parameters : iterable of Tensor
        Those without a gradient are passed over. Sparse gradients are replaced by
        coalesced ones, the others changed in place.
    max_norm : float
        Largest norm, > 0.

    Returns
    -------
    Tensor of shape ()
        The norm before, on the device: nothing here waits for it. If it is NaN, all
        gradients become NaN.

    References
    ----------
    Pascanu et al., "On the difficulty of training recurrent neural networks", ICML 2013.

    Examples
    --------
    >>> import torch
    >>> from skest.engine.loop import clip_gradients
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> clip_gradients([weight], 1.0)
    tensor(5.)
    >>> weight.grad
    tensor([0.6000, 0.8000])
    """
    values = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad.values())
        else:
            values.append(parameter.grad)
    norm = get_total_norm(values)
    # Torch's 1e-6 keeps a norm of 0 from dividing by it; no branch waits for the
    # device.
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for value in values:
        # A network may lie on several devices; the norm is on the first one.
        value.mul_(scale.to(value.device))
    return norm


def reset_gradients(optimizer: Optimizer) -> None:
    """Do what ``optimizer.zero_grad()`` does, without its marks for a profiler.

    They take longer than all else in it. An optimizer with a method of its own has its
    way.

    Examples
    --------
    >>> import torch
    >>> from skest.engine.loop import reset_gradients
    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> weight.sum().backward()
    >>> reset_gradients(torch.optim.SGD([weight]))
    >>> weight.grad is None
    True
    """
    if type(optimizer).zero_grad is not Optimizer.zero_grad:
        optimizer.zero_grad()
        return
    # None rather than zeros, as torch's own default: an absent gradient is no update.
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


#: Why a training stopped that nobody stopped.
INPUT_ENDED = "the input ended"

#: ``step(features, labels, after_backward=None)``, as `train_step` has them; recorded
#: steps take the first two only.
Step: TypeAlias = Callable[..., Tensor]


def train_loop(
    run: Run,
    batches: Iterator[tuple[Any, Any]],
    hooks: Sequence[Hook],
    step: Step,
    replica: "Replica",
) -> None:
    """Take training steps until the input ends or a hook asks to stop.

    Parameters
    ----------
    run : Run
        The run to advance.
    batches : iterator of (features, labels)
        Encoded batches on the device of the network.
    hooks : sequence of Hook
        Called in this order.
    step : callable
        ``step(features, labels) -> loss`` does what `train_step` does, or in another way;
        see `skest.engine.recorded`.
    replica : Replica
        The part of this process. It takes the steps of which a hook wants the gradients,
        counts all of them, and waits for others after the last one.
    """
    run.network.train()
    watched_step = replica.make_step(run, partial(eager_step, run.spec))
    watching = [hook for hook in hooks if hook.watches_gradients]
    for hook in hooks:
        hook.begin(run)
    # Looked up once: this loop is what a step costs beside its operations.
    before = [h.before_step for h in hooks if _overrides(h, "before_step")]
    after = [h.after_step for h in hooks if _overrides(h, "after_step")]
    while not run.should_stop:
        batch = next(batches, None)
        if batch is None:
            run.request_stop(INPUT_ENDED)
            break
        run.batch = batch
        for before_step in before:
            before_step(run)
        wanting = watching and [hook for hook in watching if hook.wants_gradients(run)]
        # From here to the counting of the step, an error may leave half of an update:
        # nothing is saved then, see `_is_worth_saving`.
        run.in_step = True
        if wanting:
            show = partial(_show_gradients, run, wanting)
            run.loss = watched_step(*run.batch, show)
        else:
            run.loss = step(*run.batch)
        # As in TensorFlow, a step counts when its update is done.
        # Of this process; the global step counts those of all workers.
        run.n_taken += 1
        move_to_step(run, replica.steps_taken(run))
        run.in_step = False
        for after_step in after:
            after_step(run, run.loss)
    # Not after an error, as `SessionRunHook.end` of tf.estimator.
    replica.finish(run)
    for hook in hooks:
        hook.end(run)


def _overrides(hook: Hook, name: str) -> bool:
    """Tell whether a hook has a method of its own.

    Between the operations of a step even a call that does nothing takes half a
    microsecond.
    """
    method = getattr(hook, name)
    return getattr(method, "__func__", None) is not getattr(Hook, name)


def move_to_step(run: Run, step: int) -> None:
    """Set the global step, and learning rates to what they are at it."""
    before, run.global_step = run.global_step, step
    for scheduler in run.spec.lr_schedulers:
        # Where others took the steps, torch would warn that there were none.
        vars(getattr(scheduler, "optimizer", scheduler))["_opt_called"] = True
        # Beside other workers several steps may have passed since the last one here.
        for _ in range(before, step):
            # One by one: a scheduler of torch goes on from the rate before.
            scheduler.step()


def _show_gradients(run: Run, wanting: Sequence[Hook]) -> None:
    for hook in wanting:
        hook.after_backward(run)


def train_step(
    spec: EstimatorSpec,
    features: Any,
    labels: Any,
    after_backward: Callable[[], None] | None = None,
    compute: Callable[[EstimatorSpec, Any, Any], Tensor] | None = None,
    update: "Update | None" = None,
) -> Tensor:
    """Update the variables with one batch.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN.
    features, labels : tensors or dictionaries of tensors
        One encoded batch.
    after_backward : callable, default=None
        Called when the gradients are computed, before they are clipped.
    compute : callable, default=None
        Does what `compute_gradients` does, in another way.
    update : callable, default=None
        ``update(spec)`` does what `apply_gradients` does, in another way.

    Returns
    -------
    Tensor of shape ()
        The detached loss, read before the update.

    Raises
    ------
    ValueError
        If the loss is not a scalar.
    TypeError
        If it is not a tensor.
    """
    loss = (compute or compute_gradients)(spec, features, labels)
    if after_backward is not None:
        after_backward()
    (update or apply_gradients)(spec)
    return loss


def compute_gradients(spec: EstimatorSpec, features: Any, labels: Any) -> Tensor:
    """Take the first half of `train_step`: set the gradients, return the loss."""
    for optimizer in spec.optimizers:
        reset_gradients(optimizer)
    # The features, too: heads find the weights of examples there.
    loss_of: Any = spec.loss  # which every mode but PREDICT has
    loss = scalar_loss(loss_of(labels, spec.network(features), features))
    loss.backward()
    return loss.detach()


def apply_gradients(spec: EstimatorSpec) -> None:
    """Take the second half of `train_step`: clip the gradients, update the variables."""
    clip_trained(spec)
    for optimizer in spec.optimizers:
        take_step(optimizer)


def clip_trained(spec: EstimatorSpec) -> None:
    """Clip the gradients of all that is trained, if the model says so."""
    if spec.clip_norm is not None:
        clip_gradients(trained_parameters(spec), spec.clip_norm)


#: ``update(spec)`` does what `apply_gradients` does, or leaves it to others.
Update: TypeAlias = Callable[[EstimatorSpec], None]


def eager_step(spec: EstimatorSpec, update: Update = apply_gradients) -> Step:
    """Return what takes steps by the code of the model."""
    return partial(train_step, spec, update=update)


def trained_parameters(spec: EstimatorSpec) -> dict[Tensor, None]:
    """Return every parameter that an optimizer holds, once.

    Others of the network may have gradients as well, but nobody resets those.
    """
    groups = [g for optimizer in spec.optimizers for g in optimizer.param_groups]
    # In their order: sums over a set of tensors differ from process to process.
    return dict.fromkeys(parameter for group in groups for parameter in group["params"])


def scalar_loss(loss: Tensor) -> Tensor:
    """Return a loss of shape () or (1,) as one of shape ()."""
    if not isinstance(loss, Tensor):
        raise TypeError(
            "'loss' of an EstimatorSpec must return a tensor; "
            f"got {type(loss).__name__}."
        )
    if loss.ndim == 0:  # another view of it would be a node of the backward pass
        return loss
    # As tf.estimator, which takes a loss of shape (1,).
    if loss.numel() != 1:
        raise ValueError(
            "'loss' of an EstimatorSpec must return one number; got a tensor of shape "
            f"{tuple(loss.shape)}. Reduce it, for example with .mean()."
        )
    return loss.reshape(())


class Replica:
    """The part of one process in a training; this one trains alone.

    It is the seam for `skest.distributed`: the loop in `skest.engine.loop` and the code of
    models do not know which replica is at work. Its methods are called in the order in
    which they stand here, `steps_taken` after every step. It is a context manager that
    calls `close`.

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

        Called twice: for the steps of which hooks want the gradients, `make` is
        `eager_step`. ``make(update=...)`` does another thing with gradients.
        """
        return make()

    def batches(
        self, run: Run, batches: Iterator[tuple[Any, Any]]
    ) -> Iterator[tuple[Any, Any]]:
        """Return the batches to train on, of those of this process."""
        return batches

    def steps_taken(self, run: Run) -> int:
        """Return the global step, after this process has taken one more step."""
        return run.global_step + 1

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

    # A training that ends as the one before did is told from it by the version.
    def _found(self) -> tuple[object, str | None]:
        return self._store.version(), self._store.end_reason()
