# SPDX-License-Identifier: Apache-2.0
"""`Stack`: models whose steps are the same operations, trained along one more axis."""

import io
import logging
import pickle
from collections.abc import Hashable, Mapping, Sequence
from itertools import chain
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skest.engine.loop import (
    apply_gradients,
    compute_gradients,
    train_step,
    trained_parameters,
)
from skest.engine.recorded.batched import Batched, aligned_empty
from skest.engine.recorded.program import Program
from skest.engine.recorded.recording import (
    NotRecordableError,
    Recorder,
    Value,
    batch_tensors,
    storage_of,
)
from skest.engine.recorded.simplify import (
    Storages,
    quicker_on_cpu,
    rewritten,
    simplified,
    with_tensors_for_numbers,
)
from skest.engine.recorded.step import join_counters, record_update, undo_of
from skest.optimizers.schedules import rate_at
from skest.spec import EstimatorSpec

_logger = logging.getLogger("skest")


class Batch(NamedTuple):
    """A batch taken apart, see `skest.engine.recorded.recording.batch_tensors`."""

    features: Any
    labels: Any
    tensors: list[Tensor]
    kind: Hashable

    @classmethod
    def of(cls, features: Any, labels: Any) -> "Batch":
        """Take a batch apart; TypeError if there is something else than tensors in it."""
        return cls(features, labels, *batch_tensors((features, labels)))


