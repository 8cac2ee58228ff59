# SPDX-License-Identifier: Apache-2.0
"""How a model is built whose tables will be in parameter servers."""

import inspect
import mmap
import platform
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from skest.feature_columns.lookup import own_values

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
    >>> from skest.distributed.ps.lazy_tables import LazyBuilding
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


_KNOWN = {("linux", "x86_64"), ("linux", "aarch64")}
# Python has the name from 3.13 on.
_NOT_RESERVED = getattr(
    mmap,
    "MAP_NORESERVE",
    0x4000 if (sys.platform, platform.machine()) in _KNOWN else 0,
)
_CAN_FORGET = hasattr(mmap, "MAP_PRIVATE") and hasattr(mmap, "MADV_DONTNEED")


class LazyZeros:
    """A tensor of zeros on the CPU whose pages come into being when they are touched.

    Parameters
    ----------
    shape : tuple of int
        Its shape.
    dtype : torch.dtype
        Its type.

    Attributes
    ----------
    tensor : Tensor
        The tensor.

    Examples
    --------
    >>> import torch
    >>> from skest.distributed.ps.lazy_tables import LazyZeros
    >>> large = LazyZeros((10**9, 16), torch.float32)
    >>> large.tensor[123_456_789] = 1
    >>> float(large.tensor[123_456_789].sum())
    16.0
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        n_bytes = max(1, torch.Size(shape).numel() * dtype.itemsize)
        if _CAN_FORGET:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            flags |= _NOT_RESERVED
            self._memory = mmap.mmap(-1, n_bytes, flags=flags)
        else:
            self._memory = mmap.mmap(-1, n_bytes)
        self.tensor = _tensor_in(self._memory, shape, dtype)

    def weakly(self) -> Callable[[], Tensor | None]:
        """Return what gives the tensor as long as something holds its memory."""
        memory = weakref.ref(self._memory)
        shape, dtype = tuple(self.tensor.shape), self.tensor.dtype

        def tensor() -> Tensor | None:
            held = memory()
            return None if held is None else _tensor_in(held, shape, dtype)

        return tensor

    def forget(self) -> None:
        """Give the memory back; the tensor is all zeros again."""
        if _CAN_FORGET:
            self._memory.madvise(mmap.MADV_DONTNEED)
        else:
            self.tensor.zero_()


def _tensor_in(memory: mmap.mmap, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    used = torch.Size(shape).numel() * dtype.itemsize
    return whole[:used].view(dtype).view(shape)


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
    >>> from skest.distributed.ps.lazy_tables import PostponedValues
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
