# SPDX-License-Identifier: Apache-2.0
"""`GraphStep`: training steps that are recorded once and replayed."""

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any

from torch import Tensor

from skest.execution.batch import batch_tensors
from skest.execution.program import Program
from skest.execution.replay import NotRecordable, Replay, recorded_step
from skest.execution.verification import compared_step
from skest.spec import EstimatorSpec
from skest.training import train_step, trained_parameters

__all__ = ["GraphStep"]

_EAGER_STEPS_OF_OTHERS = 20  # of kinds of batches other than the first one
_MOST_KINDS = 64


class GraphStep:
    """Takes training steps as `skest.training.train_step` does, but faster.

    The first steps are eager. Then one is recorded while it is taken, the next one is
    taken twice, replayed and eager, and compared bit for bit, and from then on steps are
    replayed. Every kind of batch (the last one of an epoch is often smaller) has a
    recording of its own, once it has come often enough; until then its steps are eager.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN. Its loss must be a function of tensors: what Python code does
        beside them is done once.
    eager_steps : int
        Steps before the recording, at least 1.
    report : callable
        Called with the reason if steps stay eager.
    program : type, default=Program
        What carries out recorded steps.

    Examples
    --------
    >>> import torch
    >>> from skest import EstimatorSpec, ModeKeys
    >>> from skest.execution.graph import GraphStep
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
        program: type[Program] = Program,
    ) -> None:
        if spec.network is None:
            raise ValueError("A training step needs an EstimatorSpec of mode 'train'.")
        self.n_replayed = 0
        self._spec = spec
        self._eager_steps = eager_steps
        self._report = report
        self._program = program
        self._with_update = not spec.lr_schedulers
        self._seen: Counter[Hashable] = Counter()
        self._replays: dict[Hashable, Replay] = {}
        self._compared: set[Hashable] = set()
        self._is_eager = False
        self._modules = list(spec.network.modules())
        self._parameters = list(
            dict.fromkeys([*spec.network.parameters(), *trained_parameters(spec)])
        )
        self._groups = [g for o in spec.optimizers for g in o.param_groups]
        self._named_options = [
            (group, name)
            for group in self._groups
            for name, option in group.items()
            if isinstance(option, bool | int | float | tuple)
        ]
        self._model = self._present_model()
        self._options = self._present_options()

    def __call__(self, features: Any, labels: Any) -> Tensor:
        """Take a step and return the loss, detached, from before the update."""
        if self._is_eager:
            return train_step(self._spec, features, labels)
        try:
            tensors, kind = batch_tensors((features, labels))
        except TypeError as error:
            self._stay_eager(str(error))
            return train_step(self._spec, features, labels)
        self._forget_what_is_outdated()
        if kind in self._compared:
            self.n_replayed += 1
            return self._replays[kind](tensors)
        return self._prepare(kind, tensors, features, labels)

    def _prepare(
        self, kind: Hashable, tensors: list[Tensor], features: Any, labels: Any
    ) -> Tensor:
        """Take an eager step, and come closer to replaying such ones."""
        if kind in self._replays:
            replay = self._replays[kind]
            loss, is_equal = compared_step(replay, self._spec, features, labels, tensors)
            self._compared.add(kind)
            if not is_equal:
                self._stay_eager("the recorded step gave other numbers with another batch")
            return loss
        self._seen[kind] += 1
        if len(self._seen) > _MOST_KINDS:
            self._stay_eager("the shapes of the batches keep changing")
        is_first = kind == next(iter(self._seen))
        n_eager = self._eager_steps if is_first else _EAGER_STEPS_OF_OTHERS
        if self._seen[kind] <= n_eager or self._is_eager:
            return train_step(self._spec, features, labels)
        loss, replay = recorded_step(
            self._spec, features, labels, tensors, self._program, self._with_update
        )
        if isinstance(replay, NotRecordable):
            self._stay_eager(str(replay))
        else:
            self._replays[kind] = replay
        return loss

    def _stay_eager(self, reason: str) -> None:
        self._is_eager = True
        self._replays.clear()
        self._compared.clear()
        self._report(reason)

    def _forget_what_is_outdated(self) -> None:
        """Record anew if a hook has changed what a recording takes for fixed."""
        model = self._present_model()
        if model != self._model:
            self._model = model
            self._replays.clear()
            self._compared.clear()
        if self._with_update and self._present_options() != self._options:
            self._with_update = False
            self._replays.clear()
            self._compared.clear()

    def _present_model(self) -> list[Any]:
        """Return where the variables are, and how the modules behave."""
        model: list[Any] = [p.data_ptr() for p in self._parameters]
        model += [p.requires_grad for p in self._parameters]
        model += [m.training for m in self._modules]
        model += [len(m._forward_hooks) for m in self._modules]
        return model

    def _present_options(self) -> list[Any]:
        """Return the options of the optimizers, and which state they have."""
        options: list[Any] = [id(o.state) for o in self._spec.optimizers]
        options += [len(group["params"]) for group in self._groups]
        options += [group.get(name) for group, name in self._named_options]
        return options