class Member:
    """A model that may be trained with others.

    Parameters
    ----------
    spec : EstimatorSpec
        Of mode TRAIN; its optimizers have taken a step. It is made of known code, see
        `skest.engine.recorded.choice`.

    Attributes
    ----------
    description : bytes
        What it is made of, but for the numbers in its tensors.
    tensors : list of Tensor
        Those of the network and of the loss.
    generators : list of torch.Generator
        What they draw from.
    stack : Stack or None
        What it is trained in.

    Raises
    ------
    NotRecordableError
        If what the model is made of cannot be told.
    """

    def __init__(self, spec: EstimatorSpec) -> None:
        self.spec = spec
        self.stack: Stack | None = None
        described = _Described(spec)
        self.description, self.tensors = described.text, described.tensors
        self.generators = described.generators

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The parameter groups whose rates follow a schedule."""
        schedulers = self.spec.lr_schedulers
        return [group for s in schedulers for group in s.optimizer.param_groups]

    def rates(self, n_steps: int) -> list[list[float]]:
        """Return the rates of `groups` in each of the steps to come."""
        schedulers: list[Any] = list(self.spec.lr_schedulers)
        return [
            [
                rate_at(s.function, s.last_epoch + step)
                for s in schedulers
                for _ in s.optimizer.param_groups
            ]
            for step in range(n_steps)
        ]


class _Described(pickle.Pickler):
    """What a model is made of, as bytes, but for the numbers in its tensors."""

    def __init__(self, spec: EstimatorSpec) -> None:
        buffer = io.BytesIO()
        super().__init__(buffer)
        self.tensors: list[Tensor] = []
        self.generators: list[torch.Generator] = []
        self._ids: dict[int, int] = {}
        try:
            self.dump((spec.network, spec.loss))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise NotRecordableError(f"a part of it cannot be told: {error}") from error
        self.text = buffer.getvalue()

    def reducer_override(self, part: Any) -> Any:
        """Return what counts of a tensor; functions are what they are."""
        if isinstance(part, Tensor):
            self._note(part, self.tensors)
            kind = part.shape, part.stride(), str(part.dtype), part.requires_grad
            # Shape and type, not the numbers; and which tensors are one and the same.
            return str, (f"{self._ids[id(part)]} {kind}",)
        if isinstance(part, torch.Generator):
            self._note(part, self.generators)
            return str, (f"{self._ids[id(part)]}",)
        if isinstance(part, FunctionType | BuiltinFunctionType):
            # Lambdas can't be pickled; the same function is the same object in one
            # process.
            return str, (f"{id(part)}",)
        return NotImplemented

    def _note(self, part: Any, parts: list[Any]) -> None:
        if id(part) not in self._ids:
            self._ids[id(part)] = len(self._ids)
            parts.append(part)


class Computation:
    """Loss and gradients of a model for batches of one kind, as they were recorded.

    Parameters
    ----------
    member : Member
        The model; it is left as it was.
    batch : Batch
        One of the kind.

    Attributes
    ----------
    text : hashable
        The operations and their numbers. Where it is equal, models do the same with
        their `tensors` and `generators`, each in its place.
    calls : list of Call
        The operations.
    inputs : list of Value
        The tensors of the batch.
    loss : Value
        The loss.
    gradients : dict of int to Value
        By the positions of parameters among the tensors of a member.
    constants : dict of Value to int
        The positions of other tensors of it.
    generators : list of torch.Generator
        Those that it draws from.

    Raises
    ------
    NotRecordableError
        If it cannot be repeated.
    """

    def __init__(self, member: Member, batch: Batch) -> None:
        recorder, undo = Recorder(batch.tensors), undo_of(member.spec, is_alone=False)
        with recorder:
            loss = compute_gradients(member.spec, batch.features, batch.labels)
        # The step is computed to be seen: buffers and generators must not have moved.
        undo()
        if recorder.recording.obstacle is not None:
            raise NotRecordableError(recorder.recording.obstacle)
        self.calls, self.inputs = recorder.recording.calls, recorder.recording.inputs
        self.loss = recorder.value_of(loss)
        trained = trained_parameters(member.spec)
        self.gradients = {
            position: recorder.value_of(tensor.grad)
            for position, tensor in enumerate(member.tensors)
            if tensor in trained and tensor.grad is not None
        }
        for position in self.gradients:
            member.tensors[position].grad = None
        self.constants: dict[Value, int] = {}
        self._places = {_place(t): i for i, t in enumerate(member.tensors)}
        self.generators = member.generators
        self._names: dict[Value, Hashable] = {}
        for position, value in enumerate(self.inputs):
            self._names[value] = "input", position
        self.text = (
            self._text(
                [(c.function, c.args, c.kwargs, c.returned) for c in self.calls]
            ),
            self._text([self.loss, *self.gradients.values()]),
            *self.gradients,
        )

    def _text(self, data: Any) -> Hashable:
        if isinstance(data, Value):
            if data not in self._names:
                self._names[data] = self._name(data), len(self._names)
            return self._names[data]
        if isinstance(data, dict):
            return self._text([*data.items()])
        if isinstance(data, list | tuple):
            return tuple([self._text(item) for item in data])
        if isinstance(data, torch.Generator):
            return [g._cdata for g in self.generators].index(data._cdata)  # type: ignore[attr-defined]
        return data if callable(data) else (type(data), repr(data))

    def _name(self, value: Value) -> Hashable:
        tensor = value.tensor
        kind = value.kind, tensor.shape, tensor.dtype
        if value.kind != "constant":
            return kind
        if _place(tensor) in self._places:
            self.constants[value] = self._places[_place(tensor)]
            return "constant", self.constants[value]
        # Made of numbers of Python, which may be those of one model only.
        return kind, tensor.detach().numpy().tobytes()


def _place(tensor: Tensor) -> Hashable:
    if tensor.layout != torch.strided:
        return id(tensor)
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class Stack:
    """Models that take their steps together.

    Their tensors become parts of larger ones. Every one keeps the optimizers that it has,
    whose updates are recorded as they are: rates, decays and limits of gradients are each
    member's own.

    Parameters
    ----------
    members : sequence of Member
        Their computations have equal texts. One that is trained no more, or in another
        stack, leaves memory and time to be wasted, until the others leave as well.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self._stacked: list[Tensor] = []
        for tensors in zip(*[member.tensors for member in members], strict=True):
            stacked = aligned_empty(len(members), tensors[0])
            for tensor, place in zip(tensors, stacked, strict=True):
                place.copy_(tensor.detach())
            self._stacked.append(stacked)
        for member in members:
            # Tied weights would become two once their tensors are parts of different
            # stacks. Those of several members may lie in one, of an earlier stack.
            memory = [storage_of(tensor) for tensor in member.tensors]
            if None in memory or len({*memory}) < len(memory):
                raise NotRecordableError("its tensors are sparse, or share memory")
        for member in members:
            join_counters(member.spec.optimizers)
        for j, member in enumerate(members):
            for tensor, stacked in zip(member.tensors, self._stacked, strict=True):
                tensor.data = stacked[j]
            member.stack = self
        groups = [group for member in members for group in member.groups]
        # Only rates that are kept in tensors may change, which are of this type.
        self._rates = torch.zeros(len(groups), dtype=torch.float64)
        for group, place in zip(groups, self._rates, strict=True):
            group["lr"] = place.copy_(group["lr"])
        self._steps: dict[Hashable, _StackedStep] = {}

    def train(
        self,
        batches: Sequence[Sequence[Batch]],
        rates: Mapping[Member, list[list[float]]],
        computations: Mapping[Hashable, Computation],
    ) -> Tensor:
        """Take steps.

        Parameters
        ----------
        batches : sequence of sequence of Batch
            Of each member as many, of kinds that are equal from member to member.
        rates : dict of Member to list
            See `Member.rates`; those who have left have none.
        computations : dict of hashable to Computation
            That of a member for each kind.

        Returns
        -------
        Tensor of shape (n_members, n_steps)
            The losses, before each update.
        """
        for kind in {batch.kind for batch in batches[0]} - self._steps.keys():
            of_kind = computations[kind]
            self._steps[kind] = _StackedStep(self.members, self._stacked, of_kind)
        n_steps = len(batches[0])
        of_each = [
            rates.get(m) or [[0.0] * len(m.groups)] * n_steps for m in self.members
        ]
        by_step = [[*chain(*of_step)] for of_step in zip(*of_each, strict=True)]
        rates_by_step = torch.tensor(by_step, dtype=torch.float64)
        losses = []
        for now, of_all in zip(rates_by_step, zip(*batches, strict=True), strict=True):
            self._rates.copy_(now)
            losses.append(self._steps[of_all[0].kind](of_all))
        return torch.stack(losses, 1)


