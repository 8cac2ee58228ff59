# SPDX-License-Identifier: Apache-2.0
"""Recorded operations made fewer: without what nobody reads, and fused."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from skest.engine.recorded.recording import Call, Value, map_leaves, storage_of

_aten = torch.ops.aten

# What they return depends on shapes only.
_FILLED = {
    _aten.arange.default,
    _aten.arange.start,
    _aten.full.default,
    _aten.full_like.default,
    _aten.new_full.default,
    _aten.new_ones.default,
    _aten.new_zeros.default,
    _aten.ones.default,
    _aten.ones_like.default,
    _aten.scalar_tensor.default,
    _aten.zeros.default,
    _aten.zeros_like.default,
}
# Of the size of a float, to change it by its bits.
_INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
_WITH_NUMBERS = (
    _aten.add.Tensor,
    _aten.add_.Tensor,
    _aten.div.Tensor,
    _aten.div_.Tensor,
    _aten.mul.Tensor,
    _aten.mul_.Tensor,
    _aten.sub.Tensor,
    _aten.sub_.Tensor,
)
_MAKE_SPARSE = _aten._sparse_coo_tensor_with_dims_and_tensors.default
# With the position of the argument of `_MAKE_SPARSE` that is given back.
_PART_OF_SPARSE = {_aten._indices.default: 3, _aten._values.default: 4}


class Storages:
    """Which values of a recorded step share memory, and which memory it writes to.

    Parameters
    ----------
    calls : iterable of Call
        The step, as it was recorded.
    """

    def __init__(self, calls: Iterable[Call]) -> None:
        self._roots: dict[Value, Value] = {}
        self._merged: dict[Value, Value] = {}
        self._constants: dict[int, Value] = {}
        self._written: set[Value] = set()
        self._sparse: dict[Value, Call] = {}
        for call in calls:
            arguments = call.arguments
            for value in arguments:
                self._roots.setdefault(value, self._first_constant(value))
            # A result in the memory of an argument is a view of it, whatever the
            # operation is called.
            by_storage = {
                storage: self._roots[value]
                for value in arguments
                if (storage := storage_of(value.tensor)) is not None
            }
            # Sparse tensors have no storage of their own; see `part_of_sparse`.
            for value in call.results:
                storage = storage_of(value.tensor)
                root = value if storage is None else by_storage.get(storage, value)
                self._roots.setdefault(value, root)
            if call.function is _MAKE_SPARSE:
                self._sparse[call.returned] = call
            elif (part := self.part_of_sparse(call)) is not None:
                self._roots[call.returned] = self._roots[part]
            self._written.update(self._roots[value] for value in call.written)

    def root(self, value: Value) -> Value:
        """Return the value that stands for all that share its memory."""
        root = self._roots.get(value, value)
        # What a value was merged with may have been merged itself later.
        while root in self._merged:
            root = self._roots.get(self._merged[root], self._merged[root])
        return root

    def merge(self, value: Value, other: Value) -> None:
        """Let a value, and what shares its memory, be in the memory of another one."""
        if self.root(value) is not self.root(other):
            # `_roots` stays as recorded: who writes where is asked in these terms.
            self._merged[value] = other

    def mark_written(self, value: Value) -> None:
        """Note that somebody else will change the memory of a value."""
        self._written.add(self._roots.get(value, value))

    def is_written(self, value: Value) -> bool:
        """Tell whether the memory of a value changes in the step after it is made."""
        return self._roots.get(value, value) in self._written

    def part_of_sparse(self, call: Call) -> Value | None:
        """Return the ids or values that a sparse tensor was made of, if asked for."""
        made = self._sparse.get(call.arguments[0]) if call.arguments else None
        if made is None or call.function not in _PART_OF_SPARSE:
            return None
        part: Value = made.args[_PART_OF_SPARSE[call.function]]
        return part

    def place(self, value: Value) -> Hashable:
        """Return what two values have in common if they are one and the same."""
        tensor = value.tensor
        if tensor.layout != torch.strided:
            return value
        return (
            self._roots.get(value, value),
            tensor.shape,
            tensor.stride(),
            tensor.storage_offset(),
            tensor.dtype,
            # Bits that torch resolves lazily: x and x.conj() have the same memory.
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def is_view(self, call: Call) -> bool:
        """Tell whether a call only looks at memory that is there."""
        return bool(call.results) and all(
            self._roots.get(value, value) is not value for value in call.results
        )

    def _first_constant(self, value: Value) -> Value:
        """Constants may share memory; batches may, too, but not in every step."""
        if value.kind != "constant":
            return value
        storage = storage_of(value.tensor)
        return value if storage is None else self._constants.setdefault(storage, value)


def rewritten(calls: Sequence[Call]) -> list[Call]:
    """Write some calls as others that do the same.

    "New memory, then a copy of a tensor into it" is a clone: autograd makes gradients of
    their own that way while others look at them. A number that is added to all elements
    of one tensor, one by one, is added to the tensor; see `skest.engine.recorded.step`.
    """
    written: list[Call] = []
    for call in calls:
        before = written[-1] if written else None
        if (
            before is not None
            and before.function is _aten.new_empty_strided.default
            and call.function is _aten.copy_.default
            and call.args[0] is before.returned
            and call.args[0].tensor.dtype == call.args[1].tensor.dtype
        ):
            written[-1] = Call(_aten.clone.default, call.args[1:2], {}, before.returned)
        elif call.function is _aten._foreach_add_.Scalar and (
            whole := _joined([value.tensor for value in call.args[0]])
        ):
            args = (whole, *call.args[1:])
            written.append(Call(_aten.add_.Tensor, args, {}, whole))
        else:
            written.append(call)
    return written


def _joined(tensors: Sequence[Tensor]) -> Value | None:
    """Return the tensor whose elements these are, in their order, if there is one."""
    first, size = tensors[0], len(tensors)
    storages = {storage_of(tensor) for tensor in tensors}
    places = [tensor.storage_offset() for tensor in tensors]
    if len(storages) > 1 or places != list(range(size)) or any(t.ndim for t in tensors):
        return None
    return Value(first.as_strided((size,), (1,), 0), "constant")


def simplified(
    calls: Sequence[Call],
    outputs: Sequence[Value],
    storages: Storages,
    *,
    is_training: bool = True,
) -> tuple[list[Call], list[Value]]:
    """Return the calls that are needed for the outputs and for what the step changes.

    Parameters
    ----------
    calls : sequence of Call
        The step, as it was recorded.
    outputs : sequence of Value
        What shall be returned.
    storages : Storages
        Of `calls`.
    is_training : bool, default=True
        Whether it is a step of training, which changes variables and always has the
        recorded shapes. Otherwise variables stay, and the number of rows may differ.

    Returns
    -------
    calls : list of Call
        Without views that lead back to where they began, copies of what nobody changes,
        what is the same in every step or was computed before, and what nobody reads.
    outputs : list of Value
        Which of the values left stands for each output.
    """
    simplifier = _Simplifier(storages, is_training)
    left = [call for call in map(simplifier.simplified, calls) if call is not None]
    outputs = [simplifier.stands_for(value) for value in outputs]
    return _needed(left, outputs, storages), outputs


class _Simplifier:
    """Goes through the calls once and replaces values by equal ones."""

    def __init__(self, storages: Storages, is_training: bool) -> None:
        self._storages = storages
        self._is_training = is_training
        self._replaced: dict[Value, Value] = {}
        self._at: dict[Hashable, Value] = {}
        self._folded: set[Value] = set()

    def stands_for(self, value: Value) -> Value:
        """Return the value that is left for a value."""
        while value in self._replaced:
            value = self._replaced[value]
        return value

    def simplified(self, call: Call) -> Call | None:
        """Return a call of values that are left, or None if it is not needed."""
        if not self._replaced.keys().isdisjoint([*call.arguments, *call.results]):
            parts = (call.args, call.kwargs, call.returned)
            call = Call(call.function, *map_leaves(parts, Value, self.stands_for))
        # It stays where it is, whatever it computes: others read what it changes.
        if call.written:
            return call
        for value in call.arguments:
            self._at.setdefault(self._storages.place(value), value)
        # What compilers call copy propagation.
        equal = self._equal(call)
        if equal is not None:
            for result, other in zip(call.results, equal, strict=True):
                if result is not other:
                    self._replaced[result] = other
                    self._storages.merge(result, other)
            return None
        # And constant folding.
        return None if self._is_same_in_every_step(call) else call

    def _equal(self, call: Call) -> Sequence[Value] | None:
        """Return what the results of a call equal, or None."""
        part = self._storages.part_of_sparse(call)
        if part is not None:
            return [self.stands_for(part)]
        if self._storages.is_view(call):
            places = [self._storages.place(value) for value in call.results]
            for place, value in zip(places, call.results, strict=True):
                self._at.setdefault(place, value)
            found = [self._at[place] for place in places]
            # A view is left out as a whole or not at all.
            if not any(value in call.results for value in found):
                return found
        source = _copied(call)
        if source is None or not self._are_unwritten([source, *call.results]):
            return None
        return [source]

    def _is_same_in_every_step(self, call: Call) -> bool:
        """Turn results into constants that depend on nothing but shapes and constants."""
        is_shape_fixed = self._is_training or not call.arguments
        fixed = (call.function in _FILLED and is_shape_fixed) or (
            bool(call.arguments)
            and not call.is_random
            and all(map(self._is_known, call.arguments))
        )
        if not fixed or not self._are_unwritten(call.results):
            return False
        self._folded.update(call.results)
        for value in call.results:
            # Its tensor was computed when the step was recorded.
            value.kind = "constant"
        return True

    def _is_known(self, value: Value) -> bool:
        stays = not self._is_training and value.kind == "constant"
        # In training a variable is a constant to the program, but not its numbers.
        return value in self._folded or (stays and self._are_unwritten([value]))

    def _are_unwritten(self, values: Iterable[Value]) -> bool:
        return not any(self._storages.is_written(value) for value in values)


def _copied(call: Call) -> Value | None:
    """Return the value that a call only copies."""
    if call.function is _aten.cat.default and len(call.args[0]) == 1:
        source = call.args[0][0]
    elif call.function is _aten.clone.default:
        source = call.args[0]
    else:
        return None
    before, after = source.tensor, call.results[0].tensor
    same = before.shape == after.shape and before.dtype == after.dtype
    if before.layout == torch.strided:
        same = same and before.stride() == after.stride()
    return source if same else None


def _needed(
    calls: Sequence[Call], outputs: Iterable[Value], storages: Storages
) -> list[Call]:
    """Return the calls that lead to outputs, and those with an effect that lasts.

    That is a change of what outlives the step, and a check that can but fail.
    """
    # What compilers call dead code, of which autograd leaves much.
    read = set(outputs)
    alive = {storages.root(value) for value in read}
    kept = []
    # From the end, so that all readers of a result are known when its call comes.
    for call in reversed(calls):
        written = [storages.root(value) for value in call.written]
        is_check = call.returned is None and not written  # it can but fail
        # Constants outlive a step: they are variables, slots and buffers.
        changes = any(root.kind == "constant" for root in written)
        lasts = is_check or call.is_random or changes
        if lasts:
            needed = True
        elif storages.is_view(call) and not written:
            needed = not read.isdisjoint(call.results)
        else:
            # Whoever reads the memory later needs it, by whatever view.
            made = {*written, *map(storages.root, call.results)}
            needed = not alive.isdisjoint(made)
        if needed:
            read.update(call.arguments)
            alive.update(map(storages.root, call.arguments))
            kept.append(call)
    return kept[::-1]


def quicker_on_cpu(calls: Sequence[Call]) -> list[Call]:
    """Write what is done with rows of tables as it takes the least time on a CPU.

    Rows are looked up by `index_select`, which has a variant that allocates nothing;
    tables of one column are looked up in one dimension, by a loop without slices; and
    zeros are set row by row by "and" with bits that are all 0 or all 1, which is done
    for several numbers at once. All of it gives the same numbers bit for bit.

    Parameters
    ----------
    calls : sequence of Call
        A step of fixed shapes.

    Returns
    -------
    list of Call

    Examples
    --------
    >>> import torch
    >>> from skest.engine.recorded.recording import Recorder
    >>> from skest.engine.recorded.simplify import quicker_on_cpu
    >>> ids, table = torch.tensor([2, 0]), torch.arange(3.0)[:, None]
    >>> with Recorder([ids]) as recorder:
    ...     rows = torch.nn.functional.embedding(ids, table)
    >>> [call.function.name() for call in quicker_on_cpu(recorder.calls)]
    ['aten::squeeze.dim', 'aten::index_select', 'aten::unsqueeze']
    """
    written: list[Call] = []
    for call in calls:
        write = _QUICKER.get(call.function)
        is_on_cpu = all(v.tensor.device.type == "cpu" for v in call.arguments)
        # `write` that returns False has written nothing.
        if write is None or not is_on_cpu or not write(call, written):
            written.append(call)
    return written


def with_tensors_for_numbers(calls: Sequence[Call]) -> list[Call]:
    """Write operations with a number of Python on a CPU as those with a tensor.

    It is made once then, and not in every step, which takes longer than a small
    operation itself. It is rounded as the operations do it.

    Parameters
    ----------
    calls : sequence of Call
        A step that was simplified: equal numbers are no longer seen to be equal.

    Returns
    -------
    list of Call

    Examples
    --------
    >>> import torch
    >>> from skest.engine.recorded.recording import Recorder
    >>> from skest.engine.recorded.simplify import with_tensors_for_numbers
    >>> x = torch.ones(2)
    >>> with Recorder([x]) as recorder:
    ...     y = x * 0.5
    >>> (call,) = with_tensors_for_numbers(recorder.calls)
    >>> call.args[1].tensor
    tensor(0.5000)
    """
    return [_with_tensor(call) if _has_number(call) else call for call in calls]


def _has_number(call: Call) -> bool:
    if call.function not in _WITH_NUMBERS or not _is_plain(call.args[0]):
        return False
    is_on_cpu = call.args[0].tensor.device.type == "cpu"
    return is_on_cpu and type(call.args[1]) in (int, float)


def _with_tensor(call: Call) -> Call:
    value, number = call.args
    # Via float64, as the kernels take a number of Python, and only then to the type of
    # the tensor.
    exact = torch.tensor(number, dtype=torch.float64 if type(number) is float else None)
    constant = Value(exact.to(value.tensor.dtype), "constant")
    return Call(call.function, (value, constant), call.kwargs, call.returned)


def _write_lookup(call: Call, written: list[Call]) -> bool:
    """Write a look-up of rows, unless it is one of several ids for each row."""
    table, ids = call.args[:2]
    if call.function is _aten.index_select.default:
        ids = call.args[2]
        if call.args[1] != 0:
            return False
    if ids.tensor.ndim != 1 or table.tensor.ndim != 2:
        return False
    function = _aten.index_select.default
    if not _has_one_column(table):
        written.append(Call(function, (table, 0, ids), {}, call.returned))
        return True
    # (n_ids,) where the recorded call has (n_ids, 1).
    found = Value(call.returned.tensor.detach().squeeze(1), "result")
    written.append(Call(function, (_column(table, written), 0, ids), {}, found))
    written.append(Call(_aten.unsqueeze.default, (found, 1), {}, call.returned))
    return True


def _write_change_of_rows(call: Call, written: list[Call]) -> bool:
    """Write a change of some numbers of a table of one column."""
    table, dim, ids, rows = call.args
    if dim != 0 or not _has_one_column(table):
        return False
    # A write to the column is one to the table: they share memory.
    column = _column(table, written)
    args = (column, 0, ids, _column(rows, written))
    written.append(Call(call.function, args, call.kwargs, column))
    return True


def _write_zeros(call: Call, written: list[Call]) -> bool:
    """Write zeros into whole rows."""
    source, mask, number = call.args
    integer = _INTEGERS.get(source.tensor.dtype)
    is_by_row = mask.tensor.shape == (*source.tensor.shape[:-1], 1)
    # Not 0.0, which might be -0.0: that has a bit.
    is_zero = type(number) is int and number == 0
    if integer is None or not is_by_row or not is_zero or source.tensor.shape[-1] == 1:
        return False
    # One is where zeros shall be, so that 1 less has no bits there, and all elsewhere.
    ones = Value(mask.tensor.to(integer), "result")
    bits = Value(ones.tensor - 1, "result")
    before = Value(source.tensor.detach().view(integer), "result")
    after = Value(call.returned.tensor.detach().view(integer), "result")
    view, dtype = _aten.view.dtype, source.tensor.dtype
    written += [
        Call(_aten._to_copy.default, (mask,), {"dtype": integer}, ones),
        Call(_aten.sub.Tensor, (ones, 1), {}, bits),
        Call(view, (source, integer), {}, before),
        Call(_aten.bitwise_and.Tensor, (before, bits), {}, after),
        Call(view, (after, dtype), {}, call.returned),
    ]
    return True


def _write_dense(call: Call, written: list[Call]) -> bool:
    """Write a sparse gradient that is made dense as what it does: rows added to zeros."""
    # A gradient is often cloned on its way from the backward pass to the optimizer.
    makers = {other.results[0]: other for other in written if other.results}
    sources = [call.args[0]]
    while (made := makers.get(sources[-1])) and made.function is _aten.clone.default:
        sources.append(made.args[0])
    if made is None or made.function is not _MAKE_SPARSE or made.args[0] != 1:
        return False
    # (1, n_ids) and (n_ids, dimension).
    indices, values = made.args[3:5]
    # Sums of bfloat16 are rounded at every row by the one and at last by the other.
    if not _is_plain(values):
        return False
    memory = {storage_of(source.tensor._values()) for source in sources}
    changed = [value for other in written for value in other.written]
    if any(v in sources or storage_of(v.tensor) in memory for v in changed):
        return False  # a gradient that was scaled, say
    # Ids that occur twice add up, in the order in which `_to_dense` adds them.
    ids = Value(indices.tensor.detach().squeeze(0), "result")
    zeros = Value(torch.zeros_like(call.returned.tensor), "result")
    size = [*zeros.tensor.shape]
    options = {"dtype": zeros.tensor.dtype, "device": zeros.tensor.device}
    added = zeros, 0, ids, values
    written += [
        Call(_aten.squeeze.dim, (indices, 0), {}, ids),
        Call(_aten.zeros.default, (size,), options, zeros),
        Call(_aten.index_add.default, added, {}, call.returned),
    ]
    return True


def _is_plain(value: Any) -> bool:
    """Tell whether it is a tensor with numbers of a type that needs no other to compute."""
    return (
        isinstance(value, Value)
        and value.tensor.dtype in _INTEGERS
        and value.tensor.layout == torch.strided
    )


def _write_stack(call: Call, written: list[Call]) -> bool:
    """Write a stack, which allocates, as what it does: tensors one behind the other."""
    tensors, *dim = call.args
    position = dim[0] if dim else 0
    unsqueeze = _aten.unsqueeze.default
    views = [Value(v.tensor.detach().unsqueeze(position), "result") for v in tensors]
    written += [
        Call(unsqueeze, (value, position), {}, view)
        for value, view in zip(tensors, views, strict=True)
    ]
    written.append(Call(_aten.cat.default, (views, position), {}, call.returned))
    return True


def _has_one_column(table: Value) -> bool:
    return table.tensor.ndim == 2 and table.tensor.shape[1] == 1


def _column(table: Value, written: list[Call]) -> Value:
    """Write a look at a table of one column as a vector."""
    column = Value(table.tensor.detach().squeeze(1), "result")
    written.append(Call(_aten.squeeze.dim, (table, 1), {}, column))
    return column


_QUICKER: Mapping[Any, Callable[[Call, list[Call]], bool]] = MappingProxyType(
    {
        _aten.embedding.default: _write_lookup,
        _aten.index_select.default: _write_lookup,
        _aten.index_add_.default: _write_change_of_rows,
        _aten.index_copy_.default: _write_change_of_rows,
        _aten.masked_fill.Scalar: _write_zeros,
        _aten._to_dense.default: _write_dense,
        _aten.stack.default: _write_stack,
    }
)
