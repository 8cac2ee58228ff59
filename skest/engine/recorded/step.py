# SPDX-License-Identifier: Apache-2.0
"""`GraphStep`: training steps that are recorded once and replayed."""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from skest.core.random import restorer
from skest.engine import loop
from skest.engine.recorded.cuda_graph import CudaGraphProgram
from skest.engine.recorded.program import Program
from skest.engine.recorded.recording import Recorder, Value, batch_tensors
from skest.engine.recorded.simplify import (
    Storages,
    quicker_on_cpu,
    rewritten,
    simplified,
    with_tensors_for_numbers,
)
from skest.optimizers.row_sparse import RowSparse
from skest.spec import EstimatorSpec

# Of kinds of batches that may not come often: to record one costs as much.
_EAGER_STEPS_OF_OTHERS = 20
_MOST_KINDS = 64

_TensorsOf = Callable[[Any, Any], Sequence[Tensor]]


class GraphStep:
    """Takes training steps as `skest.engine.loop.train_step` does, but faster.

    The first steps are eager. Then one is recorded while it is taken, and from then on
    steps are replayed. Every kind of batch (the last one of an epoch is often smaller) has
    a recording of its own, once it has come often enough; until then its steps are eager.
    If the network has a method ``cut_to_longest(features)``, as `skest.networks.RNN`, it
    is called before, so that each length is a kind.

    Nothing is looked at between two steps but the kind of the batch: who makes a
    `GraphStep` knows that a step is a function of tensors, see
    `skest.engine.recorded.choice`. Variables, buffers and slots of optimizers may change in
    place, and if no update is recorded the options of the optimizers as well.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN.
    eager_steps : int
        Steps before the recording, at least 1: they make the state of the optimizers.
    report : callable
        Called with a sentence if steps stay eager.
    with_update : bool, default=True
        Whether to record the update as well, if it can be. Replayed steps leave no
        gradients then. Otherwise `update` is called with the gradients.
    program : type, default=Program
        What carries out recorded steps.
    has_table : bool, default=False
        Whether all batches are rows of one table, that differ in their number only.
    n_steps : int or None, default=None
        How many steps there may be; None if that is not known.
    update : callable, default=apply_gradients
        The second half of an eager step.

    Attributes
    ----------
    n_replayed : int
        Steps that were replayed.

    Examples
    --------
    >>> import torch
    >>> from skest import EstimatorSpec, ModeKeys
    >>> from skest.engine.recorded.step import GraphStep
    >>> network = torch.nn.Linear(2, 1)
    >>> spec = EstimatorSpec(
    ...     ModeKeys.TRAIN,
    ...     network=network,
    ...     loss=lambda labels, logits, features: (logits - labels).square().mean(),
    ...     optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
    ... )
    >>> step = GraphStep(spec, eager_steps=1, report=print)
    >>> losses = [step(torch.ones(4, 2), torch.zeros(4, 1)) for _ in range(5)]
    >>> step.n_replayed
    3
    """

    def __init__(
        self,
        spec: EstimatorSpec,
        *,
        eager_steps: int,
        report: Callable[[str], None],
        with_update: bool = True,
        program: type[Program] = Program,
        has_table: bool = False,
        n_steps: int | None = None,
        update: loop.Update = loop.apply_gradients,
    ) -> None:
        self.n_replayed = 0
        self._n_steps = n_steps or 0
        self._spec = spec
        self._update = update
        self._eager = loop.eager_step(spec, update)
        self._eager_steps = eager_steps
        self._report = report
        self._with_update = with_update
        self._program = program
        self._cut = getattr(spec.network, "cut_to_longest", None)
        self._is_eager = False
        self._seen: Counter[Hashable] = Counter()
        self._often: set[Hashable] = set()
        self._replays: dict[Hashable, _Replay] = {}
        # By the number of rows, for batches that differ in nothing else; if what finds
        # their tensors is known.
        self._may_count_rows = has_table and self._cut is None
        self._of_rows: dict[int, _Replay] = {}
        self._tensors_of: _TensorsOf | None = None

    def __call__(self, features: Any, labels: Any) -> Tensor:
        """Take a step and return the loss, detached, from before the update."""
        # The way of most steps: of the batch, only the number of rows is looked at.
        if self._tensors_of and (replay := self._of_rows.get(len(labels))):
            self.n_replayed += 1
            return replay(self._tensors_of(features, labels))
        # For ever: what is no function of tensors once, is none later.
        if self._is_eager:
            return self._eager(features, labels)
        if self._cut is not None:
            features = self._cut(features)
        try:
            tensors, kind = batch_tensors((features, labels))
        except TypeError as error:
            self._stay_eager(str(error))
            return self._eager(features, labels)
        if (replay := self._replays.get(kind)) is None:
            return self._prepare(kind, tensors, features, labels)
        self.n_replayed += 1
        return replay(tensors)

    def _prepare(
        self, kind: Hashable, tensors: list[Tensor], features: Any, labels: Any
    ) -> Tensor:
        """Take an eager step, and record it if there will be enough of its kind."""
        if not self._seen:
            self._often = {kind} if self._cut is None else set()
        elif len(self._seen) == 1 and self._cut is None and kind not in self._seen:
            # The rest of an epoch, which comes once in each.
            n_epochs = self._n_steps // (self.n_replayed + self._seen.total() + 1)
            if n_epochs >= 2 * _EAGER_STEPS_OF_OTHERS:
                self._often.add(kind)
        self._seen[kind] += 1
        if len(self._seen) > _MOST_KINDS:
            self._stay_eager("the shapes of the batches keep changing")
        n_eager = self._eager_steps if kind in self._often else _EAGER_STEPS_OF_OTHERS
        if self._is_eager or self._seen[kind] <= n_eager:
            return self._eager(features, labels)
        if self._with_update and _join_counters(self._spec.optimizers):
            self._forget()  # they work on other tensors
        captures = self._program is CudaGraphProgram  # memory for one kind is enough
        is_first = kind == next(iter(self._seen))
        program = Program if captures and not is_first else self._program
        loss, found = self._recorded(features, labels, tensors, program)
        if isinstance(found, str):
            self._stay_eager(found)
            return loss
        self._replays[kind] = found
        if self._may_count_rows:
            self._tensors_of = _tensors_of(features, labels, tensors)
            self._of_rows[len(labels)] = found
        return loss

    def _recorded(
        self,
        features: Any,
        labels: Any,
        tensors: Sequence[Tensor],
        program: type[Program],
    ) -> tuple[Tensor, "_Replay | str"]:
        """Take a step; return the loss, and the step or why it is not recorded."""
        spec = self._spec
        recorder = Recorder(tensors)
        # What a forward pass moves: buffers and random numbers, not yet variables.
        undo = restorer(spec.network, torch.default_generator)
        try:
            with recorder:
                loss = loop.compute_gradients(spec, features, labels)
        except Exception as error:  # what fails in any case, fails again
            # The eager step below draws the same numbers, and moves averages once.
            undo()
            failure = f"it cannot be recorded: {type(error).__name__}"
            return self._eager(features, labels), failure
        obstacle, n_calls = recorder.obstacle, len(recorder.calls)
        # Before the update, which may replace gradients by clipped or joined ones.
        gradients = {
            parameter: recorder.value_of(parameter.grad)
            for parameter in loop.trained_parameters(spec)
            if parameter.grad is not None
        }
        has_update = self._with_update and obstacle is None
        if has_update:
            has_update = _record_update(spec, recorder)
        else:
            self._update(spec)
        # The step was taken, by the code of the model, and counts.
        if obstacle is not None:
            return loss, obstacle
        update = None if has_update else self._update
        if not has_update:
            # What was recorded of an update that can't be repeated.
            del recorder.calls[n_calls:]
        value = recorder.value_of(loss)
        try:
            return loss, _Replay(spec, recorder, value, gradients, program, update)
        except Exception as error:  # the step itself is taken
            return loss, f"{type(error).__name__} when a recorded step was built"

    def _stay_eager(self, reason: str) -> None:
        self._is_eager = True
        self._forget()
        self._report(f"Training steps are taken eagerly: {reason}.")

    def _forget(self) -> None:
        self._replays.clear()
        self._of_rows.clear()