class _StackedStep:
    """The step of all members of a stack, with batches of one kind.

    Parameters
    ----------
    members : sequence of Member
        Of the stack.
    stacked : sequence of Tensor
        What their tensors are parts of.
    computation : Computation
        That of a member.
    """

    def __init__(
        self,
        members: Sequence[Member],
        stacked: Sequence[Tensor],
        computation: Computation,
    ) -> None:
        self._members = members
        self._computation = computation
        inputs = [value.tensor for value in computation.inputs]
        self._inputs = [aligned_empty(len(members), tensor) for tensor in inputs]
        self._known = dict(zip(computation.inputs, self._inputs, strict=True))
        for value, position in computation.constants.items():
            self._known[value] = stacked[position]
        self._program: Program | None = None
        self._is_one_by_one = False

    def __call__(self, batches: Sequence[Batch]) -> Tensor:
        """Take the step with a batch of each member; return the losses."""
        if self._is_one_by_one:
            return self._one_by_one(batches)
        of_all = zip(*[batch.tensors for batch in batches], strict=True)
        for place, tensors in zip(self._inputs, of_all, strict=True):
            torch.stack(tensors, out=place)
        if self._program is None:
            undo = [undo_of(member.spec, is_alone=False) for member in self._members]
            try:
                return self._recorded()
            except Exception as error:  # before any update
                for each in undo:
                    each()
                self._is_one_by_one = True
                _logger.info("Members are trained one after the other: %s.", error)
                return self._one_by_one(batches)
        returned = self._program()
        if self._program.places:
            self._update(returned, self._program.places)
        return returned[0]

    def _one_by_one(self, batches: Sequence[Batch]) -> Tensor:
        pairs = zip(self._members, batches, strict=True)
        return torch.stack([train_step(m.spec, b.features, b.labels) for m, b in pairs])

    @torch.no_grad()
    def _recorded(self) -> Tensor:
        """Take the step, and record it."""
        specs = [member.spec for member in self._members]
        computation = self._computation
        recorded_of = computation.generators
        generators = [member.generators for member in self._members]
        batched = Batched(len(specs), self._known, recorded_of, generators)
        recorder = Recorder(())
        with recorder:
            for call in computation.calls:
                batched.carry_out(call)
            losses = batched.stacked(computation.loss)
            gradients = [
                batched.of_member(value, j)
                for j in range(len(specs))
                for value in computation.gradients.values()
            ]
        recording, n_calls = recorder.recording, len(recorder.recording.calls)
        self._set_gradients(gradients)
        are_recorded = [record_update(spec, recorder) for spec in specs]
        kept: list[Value] = []
        if not all(are_recorded):
            del recording.calls[n_calls:]
            kept = [recorder.value_of(gradient) for gradient in gradients]
        self._set_gradients([None] * len(gradients))
        calls = quicker_on_cpu(rewritten(recording.calls))
        storages = Storages(calls)
        for value in kept:  # an update may scale them in place
            storages.mark_written(value)
        outputs = [recorder.value_of(losses), *kept]
        calls, (loss, *kept) = simplified(calls, outputs, storages)
        calls = with_tensors_for_numbers(calls)
        self._program = Program([], calls, [loss], kept, storages)
        return losses

    def _update(self, returned: tuple[Tensor, ...], places: Sequence[Any]) -> None:
        """Let every optimizer take its step, where that cannot be recorded."""
        self._set_gradients([returned[p] if isinstance(p, int) else p for p in places])
        for member in self._members:
            apply_gradients(member.spec)

    def _set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        left = iter(gradients)
        for member in self._members:
            for position in self._computation.gradients:
                member.tensors[position].grad = next(left)
