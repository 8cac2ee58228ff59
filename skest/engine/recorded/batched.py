# SPDX-License-Identifier: Apache-2.0
"""Recorded operations carried out for several members at once, along a leading axis.

The numbers of each member are those that the operation gives for it alone, bit for bit:
elementwise operations and reductions go through each member in the same order, and
products of matrices of MKL round in the same way in a batch as alone, where matrices
begin at a cache line as those that torch allocates. What has no rule here is done for one
member after the other.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from skest.engine.recorded.recording import (
    Call,
    NotRecordableError,
    Value,
    map_leaves,
    storage_of,
)

_aten = torch.ops.aten
_ALIGNMENT = 64  # bytes: a cache line, at which the allocator of torch begins

# As they are, on tensors with one more dimension in front.
_SAME = {
    _aten.alias.default,
    _aten._to_copy.default,
    _aten.clone.default,
    _aten.copy_.default,
    _aten.detach.default,
    _aten.fill_.Scalar,
    _aten.full_like.default,
    _aten.ones_like.default,
    _aten.view.dtype,
    _aten.zero_.default,
    _aten.zeros_like.default,
}
_LOSS = _aten.binary_cross_entropy_with_logits.default
# Those with a dimension, or several, at a position of their arguments.
_WITH_DIMS: Mapping[Any, tuple[int, ...]] = MappingProxyType(
    {
        _aten._log_softmax.default: (1,),
        _aten._log_softmax_backward_data.default: (2,),
        _aten._softmax.default: (1,),
        _aten._softmax_backward_data.default: (2,),
        _aten.cat.default: (1,),
        _aten.mean.dim: (1,),
        _aten.permute.default: (1,),
        _aten.select.int: (1,),
        _aten.slice.Tensor: (1,),
        _aten.split.Tensor: (2,),
        _aten.split_with_sizes.default: (2,),
        _aten.squeeze.dim: (1,),
        _aten.sum.dim_IntList: (1,),
        _aten.transpose.int: (1, 2),
        _aten.unbind.int: (1,),
        _aten.unsqueeze.default: (1,),
    }
)
# Without the argument, they have the first dimension.
_FIRST_BY_DEFAULT = {_aten.cat.default, _aten.slice.Tensor, _aten.unbind.int}
_SHAPED = {
    _aten._unsafe_view.default: _aten._unsafe_view.default,
    _aten.view.default: _aten.view.default,
}
# Memory of which nobody reads what was in it is each member's own.
_UNSET = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}


class Batched:
    """Carries out recorded calls for several members.

    Parameters
    ----------
    n_members : int
        How many there are.
    known : dict of Value to Tensor
        Stacked tensors, of shape (n_members, ...), for values that differ from member to
        member. Other values are constants, the same for all.
    recorded : sequence of torch.Generator
        Those that the recorded calls draw from.
    generators : sequence of sequence of torch.Generator
        Of each member those in their places.
    """

    def __init__(
        self,
        n_members: int,
        known: Mapping[Value, Tensor],
        recorded: Sequence[torch.Generator],
        generators: Sequence[Sequence[torch.Generator]],
    ) -> None:
        self._n = n_members
        self._stacked = dict(known)
        self._shared: dict[Value, Tensor] = {}
        self._apart: dict[Value, Sequence[Tensor]] = {}
        self._copies: dict[int | None, tuple[Tensor, Tensor]] = {}
        # Recorded is another object of Python for the same generator.
        of_each = zip(recorded, zip(*generators, strict=True), strict=True)
        self._generators = {one._cdata: own for one, own in of_each}  # type: ignore[attr-defined]

    def stacked(self, value: Value) -> Tensor:
        """Return the tensor of all members for a value."""
        if value in self._stacked:
            return self._stacked[value]
        shared = self._shared.get(value, value.tensor)
        return shared.expand(self._n, *shared.shape)

    def of_member(self, value: Value, j: int) -> Tensor:
        """Return the tensor of one member for a value."""
        if value in self._stacked and value not in self._apart:
            self._apart[value] = self._stacked[value].unbind()  # one call for all
        if value in self._apart:
            return self._apart[value][j]
        return self._shared.get(value, value.tensor)

    def carry_out(self, call: Call) -> None:
        """Carry out one call."""
        own = [v for v in call.arguments if v in self._stacked or v in self._apart]
        # Sparse tensors of members have different numbers of entries, and can't be
        # stacked.
        is_sparse = any(value not in self._stacked for value in own)
        generators = self._generators_of(call)
        if call.function in _UNSET:
            like = call.returned.tensor
            size = (self._n, *like.shape)
            returned: Any = torch.empty(size, dtype=like.dtype, device=like.device)
        elif not own and generators is None:
            args, kwargs = self._of_all((call.args, call.kwargs))
            self._note(call.returned, call.function(*args, **kwargs), self._shared)
            return
        elif generators is not None or is_sparse:
            returned = self._one_by_one(call, generators)
        elif (rule := _RULES.get(call.function)) is not None:
            returned = rule(*map_leaves(call.args, Value, self.stacked), **call.kwargs)
        else:
            returned = self._by_kind(call)
        if isinstance(returned, list) and isinstance(call.returned, Value):
            self._apart[call.returned] = returned
        else:
            self._note(call.returned, returned, self._stacked)
        for value in call.written:  # also where it was seen as another shape
            if value in self._stacked:
                copy = self._copies.get(storage_of(self._stacked[value]))
                if copy is not None:
                    copy[1].copy_(copy[0].reshape(copy[1].shape))

    def _generators_of(self, call: Call) -> Sequence[torch.Generator] | None:
        generator: Any = call.kwargs.get("generator")
        if generator is not None and generator._cdata in self._generators:
            return self._generators[generator._cdata]
        if call.is_random:
            raise NotRecordableError("its members draw from one generator")
        return None

    def _by_kind(self, call: Call) -> Any:
        """Carry out a call that has no rule of its own."""
        function, args = call.function, list(call.args)
        is_loss = function is _LOSS and _no_reduction(call)
        if is_loss or function in _SAME or torch.Tag.pointwise in function.tags:
            rank = max(value.tensor.ndim for value in call.arguments)
            args, kwargs = map_leaves(
                (args, call.kwargs), Value, lambda v: self._of_rank(v, rank)
            )
            return function(*args, **kwargs)
        if function in _WITH_DIMS:
            return self._with_dims(call)
        if function in _SHAPED:
            source = self.stacked(call.args[0])
            shaped = source.reshape(self._n, *call.args[1])
            if storage_of(shaped) != storage_of(source):  # of members apart in memory
                self._copies[storage_of(shaped)] = shaped, source
            return shaped
        if function is _aten.t.default:
            return self.stacked(call.args[0]).transpose(1, 2)
        if function in (_aten.sum.default, _aten.mean.default) and not call.kwargs:
            # As if each were all numbers of a tensor: in the order of its memory.
            numbers = self.stacked(call.args[0]).reshape(self._n, -1)
            total = numbers.sum(1)
            is_sum = function is _aten.sum.default
            return total if is_sum else total / numbers.shape[1]
        if function is _aten.expand.default:
            size = call.args[1]
            source = self._of_rank(call.args[0], len(size))
            return source.expand(self._n, *size)
        return self._one_by_one(call)

    def _with_dims(self, call: Call) -> Any:
        args, positions = list(call.args), _WITH_DIMS[call.function]
        if len(args) <= min(positions):
            if call.function not in _FIRST_BY_DEFAULT:
                return self._one_by_one(call)
            args += [0]
        if any(args[position] in (None, [], ()) for position in positions):
            return self._one_by_one(call)  # all dimensions
        for position in positions:
            args[position] = _shifted(args[position])
        return call.function(
            *map_leaves(args, Value, self.stacked),
            **map_leaves(call.kwargs, Value, self.stacked),
        )

    def _one_by_one(
        self, call: Call, generators: Sequence[torch.Generator] | None = None
    ) -> Any:
        """Carry out a call for one member after the other."""
        known = self._stacked.keys() | self._apart.keys()
        if not known.issuperset(call.written):
            # Each would undo what the one before it did.
            raise NotRecordableError("its members write to one tensor")
        found = []
        for j in range(self._n):
            own = partial(self.of_member, j=j)
            args, kwargs = map_leaves((call.args, call.kwargs), Value, own)
            if generators is not None:
                kwargs = {**kwargs, "generator": generators[j]}
            found.append(call.function(*args, **kwargs))
        first = found[0]
        if call.written:  # in place: the argument is the result
            (changed,) = call.written
            return self._stacked.get(changed, self._apart.get(changed))
        if isinstance(first, Tensor):
            return torch.stack(found) if first.layout == torch.strided else found
        return tuple(torch.stack(part) for part in zip(*found, strict=True))

    def _of_all(self, data: Any) -> Any:
        return map_leaves(data, Value, lambda v: self._shared.get(v, v.tensor))

    def _of_rank(self, value: Value, rank: int) -> Tensor:
        """Return a tensor that goes with those of members of so many dimensions."""
        if value not in self._stacked:
            return self._shared.get(value, value.tensor)
        tensor = self._stacked[value]
        if value.tensor.ndim in (0, rank) and tensor.ndim - 1 == rank:
            return tensor
        missing = rank - value.tensor.ndim
        return tensor.reshape(self._n, *[1] * missing, *tensor.shape[1:])

    @staticmethod
    def _note(returned: Any, found: Any, where: dict[Value, Tensor]) -> None:
        if isinstance(returned, Value):
            where[returned] = found
            return
        for value, tensor in zip(returned or (), found or (), strict=True):
            if isinstance(value, Value):
                where[value] = tensor


def _no_reduction(call: Call) -> bool:
    position, none = 4, 0
    given = call.args[position:] or [call.kwargs.get("reduction")]
    return bool(given[0] == none)


def _shifted(dims: Any) -> Any:
    if isinstance(dims, list | tuple):
        return [_shifted(dim) for dim in dims]
    # Counted from behind, a dimension keeps its number.
    return dims + 1 if dims >= 0 else dims


def aligned_empty(n_members: int, like: Tensor) -> Tensor:
    """Return memory for a tensor of each member, which begins at a cache line."""
    shape, stride = like.shape, like.stride()
    per_line = max(1, _ALIGNMENT // like.element_size())
    size = 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
    # Rounded up to whole lines, so that the next member begins at one as well.
    step = -(-size // per_line) * per_line
    memory = torch.empty(n_members * step, dtype=like.dtype, device=like.device)
    return memory.as_strided((n_members, *shape), (step, *stride))


def _is_aligned(tensor: Tensor) -> bool:
    size = tensor.element_size()
    begin = tensor.storage_offset() * size
    return begin % _ALIGNMENT == 0 and tensor.stride(0) * size % _ALIGNMENT == 0


def _aligned(tensor: Tensor) -> Tensor:
    """Return a tensor of which every member begins at a cache line."""
    if _is_aligned(tensor):
        return tensor
    return aligned_empty(len(tensor), tensor[0]).copy_(tensor)


def _mm(x: Tensor, y: Tensor) -> Tensor:
    return _product(_aten.mm.out, torch.bmm, x, y)


def _addmm(bias: Tensor, x: Tensor, y: Tensor) -> Tensor:
    bias = bias.unsqueeze(1) if bias.ndim == 2 else bias
    return _product(_aten.addmm.out, torch.baddbmm, x, y, bias)


def _product(
    one: Any, several: Callable[..., Tensor], x: Tensor, y: Tensor, *bias: Tensor
) -> Tensor:
    x, y = _aligned(x), _aligned(y)
    n, rows, columns = len(x), x.shape[1], y.shape[2]
    is_vector = columns == 1  # which has a kernel of its own
    # A result of whole cache lines is aligned for every member without our doing.
    if not is_vector and rows * columns * x.element_size() % _ALIGNMENT == 0:
        return several(*bias, x, y)
    out = aligned_empty(n, torch.empty((rows, columns), dtype=x.dtype, device=x.device))
    if not is_vector:
        return several(*bias, x, y, out=out)
    rows_of = [b.squeeze(1) for b in bias]
    apart = [tensor.unbind() for tensor in (*rows_of, x, y, out)]
    for *given, place in zip(*apart, strict=True):
        one(*given, out=place)
    return out


_RULES: Mapping[Any, Callable[..., Any]] = MappingProxyType(
    {_aten.mm.default: _mm, _aten.addmm.default: _addmm}
)
