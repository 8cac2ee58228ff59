# SPDX-License-Identifier: Apache-2.0
"""Recorded operations as a program, with memory that is planned once."""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from skest.engine.recorded.recording import (
    Call,
    Value,
    map_leaves,
    overloads,
    same_arguments,
    values_in,
)
from skest.engine.recorded.simplify import Storages

_aten = torch.ops.aten
# Told to write their mean or sum into a number, they resize it first, with a warning; what
# binary_cross_entropy leaves there is wrong (torch 2.13).
_RESIZED = {
    _aten.binary_cross_entropy.default,
    _aten.huber_loss.default,
    _aten.mse_loss.default,
    _aten.smooth_l1_loss.default,
}
_UNSET = {_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default}
_ZEROS = {_aten.zeros.default, _aten.zeros_like.default, _aten.new_zeros.default}
_COPIES = {_aten._to_copy.default, _aten.clone.default}

# Operations whose function in the namespace `torch`, and whose method in place if there
# is one, take the same arguments as the operation itself, with the same defaults. Such a
# call takes half of the time that one through `torch.ops` takes: 1 µs instead of 2.
_SAME_IN_TORCH = frozenset(
    """
    abs add addcdiv addcmul addmm all amax amin any argmax
    bitwise_and bmm cat clamp clamp_min copy cumsum
    detach div embedding eq exp expm1 expand gather ge gt index_add index_copy
    index_select le lerp log log1p log_softmax logical_and logical_not logical_or
    logsumexp lt masked_fill maximum mean minimum mm mul native_batch_norm ne neg pow
    reciprocal relu rsqrt scatter scatter_add select sigmoid sign sort sqrt square sub
    sum t tanh unsqueeze view where zero
    """.split()
)
_THRESHOLD_BACKWARD = _aten.threshold_backward.grad_input._op
_MEAN = 1  # the number of this reduction in declarations of PyTorch


class Program:
    """A step as straight-line code over memory that is reserved once.

    Parameters
    ----------
    inputs : sequence of Value
        The tensors of the batch, in the order in which they are passed.
    calls : sequence of Call
        What to do, see `skest.engine.recorded.simplify.simplified`.
    outputs : sequence of Value
        What to return, in fresh tensors in every step.
    kept : sequence of Value
        What shall be readable until the next step.
    storages : Storages
        Which values share memory.
    reserve : bool, default=True
        Whether to reserve memory for results. Without, shapes may differ from step to
        step as far as the calls go, and threads may take steps at the same time.

    Attributes
    ----------
    source : str
        The code, for reading.
    constants : dict of str to object
        What the names in it stand for, that are not of the step itself.
    places : list of Tensor or int
        Where each of `kept` is after a step: in a tensor, always the same; or the
        position among what a call returns.

    Notes
    -----
    The operations are the recorded ones, in their order, so that the numbers are the same
    bit for bit. Three things make them faster: views of memory that stays where it is are
    made once; a result goes into memory reserved for it, or into that of an argument that
    is not needed any longer; and neither autograd nor the code of the model takes part.
    """

    def __init__(
        self,
        inputs: Sequence[Value],
        calls: Sequence[Call],
        outputs: Sequence[Value],
        kept: Sequence[Value],
        storages: Storages,
        *,
        reserve: bool = True,
    ) -> None:
        writer = _Writer(inputs, calls, outputs, kept, storages, reserve)
        with torch.no_grad():
            for position, call in enumerate(calls):
                writer.add(position, call)
            # Sparse gradients, for example, are new tensors in every step.
            others = [value for value in kept if not writer.is_static(value)]
            returned = [*outputs, *dict.fromkeys(others)]
            self.source = writer.source(returned)
            self.places: list[Tensor | int] = [
                writer.tensor(v) if writer.is_static(v) else returned.index(v)
                for v in kept
            ]
        self.constants = writer.constants
        namespace = dict(writer.constants)
        # Code and no loop over calls: values are local variables, the fastest ones.
        exec(compile(self.source, "<step of skest>", "exec"), namespace)
        # In its own namespace it would be alive, with its memory, until garbage is sought.
        self._step: Callable[..., tuple[Tensor, ...]] = namespace.pop("step")

    def __call__(self, *inputs: Any) -> tuple[Tensor, ...]:
        """Take the step with a batch and return the outputs, and more; see `places`."""
        had_gradients = torch.is_grad_enabled()
        # The layer of autograd costs every call time even if it has nothing to do. And
        # `torch.no_grad` takes as long to enter and leave as two small operations.
        with torch._C._AutoDispatchBelowAutograd():
            try:
                torch._C._set_grad_enabled(False)
                return self._step(*inputs)
            finally:
                torch._C._set_grad_enabled(had_gradients)


