# SPDX-License-Identifier: Apache-2.0
"""What a recorded step changes beside its results."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from skest.execution.program import Program
from skest.execution.recording import Call, Value
from skest.execution.simplification import Storages, leading_to

__all__ = ["Changes"]

_COPY_ROWS = torch.ops.aten.index_copy_.default


class Changes:
    """Variables, slots of optimizers, buffers and generators that a step changes.

    Of a tensor whose rows are replaced, only the rows of a batch are copied and restored:
    a table may take most of the memory.

    Parameters
    ----------
    inputs : sequence of Value
        The tensors of a batch.
    calls : sequence of Call
        The recorded step.
    storages : Storages
        Which values share memory.
    others : iterable of Tensor
        What shall be restored and compared as well.
    """

    def __init__(
        self,
        inputs: Sequence[Value],
        calls: Sequence[Call],
        storages: Storages,
        others: Iterable[Tensor],
    ) -> None:
        rows = _replaced_rows(calls, storages)
        ids = list(dict.fromkeys(rows.values()))
        self._tables = [(table.tensor, ids.index(i)) for table, i in rows.items()]
        self._whole = [
            value.tensor for value in _changed(calls, storages) if value not in rows
        ]
        self._whole += others
        self._ids = Program(inputs, leading_to(calls, ids, storages), ids, [], storages)
        self._generators = _generators(calls)

    def ids(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return the rows that a batch changes, for the methods below."""
        return self._ids(*tensors)

    def copied(self, ids: Sequence[Tensor]) -> list[Tensor]:
        """Return the present values, and the states of the generators."""
        values = [tensor.detach().clone() for tensor in self._whole]
        values += [table.detach()[ids[i]] for table, i in self._tables]
        return values + [generator.get_state() for generator in self._generators]

    @torch.no_grad()
    def restore(self, ids: Sequence[Tensor], values: Sequence[Tensor]) -> None:
        """Set everything to what `copied` returned."""
        left = iter(values)
        for tensor in self._whole:
            tensor.copy_(next(left))
        for table, i in self._tables:
            table.index_copy_(0, ids[i], next(left))
        for generator in self._generators:
            generator.set_state(next(left))

    def cover(self, ids: Sequence[Tensor]) -> bool:
        """Tell whether the rows are those that the present sparse gradients touch."""
        return all(
            torch.equal(ids[i].unique(), table.grad._indices()[0].unique())
            for table, i in self._tables
            if table.is_leaf and table.grad is not None and table.grad.is_sparse
        )


def _changed(calls: Sequence[Call], storages: Storages) -> list[Value]:
    values = dict.fromkeys(
        value if value.kind == "constant" else storages.root(value)
        for call in calls
        for value in call.written
    )
    return [value for value in values if value.kind == "constant"]


def _replaced_rows(calls: Sequence[Call], storages: Storages) -> dict[Value, Value]:
    """Return the tensors that change only by rows that the batch names, and the ids."""
    ids: dict[Value, set[Value | None]] = defaultdict(set)
    random = _random_roots(calls, storages)
    for call in calls:
        for value in call.written:
            by_rows = call.function is _COPY_ROWS and call.args[1] == 0
            ids[storages.root(value)].add(call.args[2] if by_rows else None)
    return {
        root: found
        for root, (found, *more) in ids.items()
        if root.kind == "constant"
        and found is not None
        and not more
        and storages.root(found) not in random
    }


def _random_roots(calls: Sequence[Call], storages: Storages) -> set[Value]:
    """Return all that depends on random numbers."""
    random: set[Value] = set()
    for call in calls:
        if call.is_random or any(storages.root(v) in random for v in call.arguments):
            random.update(map(storages.root, [*call.results, *call.written]))
    return random


def _generators(calls: Sequence[Call]) -> list[torch.Generator]:
    """Return the generators that the calls draw from."""
    found: list[torch.Generator] = [torch.default_generator]
    for call in calls:
        if call.is_random:
            own = [g for g in call.kwargs.values() if isinstance(g, torch.Generator)]
            touched = [*call.results, *call.arguments][:1]
            found += own or [_default_generator(v.tensor.device) for v in touched]
    return list(dict.fromkeys(found))


def _default_generator(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        return torch.cuda.default_generators[index]
    return torch.default_generator
