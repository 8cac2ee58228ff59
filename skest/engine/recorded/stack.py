# SPDX-License-Identifier: Apache-2.0
"""`Stack`: models whose steps are the same operations, trained along one more axis."""

import io
import logging
import pickle
from collections.abc import Hashable, Sequence
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
    Call,
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
    kind : bytes
        Equal for models whose losses and gradients are the same operations on tensors.
    tensors : list of Tensor
        Those of the network and of the loss, in the same order for equal kinds.
    generators : list of torch.Generator
        What they draw from, likewise.
    stack : Stack or None
        What it is trained in.

    Raises
    ------
    NotRecordableError
        If what the model consists of cannot be told.
    """

    def __init__(self, spec: EstimatorSpec) -> None:
        self.spec = spec
        self.stack: Stack | None = None
        described = _Described(spec)
        self.kind, self.tensors = described.text, described.tensors
        self.generators = described.generators

    def rates(self, n_steps: int) -> list[list[float]]:
        """Return the learning rates of the steps to come, for every scheduled group."""
        return [
            [rate_at(s.function, s.last_epoch + step) for step in range(n_steps)]  # type: ignore[attr-defined]
            for s in self.spec.lr_schedulers
            for _ in s.optimizer.param_groups
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

    def persistent_id(self, part: Any) -> Hashable:
        """Return what counts of a tensor; functions are what they are."""
        if isinstance(part, Tensor):
            self._note(part, self.tensors)
            kind = tuple(part.shape), part.stride(), str(part.dtype), part.requires_grad
            return self._ids[id(part)], kind
        if isinstance(part, torch.Generator):
            self._note(part, self.generators)
            return self._ids[id(part)]
        if isinstance(part, FunctionType | BuiltinFunctionType):
            return "function", id(part)
        return None

    def _note(self, part: Any, parts: list[Any]) -> None:
        if id(part) not in self._ids:
            self._ids[id(part)] = len(self._ids)
            parts.append(part)


class Stack:
    """Models that take their steps together.

    Their tensors become parts of larger ones. Every one keeps the optimizers that it has,
    whose updates are recorded as they are: rates, decays and limits of gradients are each
    member's own.

    Parameters
    ----------
    members : sequence of Member
        Of one kind. One that is trained no more, or in another stack, leaves memory and
        time to be wasted, until the others leave as well.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)
        self._stacked: list[Tensor] = []
        memory: list[int | None] = []
        for tensors in zip(*[member.tensors for member in members], strict=True):
            memory += map(storage_of, tensors)
            stacked = aligned_empty(len(members), tensors[0])
            for tensor, place in zip(tensors, stacked, strict=True):
                place.copy_(tensor.detach())
            self._stacked.append(stacked)
        if None in memory or len({*memory}) < len(memory):
            raise NotRecordableError("its tensors are sparse, or share memory")
        for member in members:
            join_counters(member.spec.optimizers)
        for j, member in enumerate(members):
            for tensor, stacked in zip(member.tensors, self._stacked, strict=True):
                tensor.data = stacked[j]
            member.stack = self
        groups = [
            group
            for member in members
            for scheduler in member.spec.lr_schedulers
            for group in scheduler.optimizer.param_groups
        ]
        # Only rates that are kept in tensors may change, which are of this type.
        self._rates = torch.zeros(len(groups), dtype=torch.float64)
        for group, place in zip(groups, self._rates, strict=True):
            group["lr"] = place.copy_(group["lr"])
        self._steps: dict[Hashable, _StackedStep] = {}

    def train(self, batches: Sequence[Sequence[Batch]]) -> Tensor:
        """Take steps.

        Parameters
        ----------
        batches : sequence of sequence of Batch
            Of each member as many, of kinds that are equal from member to member.

        Returns
        -------
        Tensor of shape (n_members, n_steps)
            The losses, before each update.

        Raises
        ------
        NotRecordableError
            If they cannot be trained so; no step is taken then.
        """
        for batch in batches[0]:
            if batch.kind not in self._steps:
                step = _StackedStep(self.members, self._stacked, batch)
                self._steps[batch.kind] = step
        rates = [rates for m in self.members for rates in m.rates(len(batches[0]))]
        by_step = torch.tensor(rates, dtype=torch.float64).T
        losses = []
        for position, of_all in enumerate(zip(*batches, strict=True)):
            if rates:
                self._rates.copy_(by_step[position])
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
    batch : Batch
        One of the first member.
    """

    def __init__(
        self, members: Sequence[Member], stacked: Sequence[Tensor], batch: Batch
    ) -> None:
        self._members = members
        spec = members[0].spec
        recorder, undo = Recorder(batch.tensors), undo_of(spec)
        with recorder:
            loss = compute_gradients(spec, batch.features, batch.labels)
        undo()
        recording = recorder.recording
        results = [value for call in recording.calls for value in call.results]
        if recording.obstacle is not None:
            raise NotRecordableError(recording.obstacle)
        if any(value.tensor.layout != torch.strided for value in results):
            raise NotRecordableError("gradients of its tables are sparse")
        self._calls = recording.calls
        self._loss = recorder.value_of(loss)
        self._gradients = [
            None if p.grad is None else recorder.value_of(p.grad)
            for p in trained_parameters(spec)
        ]
        self._inputs = [aligned_empty(len(members), t) for t in batch.tensors]
        self._known = _constants(recording.calls, stacked)
        self._known |= dict(zip(recording.inputs, self._inputs, strict=True))
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
            undo = [undo_of(member.spec) for member in self._members]
            try:
                return self._recorded()
            except Exception as error:  # before any update
                for each in undo:
                    each()
                self._is_one_by_one = True
                _logger.info("%s", error)
                return self._one_by_one(batches)
        returned = self._program()
        if self._program.places:
            self._update(returned)
        return returned[0]

    def _one_by_one(self, batches: Sequence[Batch]) -> Tensor:
        pairs = zip(self._members, batches, strict=True)
        return torch.stack([train_step(m.spec, b.features, b.labels) for m, b in pairs])

    def _update(self, returned: tuple[Tensor, ...]) -> None:
        """Let every optimizer take its step, where that cannot be recorded."""
        places = [returned[p] if isinstance(p, int) else p for p in self._program.places]
        left = iter(places)
        self._set_gradients([None if v is None else next(left) for v in self._gradients])
        for member in self._members:
            apply_gradients(member.spec)

    @torch.no_grad()
    def _recorded(self) -> Tensor:
        """Take the step, and record it."""
        specs = [member.spec for member in self._members]
        of_all = [member.generators for member in self._members]
        of_first = {id(of_each[0]): of_each for of_each in zip(*of_all, strict=True)}
        batched = Batched(len(specs), self._known, of_first)
        recorder = Recorder(())
        with recorder:
            for call in self._calls:
                batched.carry_out(call)
            losses = batched.stacked(self._loss)
            gradients = [
                None if value is None else batched.stacked(value)
                for value in self._gradients
            ]
            self._set_gradients(gradients)
        recording = recorder.recording
        n_calls = len(recording.calls)
        are_recorded = [record_update(spec, recorder) for spec in specs]
        kept = []
        if not all(are_recorded):
            del recording.calls[n_calls:]
            kept = [recorder.value_of(g) for g in gradients if g is not None]
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

    def _set_gradients(self, gradients: Sequence[Tensor | None]) -> None:
        for j, member in enumerate(self._members):
            trained = trained_parameters(member.spec)
            for parameter, stacked in zip(trained, gradients, strict=True):
                parameter.grad = None if stacked is None else stacked[j]


def _constants(calls: Sequence[Call], stacked: Sequence[Tensor]) -> dict[Value, Tensor]:
    """Return what the tensors of the first member are parts of, by their values."""
    parts = {_place(tensor[0]): tensor for tensor in stacked}
    memory = {*map(storage_of, stacked)}
    found = {}
    for value in (value for call in calls for value in call.arguments):
        if value.kind == "constant" and storage_of(value.tensor) in memory:
            if _place(value.tensor) not in parts:
                raise NotRecordableError("a part of a tensor was seen before")
            found[value] = parts[_place(value.tensor)]
    return found


def _place(tensor: Tensor) -> Hashable:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