class _Writer:
    """Writes the code, and reserves what it works on."""

    def __init__(
        self,
        inputs: Sequence[Value],
        calls: Sequence[Call],
        outputs: Sequence[Value],
        kept: Sequence[Value],
        storages: Storages,
        reserve: bool,
    ) -> None:
        self.static: dict[Value, Tensor] = {}
        self.constants: dict[str, Any] = {}
        self._storages = storages
        self._may_reserve = reserve
        self._names = {value: f"x{i}" for i, value in enumerate(inputs)}
        self._head = f"def step({', '.join(self._names.values())}):"
        self._lines: list[str] = []
        self._constant_names: dict[int, str] = {}
        self._arena = Arena()
        self._reserved: dict[Value, Tensor] = {}
        # The caller keeps these, while the next step writes over what is reserved.
        # Losses above all: hooks keep several, to wait for a device once.
        self._never_reserved = {storages.root(value) for value in outputs}
        # By root, as all that is about memory here.
        self._last_uses = last_uses(calls, [*outputs, *kept], storages)
        self._variables: dict[Value, list[str]] = defaultdict(list)

    def source(self, returned: Sequence[Value]) -> str:
        """Return the code of a function of the inputs."""
        last = f"return ({''.join(f'{self._text(value)}, ' for value in returned)})"
        return "\n    ".join([self._head, *self._lines, last]) + "\n"

    def add(self, position: int, call: Call) -> None:
        """Write one call."""
        if call.written:
            self._add_plain(call)
        elif self._storages.is_view(call):
            self._add_view(call)
        elif not (self._add_in_place(position, call) or self._add_reserved(call)):
            self._add_plain(call)
        self._release(position, call)

    def _add_view(self, call: Call) -> None:
        """Make a view once if its memory stays where it is."""
        if not all(map(self.is_static, call.arguments)):
            self._add_plain(call)
            return
        args, kwargs = map_leaves((call.args, call.kwargs), Value, self.tensor)
        views = call.function(*args, **kwargs)
        views = [views] if isinstance(views, Tensor) else views
        self.static.update(zip(call.results, views, strict=True))

    def _add_in_place(self, position: int, call: Call) -> bool:
        """Let the result be in the memory of an argument that is no longer needed."""
        source = call.args[0] if call.args else None
        if not isinstance(source, Value) or len(call.results) != 1:
            return False
        result, root = call.results[0], self._storages.root(source)
        variant = in_place_variant(call.function, result.tensor.device.type)
        is_clone = call.function is _aten.clone.default
        if (
            # Not into the batch or a variable, nor into what is read later or by the
            # same call; and an output not into memory that the next step writes over.
            (variant is None and not is_clone)
            or root.kind != "result"
            or self._last_uses[root] != position
            or root in map(self._storages.root, call.arguments[1:])
            or not _are_alike(source.tensor, result.tensor)
            or (result in self._never_reserved and root in self._reserved)
        ):
            return False
        if root in self._reserved:
            if variant is not None:
                self._write(variant, call.args, call.kwargs)
            self.static[result] = self.tensor(source)
            # The memory goes on to the result, and back to the arena when that is done
            # with.
            self._reserved[self._storages.root(result)] = self._reserved.pop(root)
        elif variant is not None:
            self._write(variant, call.args, call.kwargs, self._new_name(result))
        else:
            return False
        return True

    def _add_reserved(self, call: Call) -> bool:
        """Write the results into memory that is reserved for them."""
        if not call.results or not all(map(self._can_be_reserved, call.results)):
            return False
        result = call.results[0]
        # A result of rows (reduction="none") has its size already.
        if call.function in _RESIZED and not result.tensor.ndim:
            return False
        out = out_variant(call.function, result.tensor.device.type)
        if call.function in _UNSET:
            self._reserve(call.results)
        elif call.function in _ZEROS:
            self._reserve(call.results)
            self._write(Tensor.zero_, (result,), {})
        elif call.function in _COPIES:
            self._reserve(call.results)
            self._write(Tensor.copy_, (result, call.args[0]), {})
        elif out is not None and len(out[1]) == len(call.results):
            self._reserve(call.results)
            targets = dict(zip(out[1], call.results, strict=True))
            self._write(out[0], call.args, {**call.kwargs, **targets})
        else:
            return False
        return True

    def _add_plain(self, call: Call) -> None:
        """Let the results be new tensors in every step, or arguments that it changes."""
        if isinstance(call.returned, Value):
            target = self._target(call, call.returned)
        else:
            parts = [self._target(call, part) or "_" for part in call.returned or ()]
            target = "".join(f"{part}, " for part in parts)
        self._write(function_for(call.function), call.args, call.kwargs, target)

    def _target(self, call: Call, part: Any) -> str:
        """Return a name for what is new among the results."""
        is_new = isinstance(part, Value) and part not in call.arguments
        return self._new_name(part) if is_new else ""

    def _release(self, position: int, call: Call) -> None:
        """Free what was needed for the last time."""
        roots = map(self._storages.root, [*call.arguments, *call.results])
        for root in dict.fromkeys(roots):
            if self._last_uses[root] != position:
                continue
            if root in self._reserved:
                self._arena.give_back(self._reserved.pop(root))
            # Reserved results have none: their tensors are constants of the code.
            names = self._variables.pop(root, None)
            if names:
                # As early as an eager step lets go of it, so that the peak of memory is
                # no higher.
                self._lines.append(f"del {', '.join(names)}")

    # Values

    def is_static(self, value: Value) -> bool:
        """Tell whether a value is in the same place in every step."""
        return value in self.static or value.kind == "constant"

    def tensor(self, value: Value) -> Tensor:
        """Return the tensor that a value is in, in every step."""
        if value not in self.static:
            self.static[value] = value.tensor.detach()
        return self.static[value]

    def _can_be_reserved(self, value: Value) -> bool:
        root = self._storages.root(value)
        return (
            self._may_reserve
            and root is value
            and root not in self._never_reserved
            and is_dense(value.tensor)
        )

    def _reserve(self, values: Sequence[Value]) -> None:
        for value in values:
            self.static[value] = self._arena.take(value.tensor)
            self._reserved[value] = self.static[value]

    def _new_name(self, value: Value) -> str:
        name = self._names[value] = f"v{len(self._names)}"
        self._variables[self._storages.root(value)].append(name)
        return name

    # Text

    def _write(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        target: str = "",
    ) -> None:
        arguments = [self._text(item) for item in args]
        arguments += [f"{key}={self._text(item)}" for key, item in kwargs.items()]
        call = f"{self._constant(function)}({', '.join(arguments)})"
        self._lines.append(f"{target.strip()} = {call}" if target else call)

    def _text(self, data: Any) -> str:
        if isinstance(data, Value) and not self.is_static(data):
            return self._names[data]
        if all(map(self.is_static, values_in(data))):
            return self._constant(map_leaves(data, Value, self.tensor))
        items = "".join(f"{self._text(item)}, " for item in data)
        return f"[{items}]" if isinstance(data, list) else f"({items})"

    def _constant(self, data: Any) -> str:
        if data is None or isinstance(data, bool | int):
            return repr(data)
        # Floats, too: their text would not give nan and inf back.
        name = self._constant_names.setdefault(id(data), f"c{len(self.constants)}")
        self.constants[name] = data  # which also keeps its id from being used again
        return name


