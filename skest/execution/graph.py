# SPDX-License-Identifier: Apache-2.0
"""`GraphStep`: training steps that are recorded once and replayed."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from torch import Tensor

from skest.execution.assumptions import Assumptions
from skest.execution.batch import batch_tensors
from skest.execution.counters import join_counters
from skest.execution.cuda_graph import CudaGraphProgram
from skest.execution.program import Program, StepProgram
from skest.execution.recording import NotRecordableError
from skest.execution.replay import Replay, recorded_step
from skest.execution.shortcut import Shortcut
from skest.execution.verification import compared_only, compared_step
from skest.execution.watching import has_hooks_of_all_modules, has_hooks_of_updates
from skest.schedules import keep_rates_in_tensors
from skest.spec import EstimatorSpec
from skest.training import LOCAL, Halves

__all__ = ["GraphStep"]

# Of kinds of batches other than the first one, and of sequences of each length.
_EAGER_STEPS_OF_OTHERS = 20
_MOST_KINDS = 64
_MOST_CHANGES = 3


class GraphStep:
    """Takes training steps as `skest.training.train_step` does, but faster.

    The first steps are eager. Then one is recorded while it is taken, the next one is
    taken twice, replayed and eager, and compared, and from then on steps are replayed.
    Every kind of batch (the last one of an epoch is often smaller) has a recording of its
    own, once it has come often enough; until then its steps are eager. If the network has
    a method ``cut_to_longest(features)``, as `skest.networks.RNN`, it is called before, so
    that each length is a kind.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN. A step must be a function of tensors: what Python code does
        beside them is done once.
    eager_steps : int
        Steps before the recording, at least 1: they make the state of the optimizers.
    report : callable
        Called with a sentence if steps stay eager, or are not compiled.
    program : type, default=Program
        What carries out recorded steps.
    is_watched : bool, default=True
        Whether to look before every step if somebody has changed what recordings take
        for granted (`skest.execution.assumptions`), and to record anew then; and to give
        every step gradients of its own, which somebody may keep. False is for
        runs in which no code of others is called between two steps: only options of
        optimizers are looked at in every step, and all else after steps that were not
        replayed, in which code of the model was called.
    has_table : bool, default=False
        Whether all batches are rows of one table, that differ in their number only.
    refusal : callable, default=None
        Called when somebody has changed something; returns the reason why there must be
        no recordings from then on, or None.
    halves : Halves, default=LOCAL
        The eager step. Another update than that of `skest.training` is called and not
        recorded.

    Attributes
    ----------
    n_replayed : int
        Steps that were replayed.
    apart : callable or None
        Where other processes change the variables, returns a context in which they don't,
        and in which what is done to the variables has no effect: the comparison takes
        place in there, and the step is taken afterwards.

    Examples
    --------
    >>> import torch
    >>> from skest import EstimatorSpec, ModeKeys
    >>> from skest.execution import GraphStep
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
    2
    """

    def __init__(
        self,
        spec: EstimatorSpec,
        *,
        eager_steps: int,
        report: Callable[[str], None],
        program: type[StepProgram] = Program,
        is_watched: bool = True,
        has_table: bool = False,
        refusal: Callable[[], str | None] | None = None,
        halves: Halves = LOCAL,
    ) -> None:
        self.n_replayed = 0
        self.apart: Callable[[], AbstractContextManager[None]] | None = None
        self._spec = spec
        self._halves = halves
        self._eager = halves.eager(spec)
        self._eager_steps = eager_steps
        self._report = report
        self._program = program
        self._cut = getattr(spec.network, "cut_to_longest", None)
        self._is_eager = False
        self._with_update = halves.update is LOCAL.update and keep_rates_in_tensors(
            spec.lr_schedulers
        )
        self._seen: Counter[Hashable] = Counter()
        self._recorded: dict[Hashable, Replay] = {}
        self._replays: dict[Hashable, Replay] = {}  # recorded, and compared
        self._is_watched = is_watched
        self._has_table = has_table
        self._refusal = refusal
        self._n_changes = 0
        self._assumptions = Assumptions(spec)
        self._shortcut: Shortcut | None = None
        self._was_replayed = False
        for optimizer in spec.optimizers:
            if not getattr(optimizer, "is_recordable", True):
                name = type(optimizer).__name__
                self._stay_eager(f"{name} needs more than gradients")

    def __call__(self, features: Any, labels: Any) -> Tensor:
        """Take a step and return the loss, detached, from before the update."""
        if self._shortcut is not None and not has_hooks_of_all_modules():
            loss = self._shortcut(features, labels)
            if loss is not None:
                self.n_replayed += 1
                return loss
        return self._step(features, labels)

    def together(
        self,
    ) -> AbstractContextManager[Callable[[Any, Any], Tensor | None]] | None:
        """Return a context for several steps, if all that is left to do is to replay them.

        In it, nothing but the next batch of the table may be asked for between two steps.
        ``take(features, labels)`` returns the loss, or does nothing and returns None if
        the batch is of another kind than the last one.
        """
        shortcut = self._shortcut
        if shortcut is None or not shortcut.is_for_several:
            return None
        return None if has_hooks_of_all_modules() else self._together(shortcut)

    @contextmanager
    def _together(
        self, shortcut: Shortcut
    ) -> Iterator[Callable[[Any, Any], Tensor | None]]:
        with shortcut.together() as replayed:

            def take(features: Any, labels: Any) -> Tensor | None:
                loss = replayed(features, labels)
                self.n_replayed += loss is not None
                return loss

            yield take

    def _step(self, features: Any, labels: Any) -> Tensor:
        self._shortcut = None
        if not self._is_eager:
            self._forget_what_has_changed()
        if self._is_eager or has_hooks_of_all_modules():
            return self._eager(features, labels)
        if self._cut is not None:
            features = self._cut(features)
        try:
            tensors, kind = batch_tensors((features, labels))
        except TypeError as error:
            self._stay_eager(str(error))
            return self._eager(features, labels)
        replay = self._replays.get(kind)
        if replay is not None and replay.others.were_replaced():
            self._stay_eager(
                "a gradient of a variable that no optimizer holds was replaced"
            )
            return self._eager(features, labels)
        if replay is not None and not replay.was_compared_with(tensors):
            replay = None
        self._was_replayed = replay is not None
        if replay is None:
            loss = self._prepare(kind, tensors, features, labels)
        else:
            self.n_replayed += 1
            loss = replay(tensors)
            is_whole = replay.has_update or not self._with_update
            if is_whole and not self._is_watched and self._cut is None:
                self._shortcut = Shortcut.find(
                    replay,
                    self._assumptions,
                    features,
                    labels,
                    tensors,
                    self._has_table,
                )
        if self._with_update and not (replay is not None and replay.has_update):
            if self._assumptions.slots_were_replaced() and self._is_update_recorded():
                self._update_by_itself()  # other kinds work on those of before
        return loss

    def _prepare(
        self, kind: Hashable, tensors: list[Tensor], features: Any, labels: Any
    ) -> Tensor:
        """Take an eager step, and come closer to replaying those of its kind."""
        if kind in self._recorded:
            return self._compare(kind, tensors, features, labels)
        self._seen[kind] += 1
        if len(self._seen) > _MOST_KINDS:
            self._stay_eager("the shapes of the batches keep changing")
        is_first = kind == next(iter(self._seen))
        comes_often = is_first and self._cut is None
        n_eager = self._eager_steps if comes_often else _EAGER_STEPS_OF_OTHERS
        if self._is_eager or self._seen[kind] <= n_eager:
            return self._eager(features, labels)
        captures = self._program is CudaGraphProgram  # memory for one kind is enough
        program = Program if captures and not is_first else self._program
        if self._with_update and join_counters(self._spec.optimizers):
            self._assumptions.slots_were_replaced()  # by this, and with the same values
            self._forget()
        loss, replay = recorded_step(
            self._spec,
            features,
            labels,
            tensors,
            program,
            self._with_update,
            gives_copies=self._is_watched,
            halves=self._halves,
        )
        if isinstance(replay, NotRecordableError):
            self._stay_eager(str(replay))
        else:
            self._recorded[kind] = replay
        return loss

    def _compare(
        self, kind: Hashable, tensors: list[Tensor], features: Any, labels: Any
    ) -> Tensor:
        replay = self._recorded[kind]
        step = replay, self._spec, features, labels, tensors
        if self.apart is None:
            loss, difference = compared_step(*step)
        else:
            with self.apart():
                difference = compared_only(*step)
            loss = self._eager(features, labels)
        if difference is None:
            replay.note_comparison(tensors)
            self._replays[kind] = replay
        else:
            self._stay_eager(difference)
        return loss

    def _stay_eager(self, reason: str) -> None:
        self._is_eager = True
        self._forget()
        self._report(f"Training steps are taken eagerly: {reason}.")

    def _forget(self) -> None:
        self._recorded.clear()
        self._replays.clear()

    def _forget_what_has_changed(self) -> None:
        if self._with_update and has_hooks_of_updates(self._spec):
            self._update_by_itself()
        is_close_look = self._is_watched or not self._was_replayed
        if is_close_look and self._assumptions.model_has_changed():
            self._forget()
            self._n_changes += 1
            reason = self._refusal() if self._refusal else None
            if reason is not None:
                self._stay_eager(reason)
        if self._n_changes > _MOST_CHANGES and not self._is_eager:
            self._stay_eager("the model keeps changing between steps")
        if self._with_update and self._other_updates(is_close_look):
            self._update_by_itself()  # whatever changes them does so again

    def _other_updates(self, is_close_look: bool) -> bool:
        """Tell whether somebody has changed options or slots of the optimizers."""
        look = self._assumptions
        if look.options_have_changed(at_a_glance=not is_close_look):
            return True
        return (
            is_close_look and self._is_update_recorded() and look.slots_have_changed()
        )

    def _is_update_recorded(self) -> bool:
        return any(replay.has_update for replay in self._recorded.values())

    def _update_by_itself(self) -> None:
        """Record gradients only from now on; the optimizers take their steps."""
        self._with_update = False
        self._forget()
