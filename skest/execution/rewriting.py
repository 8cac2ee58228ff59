# SPDX-License-Identifier: Apache-2.0
"""Writes some calls of a recorded step as others that do the same in less time."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from skest.execution.recording import Call, Value

__all__ = ["quicker_on_cpu", "with_tensors_for_numbers"]

_aten = torch.ops.aten
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


def quicker_on_cpu(calls: Sequence[Call]) -> list[Call]:
    """Write what is done with rows of tables as it takes the least time on a CPU.

    Rows are looked up by `index_select`, which has a variant that allocates nothing;
    tables of one column are looked up in one dimension, by a loop without slices; and
    zeros are set row by row by "and" with bits that are all 0 or all 1, which is done
    for several numbers at once. A mean is a sum and a division, without what torch calls
    in between. All of it gives the same numbers bit for bit.

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
    >>> from skest.execution.recording import Recorder
    >>> from skest.execution.rewriting import quicker_on_cpu
    >>> ids, table = torch.tensor([2, 0]), torch.arange(3.0)[:, None]
    >>> with Recorder([ids]) as recorder:
    ...     rows = torch.nn.functional.embedding(ids, table)
    >>> [call.function.name() for call in quicker_on_cpu(recorder.recording.calls)]
    ['aten::squeeze.dim', 'aten::index_select', 'aten::unsqueeze']
    """
    written: list[Call] = []
    for call in calls:
        write = _QUICKER.get(call.function)
        is_on_cpu = all(v.tensor.device.type == "cpu" for v in call.arguments)
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
    >>> from skest.execution.recording import Recorder
    >>> from skest.execution.rewriting import with_tensors_for_numbers
    >>> x = torch.ones(2)
    >>> with Recorder([x]) as recorder:
    ...     y = x * 0.5
    >>> (call,) = with_tensors_for_numbers(recorder.recording.calls)
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
    found = Value(call.returned.tensor.detach().squeeze(1), "result")
    written.append(Call(function, (_column(table, written), 0, ids), {}, found))
    written.append(Call(_aten.unsqueeze.default, (found, 1), {}, call.returned))
    return True


def _write_change_of_rows(call: Call, written: list[Call]) -> bool:
    """Write a change of some numbers of a table of one column."""
    table, dim, ids, rows = call.args
    if dim != 0 or not _has_one_column(table):
        return False
    column = _column(table, written)
    args = (column, 0, ids, _column(rows, written))
    written.append(Call(call.function, args, call.kwargs, column))
    return True


def _write_zeros(call: Call, written: list[Call]) -> bool:
    """Write zeros into whole rows."""
    source, mask, number = call.args
    integer = _INTEGERS.get(source.tensor.dtype)
    is_by_row = mask.tensor.shape == (*source.tensor.shape[:-1], 1)
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


def _write_mean(call: Call, written: list[Call]) -> bool:
    """Write a mean of all numbers as what it does: their sum, then a division."""
    source = call.args[0]
    if call.kwargs or not _is_plain(source):
        return False
    total = Value(torch.empty_like(call.returned.tensor), "result")
    divided = total, source.tensor.numel()
    written.append(Call(_aten.sum.default, (source,), {}, total))
    written.append(Call(_aten.div.Tensor, divided, {}, call.returned))
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
        _aten.stack.default: _write_stack,
        _aten.mean.default: _write_mean,
    }
)