def _are_alike(source: Tensor, result: Tensor) -> bool:
    return (
        source.dtype == result.dtype
        and source.shape == result.shape
        and source.stride() == result.stride()
        and is_dense(result)
    )


class Arena:
    """Memory that several results use one after the other.

    Examples
    --------
    >>> import torch
    >>> from skest.engine.recorded.program import Arena
    >>> arena = Arena()
    >>> first = arena.take(torch.empty(2, 3))
    >>> arena.give_back(first)
    >>> second = arena.take(torch.empty(3, 2))
    >>> second.shape, second.data_ptr() == first.data_ptr()
    (torch.Size([3, 2]), True)
    """

    def __init__(self) -> None:
        self._free: dict[Any, list[Tensor]] = defaultdict(list)

    def take(self, example: Tensor) -> Tensor:
        """Return a tensor of the shape, strides, type and device of `example`."""
        # As many elements of the same type will do; their shape and strides are set
        # anew.
        free = self._free[_kind(example)]
        if not free:
            return torch.empty_strided(
                example.shape,
                example.stride(),
                dtype=example.dtype,
                device=example.device,
            )
        return free.pop().as_strided(example.shape, example.stride())

    def give_back(self, tensor: Tensor) -> None:
        """Let another result use the memory of a tensor that `take` returned."""
        self._free[_kind(tensor)].append(tensor)


def _kind(tensor: Tensor) -> Any:
    return tensor.numel(), tensor.dtype, tensor.device


