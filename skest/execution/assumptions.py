# SPDX-License-Identifier: Apache-2.0
"""`Assumptions`: what recorded steps take for granted, and whether it still holds."""

from collections.abc import Hashable, Mapping
from operator import is_
from typing import Any

from skest.execution.impurity import are_same
from skest.execution.watching import fixed_parts, options_of_updates, slots_of_updates
from skest.spec import EstimatorSpec

__all__ = ["Assumptions"]


class Assumptions:
    """What must be as it was when steps were recorded, and is compared from time to time.

    A recording is compared with an eager step once. In later steps it is right as long as

    - the model is the same: its modules, what its functions read, where its variables
      are (`skest.execution.watching.fixed_parts`);
    - if the update is recorded, the options of the optimizers are the same, and what
      their code remembers in Python (`options_of_updates`);
    - if the update is recorded, the slots of the optimizers are the same tensors
      (`slots_of_updates`). A step of another kind may add slots for parameters that had
      no gradient before;
    - a step begins as an eager one, without gradients: a `Replay` sets those of all that
      is trained, whatever a step of another kind has left.

    The first three are looked at here, the last one is done in every step.

    Parameters
    ----------
    spec : EstimatorSpec
        Model of mode TRAIN.
    """

    def __init__(self, spec: EstimatorSpec) -> None:
        self._spec = spec
        self._model = fixed_parts(spec)
        self._options = options_of_updates(spec)
        self._optimizers = spec.optimizers
        self._values = self._option_values()
        self._slots = slots_of_updates(spec)

    def model_has_changed(self) -> bool:
        """Look at the model; what it is now is what is assumed from then on."""
        before, self._model = self._model, fixed_parts(self._spec)
        return before != self._model

    def options_have_changed(self, *, at_a_glance: bool = False) -> bool:
        """Look at the optimizers without their slots.

        Parameters
        ----------
        at_a_glance : bool, default=False
            Whether the code of the optimizers is known, so that nothing but their
            options can change. It takes a microsecond then.
        """
        if at_a_glance and self.are_values_the_same():
            return False
        self._values = self._option_values()
        before, self._options = self._options, options_of_updates(self._spec)
        return not are_same(before, self._options)

    def slots_have_changed(self) -> bool:
        """Look at the slots between two steps."""
        slots = slots_of_updates(self._spec)
        return len(slots) != len(self._slots) or _have_moved(self._slots, slots)

    def slots_were_replaced(self) -> bool:
        """Look at the slots after a step in which code of optimizers was called.

        Those that are there now are assumed from then on, new ones among them.
        """
        before, self._slots = self._slots, slots_of_updates(self._spec)
        return _have_moved(before, self._slots)

    def are_values_the_same(self) -> bool:
        """Tell whether all options are the very objects that were looked at last."""
        left = iter(self._values)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                values = next(left, ())
                if len(group) != len(values):
                    return False
                if not all(map(is_, group.values(), values)):
                    return False
        return next(left, None) is None

    def _option_values(self) -> list[list[Any]]:
        return [[*group.values()] for o in self._optimizers for group in o.param_groups]


def _have_moved(
    before: Mapping[Hashable, tuple[Any, ...]],
    after: Mapping[Hashable, tuple[Any, ...]],
) -> bool:
    """Tell whether slots are other tensors than before, or elsewhere."""
    return any(
        place not in after
        or slot[0] is not after[place][0]
        or slot[1:] != after[place][1:]
        for place, slot in before.items()
    )
