# SPDX-License-Identifier: Apache-2.0
"""Values of tensors that are drawn only if somebody reads them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skest.distributed.lazy_memory import LazyZeros

__all__ = ["PostponedValues"]

_DESCRIBING = (
    "data device dtype grad grad_fn is_leaf is_sparse itemsize layout nbytes ndim "
    "requires_grad retains_grad shape is_cpu is_cuda is_meta is_quantized is_nested"
).split()
_METHODS = (
    "detach dim element_size is_complex is_contiguous is_floating_point is_shared numel "
    "nelement requires_grad_ register_hook register_post_accumulate_grad_hook size "
    "storage_offset stride __hash__ __len__ new_empty new_zeros new_ones new_full"
).split()
_FUNCTIONS = (
    "empty_like full_like is_complex is_floating_point numel ones_like zeros_like"
)
# To call them tells nothing of the values.
_READS_NOTHING = frozenset(
    [
        *(getattr(Tensor, name).__get__ for name in _DESCRIBING),
        *(getattr(Tensor, name).__set__ for name in ("data", "grad", "requires_grad")),
        torch._has_compatible_shallow_copy_type,  # asked by `nn.Module.to`
        *(getattr(Tensor, name) for name in _METHODS),
        *(getattr(torch, name) for name in _FUNCTIONS.split()),
    ]
)


class _Postponed(NamedTuple):
    """A tensor as long as it lives, what fills it, and its value if that is one."""

    find: Callable[[], Tensor | None]
    fill: Callable[[Tensor], object]
    constant: Tensor | None


class PostponedValues:
    """Tensors that are zeros until something reads or writes them.

    They are known by where their memory is, so that views and parameters made of them
    are known, too.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.postponed_values import PostponedValues
    >>> postponed = PostponedValues()
    >>> weight = postponed.tensor(torch.empty(2, 2), lambda tensor: tensor.fill_(7))
    >>> postponed.before(torch.Tensor.dim, (weight,), {})
    >>> weight.sum()
    tensor(0.)
    >>> postponed.before(torch.sum, (weight,), {})
    >>> weight.sum()
    tensor(28.)
    """

    def __init__(self) -> None:
        self._left: dict[int, _Postponed] = {}

    def tensor(
        self,
        empty: Tensor,
        fill: Callable[[Tensor], object],
        constant: Tensor | None = None,
    ) -> Tensor:
        """Return a tensor whose values are postponed.

        Parameters
        ----------
        empty : Tensor
            As it shall be, without values, on the CPU.
        fill : callable
            Gives a tensor its values, in place.
        constant : Tensor, default=None
            The number that all its values are.
        """
        made = LazyZeros(tuple(empty.shape), empty.dtype)
        self._left[_place(made.tensor)] = _Postponed(made.weakly(), fill, constant)
        return made.tensor

    def expanded(self, tensor: Tensor) -> Tensor:
        """Return a constant that nobody has read or written as one number in memory.

        It can't be written to. All other tensors are returned as they are.
        """
        found = self._left.get(_place(tensor))
        if found is None or found.constant is None or found.find() is None:
            return tensor
        return found.constant.expand(tensor.shape)

    def settle_constants(self) -> None:
        """Fill those that are still in use."""
        for place, found in list(self._left.items()):
            if found.constant is not None:
                self._fill(place)

    def before(
        self, func: Any, args: Iterable[Any], options: Mapping[str, Any]
    ) -> None:
        """Give the arguments of a function their values, if it may read them."""
        if self._left and func not in _READS_NOTHING:
            for tensor in _tensors([*args, *options.values()]):
                if not (func is Tensor.to and _is_kept(tensor, args, options)):
                    self._fill(_place(tensor))

    def settle(self, elsewhere: Iterable[Tensor]) -> None:
        """Fill what is left, but for tensors whose values are elsewhere."""
        for place in self._left.keys() - {_place(tensor) for tensor in elsewhere}:
            self._fill(place)
        self._left.clear()

    def _fill(self, place: int) -> None:
        found = self._left.pop(place, None)
        tensor = None if found is None else found.find()
        if found is not None and tensor is not None:
            with torch.no_grad():
                found.fill(tensor)


def _place(tensor: Tensor) -> int:
    """Return where the memory of a tensor begins; 0 is nowhere."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return 0
    return tensor.untyped_storage().data_ptr()


def _is_kept(tensor: Tensor, args: Iterable[Any], options: Mapping[str, Any]) -> bool:
    """Return whether ``tensor.to`` returns the tensor itself."""
    none = tensor.new_empty((0,) * tensor.ndim)
    return none.to(*list(args)[1:], **options) is none


def _tensors(values: Iterable[Any]) -> Iterable[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif isinstance(value, dict):
            yield from _tensors(value.values())
