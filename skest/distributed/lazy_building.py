# SPDX-License-Identifier: Apache-2.0
"""How a model is built whose tables will be in parameter servers."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer
from torch.overrides import TorchFunctionMode

from skest.distributed.lazy_memory import LazyZeros
from skest.distributed.postponed_values import PostponedValues
from skest.feature_columns.lookup import own_values

__all__ = ["LazyBuilding"]

_LARGE = 1 << 20
_ZEROS = (torch.zeros, torch.zeros_like)
_LIKE = (torch.zeros_like, torch.full_like)
_DRAWS = (nn.init.normal_, nn.init.uniform_)
_KNOWN_OPTIONS = frozenset(
    ("dtype", "device", "fill_value", "memory_format", "requires_grad", "size")
)
_DRAWN_AT_ONCE = 1 << 20


class LazyBuilding(TorchFunctionMode):
    """Large tensors take no memory before something is written to them.

    Zeros are as they would be, but can't be resized. Other numbers that
    ``torch.full_like`` makes of a parameter are there as soon as something reads or
    writes them, and at the latest when `built` is called, which tells apart the slots of
    optimizers: those that are untouched can't be written to from then on, and
    `load_named_state` and servers replace them.

    Parameters
    ----------
    keeps_draws : bool, default=True
        Whether random values of tables are kept. If not, tables of feature columns are
        zeros, and so are large parameters that `torch.nn.init.normal_` or
        `torch.nn.init.uniform_` fills, as ``nn.Embedding`` does, until something reads
        or writes them: then they are what they would be. Numbers that come from a
        generator which others use are drawn all the same, so that later ones do not
        change.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.lazy_building import LazyBuilding
    >>> weight = torch.nn.Parameter(torch.empty(10**6, 16))
    >>> with LazyBuilding() as building:
    ...     adagrad = torch.optim.Adagrad([weight], initial_accumulator_value=0.1)
    >>> building.built([adagrad])
    >>> slot = adagrad.state[weight]["sum"]
    >>> slot.shape, slot.untyped_storage().nbytes()
    (torch.Size([1000000, 16]), 4)
    """

    def __init__(self, *, keeps_draws: bool = True) -> None:
        super().__init__()
        self._keeps_draws = keeps_draws
        self._postponed = PostponedValues()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ZEROS or func in _LIKE:
            made = self._constant(func, args, kwargs)
            if made is not None:
                return made
        elif not self._keeps_draws:
            if func is own_values and args[0].device.type == "cpu":
                empty, make = args
                return self._postponed.tensor(empty, lambda t: t.copy_(make()))
            if func in _DRAWS:
                options = inspect.signature(func).bind(*args, **kwargs).arguments
                tensor = options.pop("tensor")
                if _is_large_parameter(tensor):
                    fill = _draw_in_vain(func, tensor, options)
                    tensor.data = self._postponed.tensor(tensor, fill)
                    return tensor
        self._postponed.before(func, args, kwargs)
        return func(*args, **kwargs)

    def built(self, optimizers: Iterable[Optimizer]) -> None:
        """Give constants their memory, but for slots of optimizers.

        Parameters
        ----------
        optimizers : iterable of Optimizer
            Of the model that was built.
        """
        for optimizer in optimizers:
            for slots in optimizer.state.values():
                for name, slot in slots.items():
                    if isinstance(slot, Tensor):
                        slots[name] = self._postponed.expanded(slot)
        self._postponed.settle_constants()

    def settle(self, elsewhere: Iterable[Tensor]) -> None:
        """Give what was built the values that were left out.

        Parameters
        ----------
        elsewhere : iterable of Tensor
            What need not have them, because it will come from somewhere else.
        """
        self._postponed.settle(elsewhere)

    def _constant(
        self, func: Any, args: Any, options: Mapping[str, Any]
    ) -> Tensor | None:
        """Return a large tensor of one value that needs no memory yet, or None."""
        described = _large_constant(func, args, options)
        if described is None:
            return None
        value = 0
        if func is torch.full_like:
            value = args[1] if len(args) > 1 else options["fill_value"]
        if not value:
            made = LazyZeros(tuple(described.shape), described.dtype).tensor
        elif isinstance(args[0], nn.Parameter):
            one = torch.full((), value, dtype=described.dtype)
            made = self._postponed.tensor(described, lambda t: t.fill_(one), one)
        else:
            return None
        return made.requires_grad_(described.requires_grad)


def _large_constant(func: Any, args: Any, options: Mapping[str, Any]) -> Tensor | None:
    """Return what a function will make, on the meta device; None if it is not large."""
    device = options.get("device")
    if func in _LIKE:
        source = args[0] if args else None
        if not isinstance(source, Tensor) or not source.is_contiguous():
            return None
        device = source.device if device is None else device
    device = torch.empty(0).device if device is None else torch.device(device)
    if options.keys() - _KNOWN_OPTIONS or device.type != "cpu":
        return None
    described = func(*args, **{**options, "device": "meta"})
    return described if described.nbytes >= _LARGE else None


def _is_large_parameter(tensor: Any) -> bool:
    is_one = isinstance(tensor, nn.Parameter) and tensor.device.type == "cpu"
    return is_one and tensor.nbytes >= _LARGE and tensor.is_contiguous()


def _draw_in_vain(
    func: Any, tensor: Tensor, options: dict[str, Any]
) -> Callable[[Tensor], object]:
    """Draw what would fill a tensor, and return what draws the same again.

    Parts draw the same numbers as the whole, as long as none of them has less than 16,
    which torch draws in another way.
    """
    again = torch.Generator()
    again.set_state((options.get("generator") or torch.default_generator).get_state())
    left = tensor.numel()
    drawn = torch.empty(
        min(left, 2 * _DRAWN_AT_ONCE), dtype=tensor.dtype, device=tensor.device
    )
    while left:
        n = _DRAWN_AT_ONCE if left >= 2 * _DRAWN_AT_ONCE else left
        func(drawn[:n], **options)
        left -= n
    return lambda values: func(values, **{**options, "generator": again})