class _Replay:
    """A recorded step, which can be taken with other batches of the same kind.

    Parameters
    ----------
    spec : EstimatorSpec
        The model; its variables and the state of its optimizers are worked on in place.
    recorder : Recorder
        The recorded step.
    loss : Value
        The loss.
    gradients : dict of Parameter to Value
        The gradients as the optimizers get them.
    program : type
        What carries out the recorded step.
    update : callable or None
        ``update(spec)`` is called with the gradients; None if the update is recorded.
    """

    def __init__(
        self,
        spec: EstimatorSpec,
        recorder: Recorder,
        loss: Value,
        gradients: dict[Tensor, Value],
        program: type[Program],
        update: loop.Update | None,
    ) -> None:
        calls = quicker_on_cpu(rewritten(recorder.calls))
        storages = Storages(calls)
        if update is None:
            gradients = {}
        for gradient in gradients.values():  # an update may scale them in place
            storages.mark_written(gradient)
        kept = list(gradients.values())
        # `kept` are the values that are left, in the order of `gradients`.
        calls, (loss, *kept) = simplified(calls, [loss, *kept], storages)
        calls = with_tensors_for_numbers(calls)
        self._program = program(recorder.inputs, calls, [loss], kept, storages)
        self._spec = spec
        self._update = update
        # As an eager step, it leaves no gradient of the step before anywhere.
        others = loop.trained_parameters(spec).keys() - gradients.keys()
        for parameter in others:
            parameter.grad = None
        self._without = [*others]
        self._places = [*zip(gradients, self._program.places, strict=True)]

    def __call__(self, tensors: Sequence[Tensor]) -> Tensor:
        """Take the step with a batch and return the loss."""
        returned = self._program(*tensors)
        if self._update is not None:
            self._set_gradients(returned)
            self._update(self._spec)
        return returned[0]

    def _set_gradients(self, returned: tuple[Tensor, ...]) -> None:
        for parameter in self._without:
            parameter.grad = None
        for parameter, place in self._places:
            gradient = returned[place] if isinstance(place, int) else place
            if parameter.grad is not gradient:  # to look takes half as long as to set
                parameter.grad = gradient


