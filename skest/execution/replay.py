# SPDX-License-Identifier: Apache-2.0
"""A training step that was recorded, and its comparison with an eager one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

from torch import Tensor

from skest.execution.attempt import recorded_gradients
from skest.execution.batch import has_same_tensors
from skest.execution.changes import Changes
from skest.execution.impurity import are_same
from skest.execution.others import OtherGradients
from skest.execution.program import Program, StepProgram
from skest.execution.recording import (
    NotRecordableError,
    Recorder,
    Recording,
    Value,
)
from skest.execution.rewriting import quicker_on_cpu, with_tensors_for_numbers
from skest.execution.simplification import Storages, rewritten, simplified
from skest.execution.watching import options_of_updates, slots_of_updates
from skest.row_sparse import RowSparse
from skest.spec import EstimatorSpec
from skest.training import Halves, apply_gradients, trained_parameters

__all__ = ["Replay", "recorded_step"]


def recorded_step(
    spec: EstimatorSpec,
    features: Any,
    labels: Any,
    tensors: Sequence[Tensor],
    program: type[StepProgram],
    with_update: bool,
    gives_copies: bool,
    halves: Halves,
) -> tuple[Tensor, "Replay | NotRecordableError"]:
    """Take a training step, and record it for batches of the same kind.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN that has taken a step before: the state of its optimizers
        is there.
    features, labels
        The batch.
    tensors : sequence of Tensor
        All tensors in it.
    program : type
        What carries out the recorded step, `skest.execution.program.Program`.
    with_update : bool
        Whether to replay the update as well, if it can be recorded. It must be
        `skest.training.apply_gradients` then.
    gives_copies : bool
        See `Replay`.
    halves : Halves
        The eager step.

    Returns
    -------
    loss : Tensor of shape ()
        What `skest.training.train_step` returns.
    replay : Replay or NotRecordableError
        The recorded step, or why there is none.
    """
    recorder = Recorder(tensors)
    recording = recorder.recording
    loss, obstacle = recorded_gradients(
        spec, features, labels, recorder, halves.compute
    )
    others = OtherGradients(recording, recorder.values, trained_parameters(spec))
    changes_batch = not has_same_tensors((features, labels), tensors)
    recording.obstacle = (
        obstacle
        or ("the model changes what a batch consists of" if changes_batch else None)
        or others.obstacle
    )
    obstacle, n_calls = recording.obstacle, len(recording.calls)
    gradients = {
        parameter: recorder.value_of(parameter.grad)
        for parameter in trained_parameters(spec)
        if parameter.grad is not None
    }
    if obstacle is None and with_update:
        _record_update(spec, recorder)
    else:
        halves.update(spec)
    if obstacle is not None:
        return loss, NotRecordableError(obstacle)
    if recording.obstacle is not None:
        with_update = False
    if not with_update:
        del recording.calls[n_calls:]
    loss_value = recorder.value_of(loss)
    try:
        replay = Replay(
            spec,
            recording,
            loss_value,
            gradients,
            others,
            program,
            with_update,
            gives_copies,
            halves,
        )
    except Exception as error:  # the step itself is taken
        reason = f"{type(error).__name__} when a recorded step was built"
        return loss, NotRecordableError(reason)
    return loss, replay


def _record_update(spec: EstimatorSpec, recorder: Recorder) -> None:
    tables = [o for o in spec.optimizers if isinstance(o, RowSparse)]
    before = _state_of_updates(spec)
    for optimizer in tables:
        optimizer.is_recorded = True
    try:
        with recorder:
            apply_gradients(spec)
    finally:
        for optimizer in tables:
            optimizer.is_recorded = False
    if not are_same(before, _state_of_updates(spec)):
        recorder.recording.obstacle = "an optimizer keeps its state in Python"


def _state_of_updates(spec: EstimatorSpec) -> list[Any]:
    """Return all that the optimizers remember."""
    slots = slots_of_updates(spec).values()
    return [*options_of_updates(spec), *chain.from_iterable(slots)]


class Replay:
    """A recorded step, which can be taken with other batches of the same kind.

    Parameters
    ----------
    spec : EstimatorSpec
        The model; its variables and the state of its optimizers are worked on in place.
    recording : Recording
        The recorded step.
    loss : Value
        The loss.
    gradients : dict of Parameter to Value
        The gradients as the optimizers get them.
    others : OtherGradients
        Those that no optimizer gets.
    program : type
        What carries out the recorded step.
    has_update : bool
        Whether the update is recorded.
    gives_copies : bool
        Whether every step has gradients of its own, as eager steps have, for those who
        look at them later. They are in the same tensors after every step otherwise.
    halves : Halves
        The eager step, whose update is called if none is recorded.

    Attributes
    ----------
    changes : Changes
        What the recorded part of the step changes, and all buffers of the network.
    others : OtherGradients
        As given.
    has_update : bool
        As given.
    halves : Halves
        As given.
    """

    def __init__(
        self,
        spec: EstimatorSpec,
        recording: Recording,
        loss: Value,
        gradients: dict[Tensor, Value],
        others: OtherGradients,
        program: type[StepProgram],
        has_update: bool,
        gives_copies: bool,
        halves: Halves,
    ) -> None:
        calls = quicker_on_cpu(rewritten(recording.calls))
        storages = Storages(calls)
        if not has_update:  # which may scale gradients in place
            for gradient in gradients.values():
                storages.mark_written(gradient)
        shown = {
            parameter: gradient
            for parameter, gradient in gradients.items()
            if not (has_update and gradient.tensor.is_sparse)
        }
        calls, (loss, *values) = simplified(calls, [loss, *shown.values()], storages)
        calls = with_tensors_for_numbers(calls)
        self._program = program(recording.inputs, calls, [loss], values, storages)
        self._spec = spec
        self.halves = halves
        self.others = others
        self.has_update = has_update
        self._gives_copies = gives_copies
        # As an eager step, it leaves no gradient of the step before anywhere.
        hidden = trained_parameters(spec).keys() - shown.keys()
        self._static: list[tuple[Tensor, Tensor | None]] = [(p, None) for p in hidden]
        self._fresh: list[tuple[Tensor, int]] = []
        self._lent: list[tuple[Tensor, Tensor]] = []
        for parameter, place, value in zip(
            shown, self._program.places, values, strict=True
        ):
            if isinstance(place, int):
                self._fresh.append((parameter, place))
            elif value.kind == "constant" and not storages.is_written(value):
                self._lent.append((parameter, place))
            else:
                self._static.append((parameter, place))
        # The tensors of the batch, each until it was compared with another one. They are
        # kept, for a new tensor might get the id of one that is gone.
        self._recorded_with = {i: v.tensor for i, v in enumerate(recording.inputs)}
        buffers = [] if spec.network is None else spec.network.buffers()
        self.changes = Changes(recording.inputs, calls, storages, buffers)

    @property
    def source(self) -> str:
        """The code of the step, for reading."""
        return self._program.source

    def __call__(self, tensors: Sequence[Tensor]) -> Tensor:
        """Take the step with a batch and return the loss.

        Gradients of dense parameters are in ``grad`` then; those of row tables only if
        the update is not recorded.
        """
        loss = self.compute(tensors)
        if not self.has_update:
            self.halves.update(self._spec)
        return loss

    def note_comparison(self, tensors: Sequence[Tensor]) -> None:
        """Note that a step with this batch was as an eager one."""
        for i, tensor in enumerate(tensors):
            if self._recorded_with.get(i) is not tensor:
                self._recorded_with.pop(i, None)

    @property
    def is_for_all_batches(self) -> bool:
        """Whether it was compared with other tensors for each of those in a batch."""
        return not self._recorded_with

    def was_compared_with(self, tensors: Sequence[Tensor]) -> bool:
        """Tell whether it was compared with a batch like this one.

        If one and the same tensor is in every batch, the model may read it in other ways,
        too, and nothing tells the one from the other before there is another tensor.
        """
        recorded = self._recorded_with.items()
        return self.is_for_all_batches or all(
            [tensors[i] is before for i, before in recorded]
        )

    def gradients(self) -> list[Tensor]:
        """Return the present gradients of the parameters whose gradients it sets."""
        shown = [p for p, gradient in self._static if gradient is not None]
        shown += [parameter for parameter, _ in (*self._lent, *self._fresh)]
        return [p.grad for p in shown if p.grad is not None]

    def compute(self, tensors: Sequence[Tensor]) -> Tensor:
        """Take the recorded part of the step and return the loss."""
        returned = self._program(*tensors)
        self._set_gradients(returned)
        return returned[0]

    @property
    def has_whole_steps(self) -> bool:
        """Whether `together` can be used: nothing is done between two programs."""
        return self.has_update and isinstance(self._program, Program)

    @contextmanager
    def together(self) -> Iterator[Callable[..., Tensor]]:
        """Return what takes whole steps, with the tensors of a batch, one after the other.

        Gradients are those of the last one when the context is left.
        """
        if not isinstance(self._program, Program):
            raise TypeError(f"{type(self._program).__name__} takes single steps only.")
        returned: tuple[Tensor, ...] = ()
        with self._program.together() as program:

            def step(*tensors: Tensor) -> Tensor:
                nonlocal returned
                returned = program(*tensors)
                return returned[0]

            yield step
        if returned:
            self._set_gradients(returned)

    def _set_gradients(self, returned: tuple[Tensor, ...]) -> None:
        for parameter, gradient in self._static:
            if gradient is not None and self._gives_copies:
                gradient = gradient.clone()
            if parameter.grad is not gradient:  # to look takes half as long as to set
                parameter.grad = gradient
        for parameter, gradient in self._lent:  # computed once; hooks may change it
            parameter.grad = gradient.clone()
        for parameter, position in self._fresh:
            parameter.grad = returned[position]
