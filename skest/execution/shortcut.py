# SPDX-License-Identifier: Apache-2.0
"""`Shortcut`: the short way through a step that is replayed again and again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from skest.execution.assumptions import Assumptions
from skest.execution.batch import kind_of_tensor
from skest.execution.replay import Replay

__all__ = ["Shortcut"]


class Shortcut:
    """Replays a step for batches like the one before, and looks at little else.

    Between the operations of a step the caches of the processor hold little of Python, so
    that each look takes two or three times as long as by itself. If no code of others is
    called between two steps, nothing can change but the kind of the batch and the options
    of the optimizers, which are read in every step unless the update is recorded. Batches
    of one table differ in their number of rows only.

    Parameters
    ----------
    replay : Replay
        The step of the last batch.
    assumptions : Assumptions
        Knows the options of the optimizers.
    features : dict of str to Tensor
        The last batch, as the next parameter.
    labels : Tensor
        See `features`.
    of_table : bool
        Whether all batches are rows of one table.

    Attributes
    ----------
    is_for_several : bool
        Whether steps may be taken with nothing between them but the next batch, see
        `together`.
    """

    def __init__(
        self,
        replay: Replay,
        assumptions: Assumptions,
        features: dict[str, Tensor],
        labels: Tensor,
        of_table: bool,
    ) -> None:
        self._replay = replay
        self._assumptions = assumptions
        self.is_for_several = of_table and replay.has_whole_steps
        self._reads_options = not replay.has_update
        self._is_alike = self._has_as_many_rows if of_table else self._is_of_same_kind
        self._n_rows = len(labels) if of_table else 0
        self._names = [*features]
        self._kinds = [
            kind_of_tensor(tensor) for tensor in (*features.values(), labels)
        ]

    @staticmethod
    def find(
        replay: Replay,
        assumptions: Assumptions,
        features: Any,
        labels: Any,
        tensors: list[Tensor],
        of_table: bool,
    ) -> "Shortcut | None":
        """Return the short way through a step if there is one.

        Parameters
        ----------
        replay, assumptions
            See the class.
        features, labels
            The last batch, of any structure.
        tensors : list of Tensor
            All tensors in it, each once.
        of_table
            See the class.
        """
        is_same_every_time = replay.is_for_all_batches and not replay.others
        if not is_same_every_time or type(features) is not dict:
            return None
        parts = [*features.values(), labels]
        if [*map(id, parts)] != [*map(id, tensors)]:
            return None
        if any(tensor.layout != torch.strided for tensor in tensors):
            return None
        return Shortcut(replay, assumptions, features, labels, of_table)

    def __call__(self, features: dict[str, Tensor], labels: Tensor) -> Tensor | None:
        """Take the step and return the loss, or do nothing and return None."""
        if not self._is_alike(features, labels):
            return None
        if not (self._reads_options or self._assumptions.are_values_the_same()):
            return None
        return self._replay([*features.values(), labels])

    @contextmanager
    def together(self) -> Iterator[Callable[[Any, Any], Tensor | None]]:
        """Return what does as a call of this, while nothing else is done between calls."""
        is_ready = self._assumptions.are_values_the_same()
        with self._replay.together() as replayed:

            def take(features: dict[str, Tensor], labels: Tensor) -> Tensor | None:
                if not is_ready or len(labels) != self._n_rows:
                    return None
                return replayed(*features.values(), labels)

            yield take

    def _has_as_many_rows(self, features: dict[str, Tensor], labels: Tensor) -> bool:
        return len(labels) == self._n_rows

    def _is_of_same_kind(self, features: dict[str, Tensor], labels: Tensor) -> bool:
        try:
            kinds = [kind_of_tensor(tensor) for tensor in (*features.values(), labels)]
        except (AttributeError, RuntimeError, TypeError):  # of a kind of its own
            return False
        return kinds == self._kinds and [*features] == self._names