def _record_update(spec: EstimatorSpec, recorder: Recorder) -> bool:
    """Update the variables, and tell whether it can be repeated from the recording."""
    tables = [o for o in spec.optimizers if isinstance(o, RowSparse)]
    before = _slots(spec.optimizers)
    for optimizer in tables:
        optimizer.is_recorded = True
    try:
        with recorder:
            loop.apply_gradients(spec)
    finally:
        for optimizer in tables:
            optimizer.is_recorded = False
    # Some rules count in Python, as SparseAdam does.
    after = _slots(spec.optimizers)
    # A slot that is a new object now was not changed in place, as a replay would do it.
    is_same = [*map(id, before)] == [*map(id, after)]
    return is_same and recorder.obstacle is None


def _slots(optimizers: Iterable[Optimizer]) -> list[Any]:
    return [v for o in optimizers for s in o.state.values() for v in s.values()]


def _join_counters(optimizers: Iterable[Optimizer]) -> bool:
    """Let slots of single numbers be elements of one tensor, with the same values.

    Every parameter has a counter of its own, which is a tensor, and to add 1 to each
    takes longer than the update of a small layer. To add 1 to one tensor does not; see
    `skest.engine.recorded.simplify.rewritten`.

    Returns
    -------
    bool
        Whether there are other tensors than before; recordings work on those of before.
    """
    has_joined = False
    for optimizer in optimizers:
        counters: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for slots in optimizer.state.values():
            for name, slot in slots.items():
                if isinstance(slot, Tensor) and slot.ndim == 0:
                    counters[name, slot.dtype, slot.device].append(slots)
        for (name, _, _), having in counters.items():
            if len({slots[name].untyped_storage().data_ptr() for slots in having}) == 1:
                continue  # done before
            # The elements are views, so that to add to the whole counts for each
            # parameter.
            joined = torch.stack([slots[name] for slots in having])
            for slots, element in zip(having, joined.unbind(), strict=True):
                slots[name] = element
            has_joined = True
    return has_joined


def _tensors_of(
    features: Any, labels: Any, tensors: Sequence[Tensor]
) -> _TensorsOf | None:
    """Return what finds the tensors of other batches of the same table, or None.

    Of dictionaries of features, or of one for each part of a network. To take a batch
    apart with a look at each tensor takes 100 µs for a wide & deep network.
    """
    # Other nests are taken apart for every batch.
    if type(features) is not dict or not isinstance(labels, Tensor):
        return None
    found = [*map(id, tensors)]
    if found == [*map(id, (*features.values(), labels))]:
        return lambda features, labels: (*features.values(), labels)
    if any(type(part) is not dict for part in features.values()):
        return None
    # Parts share some, which stand once among the tensors.
    where = {id(t): (n, key) for n, part in features.items() for key, t in part.items()}
    if tensors[-1] is not labels or not where.keys() >= {*found[:-1]}:
        return None
    # Which parts share a tensor is the same for all batches of a table.
    places = [where[own] for own in found[:-1]]
    return lambda features, labels: (*[features[n][key] for n, key in places], labels)