def is_dense(tensor: Tensor) -> bool:
    """Tell whether the elements of a tensor fill one piece of memory, each once."""
    if tensor.layout != torch.strided or not tensor.numel():
        return False
    expected = 1
    # By stride, from the dimension whose elements are next to each other.
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def dense_parts(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return a tensor, or if it is sparse its ids and its values.

    Examples
    --------
    >>> import torch
    >>> from skest.engine.recorded.program import dense_parts
    >>> dense_parts(torch.eye(3)[2].to_sparse())
    (tensor([[2]]), tensor([1.]))
    """
    return (tensor._indices(), tensor._values()) if tensor.is_sparse else (tensor,)


def last_uses(
    calls: Sequence[Call], kept: Iterable[Value], storages: Storages
) -> dict[Value, float]:
    """Return the position of the last call that needs a piece of memory.

    Parameters
    ----------
    calls : sequence of Call
        The step.
    kept : iterable of Value
        What has to stay after it.
    storages : Storages
        Which values share memory.

    Returns
    -------
    dict of Value to float
        By root. Infinity for what stays.
    """
    last: dict[Value, float] = {storages.root(value): math.inf for value in kept}
    for position in reversed(range(len(calls))):
        call = calls[position]
        results = [storages.root(value) for value in call.results]
        end = float(position)
        touched = [*call.results, *call.arguments]
        if any(value.tensor.layout != torch.strided for value in touched):
            # Sparse tensors share memory with what they are made of, and their parts.
            end = max([end, *(last.get(root, end) for root in results)])
        for root in map(storages.root, touched):
            last[root] = max(last.get(root, end), end)
    return last


def function_for(operation: Any) -> Callable[..., Any]:
    """Return the fastest function that does the same as an operation.

    Parameters
    ----------
    operation : torch.ops.OpOverload
        One of ``torch.ops.aten``, or any other.

    Returns
    -------
    callable
        Takes the arguments of the operation.
    """
    if operation is _aten.binary_cross_entropy_with_logits.default:
        return _binary_cross_entropy
    return _in_torch(operation) or _unwrapped(operation)


@functools.cache
def out_variant(
    operation: Any, device_type: str
) -> tuple[Callable[..., Any], tuple[str, ...]] | None:
    """Return the variant of an operation that writes into given tensors.

    Parameters
    ----------
    operation : torch.ops.OpOverload
        One that returns new tensors.
    device_type : str
        Only a variant with a kernel of its own there counts: the others compute
        new tensors and copy them.

    Returns
    -------
    function : callable
        Takes the arguments of the operation, and the tensors to write into.
    names : tuple of str
        Keywords of the latter.
    """
    if operation is _aten.sort.default and device_type == "cpu":
        return _sort, ("values", "indices")
    wanted = [(a.name, str(a.type)) for a in operation._schema.arguments]
    for variant in overloads(operation.overloadpacket):
        arguments = variant._schema.arguments
        outs = tuple(a.name for a in arguments if a.is_out)
        others = [(a.name, str(a.type)) for a in arguments if not a.is_out]
        # Overloads differ in types: `sum` takes a number of a dimension or its name.
        if outs and others == wanted and _has_kernel(variant, device_type):
            # Functions of torch take the tensor to write into by this name.
            function = _in_torch(operation) if outs == ("out",) else None
            return function or _unwrapped(variant), outs
    return None


@functools.cache
def in_place_variant(operation: Any, device_type: str) -> Callable[..., Any] | None:
    """Return the variant of an operation that changes its first argument, or None.

    Parameters
    ----------
    operation, device_type
        As for `out_variant`.
    """
    # The backward pass of ReLU, which torch has no variant in place of.
    if operation is _aten.threshold_backward.default and device_type == "cpu":
        return _threshold_backward_
    variant = same_arguments(operation, f"{operation.overloadpacket.__name__}_")
    if variant is None or not _has_kernel(variant, device_type):
        return None
    return function_for(variant)


def _in_torch(operation: Any) -> Callable[..., Any] | None:
    """Return the function or method of torch that is an operation of its own, or None."""
    name = operation.overloadpacket.__name__
    base = name.removesuffix("_")
    is_known = base in _SAME_IN_TORCH or base.startswith(("_foreach_", "_fused_"))
    if operation.namespace != "aten" or not is_known:
        return None
    return getattr(torch, name, None) or getattr(Tensor, name, None)


def _unwrapped(operation: Any) -> Callable[..., Any]:
    """Return what an operation calls, past a method in Python that only hands over."""
    return operation._op if operation.namespace == "aten" else operation


def _binary_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Tensor:
    # The function of torch has other defaults.
    return torch.binary_cross_entropy_with_logits(
        logits, labels, weight, pos_weight, reduction
    )


def _sort(
    tensor: Tensor, dim: int = -1, descending: bool = False, **out: Tensor
) -> None:
    # What the operation without "stable" leads to; only this one has a variant.
    _aten.sort.values_stable(
        tensor, stable=False, dim=dim, descending=descending, **out
    )


def _threshold_backward_(gradient: Tensor, source: Tensor, threshold: float) -> Tensor:
    # Goes through the elements one by one, so that the gradient may be written over.
    return _THRESHOLD_BACKWARD(gradient, source, threshold, grad_input=gradient)


def _has_kernel(operation: Any, device_type: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        operation.name(), device_type.upper()
    )
