# SPDX-License-Identifier: Apache-2.0
"""`Crew`: trainings that wait for each other, and take their steps together.

Each is an ordinary call, in a thread of its own, and one of them works at a time: a
thread is what keeps its place in ``fit`` while others get to theirs. It goes on alone up
to the steps of an epoch, which it asks the crew for. When all wait, those whose steps are
the same operations take them in one `Stack`, and each goes on with its losses.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextvars import copy_context
from itertools import islice
from typing import Any

from torch import Tensor

from skest.core.random import draws_from_global_generator, is_known_code
from skest.engine.loop import LONE, Replica, Step, train_step, trained_parameters
from skest.engine.recorded.recording import NotRecordableError, map_leaves
from skest.engine.recorded.stack import Batch, Computation, Member, Stack
from skest.engine.recorded.step import are_flat
from skest.hooks.base import EpochwiseHook, Hook, Run
from skest.hooks.logging import LoggingHook
from skest.hooks.nan import NanLossHook
from skest.hooks.steps import CheckpointSaverHook, StopAtStepHook
from skest.spec import EstimatorSpec

# Fewer steps take less time one by one than a stack takes to be recorded.
_WORTH_STACKING = 250
_PIECE_BYTES = 2**22  # of the batches of a training that are taken ahead
_CACHED_BYTES = 2**21  # of a stack
_logger = logging.getLogger("skest")


class Crew:
    """Runs calls that train, so that they take their steps together.

    Parameters
    ----------
    at_once : int
        Most calls that have begun and not ended.
    deadline : float
        On the clock of `time.monotonic`: trainings raise TimeoutError from then on.

    Attributes
    ----------
    stopped_by : BaseException or None
        Set by another thread, it is what all trainings raise.
    """

    def __init__(self, at_once: int, deadline: float) -> None:
        self.stopped_by: BaseException | None = None
        self._at_once = at_once
        self._deadline = deadline
        self._idle = threading.Semaphore(0)
        self._questions: list[_Question] = []
        self._computations: dict[Hashable, Computation] = {}

    def run(self, calls: Iterable[Callable[[], None]]) -> None:
        """Run calls to their ends; they raise nothing."""
        left = iter(calls)
        while True:
            while len(self._questions) < self._at_once and (call := next(left, None)):
                work = copy_context().run
                try:
                    threading.Thread(target=work, args=(self._work, call)).start()
                except RuntimeError as error:  # there are too many
                    self.stopped_by = error
                    break
                self._idle.acquire()  # until it asks or ends
            questions, self._questions = self._questions, []
            if not questions:
                return
            try:
                self._answer(questions)
            except Exception as error:  # or they would wait for ever
                for question in questions:
                    question.answer = error
            for question in questions:
                question.is_answered.release()
                self._idle.acquire()

    def _work(self, call: Callable[[], None]) -> None:
        LONE.set(lambda: _Trainee(self))
        try:
            call()
        finally:
            self._idle.release()

    def check(self) -> None:
        """Raise what ends all trainings, if something does."""
        if self.stopped_by is not None:
            raise self.stopped_by
        if time.monotonic() > self._deadline:
            raise TimeoutError(
                "The time limit of fit_many was over before this was done."
            )

    def ask(self, member: Member, batches: Sequence[Batch]) -> Tensor:
        """Return the losses of steps, once the others are there.

        Raises
        ------
        NotRecordableError
            If the steps are not taken, because they cannot be so.
        """
        own = self._computations
        for batch in batches:
            if (member.description, batch.kind) not in own:
                own[member.description, batch.kind] = Computation(member, batch)
        computations = {b.kind: own[member.description, b.kind] for b in batches}
        question = _Question(member, batches, computations)
        self._questions.append(question)
        self._idle.release()
        question.is_answered.acquire()
        if isinstance(question.answer, Exception):
            raise question.answer
        return question.answer

    def _answer(self, questions: Sequence["_Question"]) -> None:
        by_stack: dict[Stack, list[_Question]] = defaultdict(list)
        unstacked: list[_Question] = []
        for question in questions:
            stack = question.member.stack
            (unstacked if stack is None else by_stack[stack]).append(question)
        for stack, asking in by_stack.items():
            # A stack computes for those who left, too: half empty, it is given up for a
            # new one.
            is_empty = 2 * len(asking) <= len(stack.members)
            if is_empty or len({question.kinds for question in asking}) > 1:
                unstacked += asking
            else:
                _train(stack, asking)
        alike: dict[Any, list[_Question]] = defaultdict(list)
        for question in unstacked:
            alike[question.operations].append(question)
        for asking in alike.values():
            most = _most_members(asking[0].member)
            for i in range(0, len(asking), most):
                _train(None, asking[i : i + most])


class _Question:
    """A member of a stack, or to be, and the batches of the steps that it asks for."""

    def __init__(
        self,
        member: Member,
        batches: Sequence[Batch],
        computations: dict[Hashable, Computation],
    ) -> None:
        self.member = member
        self.batches = batches
        self.rates = member.rates(len(batches))
        self.computations = computations
        self.kinds = tuple(batch.kind for batch in batches)
        self.answer: Any = None
        self.is_answered = threading.Semaphore(0)

    @property
    def operations(self) -> Hashable:
        """What is the same for those who may be in one stack."""
        shapes = [(t.shape, t.stride(), t.dtype) for t in self.member.tensors]
        texts = [computation.text for computation in self.computations.values()]
        return self.kinds, tuple(shapes), tuple(texts)


def _train(stack: Stack | None, asking: Sequence[_Question]) -> None:
    """Train those who ask in their stack, or in a new one."""
    by_member = {question.member: question for question in asking}
    try:
        if stack is None:
            stack = Stack([*by_member])
        # Who has left is given the batches of another one.
        batches = [by_member.get(m, asking[0]).batches for m in stack.members]
        rates = {question.member: question.rates for question in asking}
        losses = stack.train(batches, rates, asking[0].computations)
    except Exception as error:
        for question in asking:
            question.answer = error
        return
    for member, own in zip(stack.members, losses, strict=True):
        if member in by_member:
            by_member[member].answer = own


def _most_members(member: Member) -> int:
    """Return how many may be in a stack: more of large ones do not stay in a cache."""
    n_bytes = sum(tensor.nbytes for tensor in member.tensors)
    return min(32, max(4, _CACHED_BYTES // max(1, 4 * n_bytes)))  # gradients and slots


class _Trainee(Replica):
    """A training of a crew."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._losses: Iterator[Tensor] = iter(())
        self._spec: EstimatorSpec | None = None
        self._n_steps = 0
        self._fitting = 0  # batches that a piece may have
        self._kinds: dict[int, Hashable] = {}

    def make_step(self, run: Run, make: Callable[..., Step]) -> Step:
        """Return what takes the losses of steps that were taken together."""
        step = make(recorded=self._join)
        self._make = make
        return step

    def _join(
        self,
        spec: EstimatorSpec,
        hooks: Sequence[Hook],
        n_steps: int | None,
        with_update: bool,
    ) -> Step | None:
        reason = _reason_to_be_alone(spec, hooks, n_steps)
        if reason is None and not with_update:
            reason = "its rates or updates may change in other ways than by the step"
        if reason is not None:
            _logger.info("A member of fit_many is trained alone: %s.", reason)
            return None
        self._spec, self._n_steps = spec, n_steps or 0
        return self._step

    def _step(self, features: Any, labels: Any) -> Tensor:
        # The hooks of every step still run one by one, with the losses that came
        # before.
        loss = next(self._losses, None)
        if loss is not None:
            return loss
        if self._spec is None:
            return self._alone(features, labels)
        return train_step(self._spec, features, labels)

    def batches(
        self, run: Run, batches: Iterator[tuple[Any, Any]]
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the batches; the steps with them are taken before."""
        self._crew.check()
        yield from islice(batches, 1)  # an eager step makes the state of the optimizers
        if self._spec is None:
            for batch in batches:
                self._crew.check()
                yield batch
            return
        member = None
        while piece := list(islice(batches, self._length(run))):
            self._crew.check()
            if self._spec is not None:
                try:
                    member = member or Member(self._spec)
                    apart = [self._apart(*batch) for batch in piece]
                    self._losses = iter(self._crew.ask(member, apart))
                except NotRecordableError as error:
                    _logger.info("A member of fit_many is trained alone: %s.", error)
                    self._spec, self._alone = None, self._make()
            yield from piece

    def _apart(self, features: Any, labels: Any) -> Batch:
        """Take a batch apart; those of a table differ in their number of rows only."""
        if self._kinds and len(labels) in self._kinds:
            tensors = [*features.values(), labels]
            return Batch(features, labels, tensors, self._kinds[len(labels)])
        try:
            batch = Batch.of(features, labels)
        except TypeError as error:
            raise NotRecordableError(str(error)) from error
        if are_flat(features, labels, batch.tensors):
            self._kinds[len(labels)] = batch.kind
        return batch

    def _length(self, run: Run) -> int:
        """Return for how many steps nobody looks at the model in between."""
        table, per_epoch = run.table, run.steps_per_epoch
        if table is None or per_epoch is None or run.batch is None:
            return 1
        # Early stopping looks at the model between two epochs.
        to_epoch = per_epoch - (table.n_skipped + run.n_taken) % per_epoch
        if not self._fitting:
            sizes: list[int] = []
            map_leaves(run.batch, Tensor, lambda tensor: sizes.append(tensor.nbytes))
            self._fitting = max(1, _PIECE_BYTES // max(1, sum(sizes)))
        return max(1, min(to_epoch, self._n_steps - run.n_taken, self._fitting))


def _reason_to_be_alone(
    spec: EstimatorSpec, hooks: Sequence[Hook], n_steps: int | None
) -> str | None:
    """Tell why a training cannot take the steps of an epoch ahead, if it can't."""
    if n_steps is None:
        return "its rows are no table"
    if n_steps < _WORTH_STACKING:
        return f"it takes fewer than {_WORTH_STACKING} steps"
    if any(p.device.type != "cpu" for p in trained_parameters(spec)):
        return "it is on a GPU"
    network: Any = spec.network
    if draws_from_global_generator(network, spec.loss, *spec.optimizers):
        return "its code may draw from the global generator of PyTorch"
    for hook in hooks:
        if not _looks_at_epochs(hook):
            return f"{type(hook).__name__} may look at it after every step"
    return None


def _looks_at_epochs(hook: Hook) -> bool:
    """Tell whether a hook looks at the model at the ends of epochs only, or never."""
    if isinstance(hook, CheckpointSaverHook):
        return hook.is_for_the_end
    if isinstance(hook, NanLossHook):
        return hook.fails  # for all, and what it stops is kept by nobody
    if isinstance(hook, EpochwiseHook):
        return all(map(is_known_code, (type(hook).before_step, type(hook).after_step)))
    return isinstance(hook, LoggingHook | StopAtStepHook)
