# SPDX-License-Identifier: Apache-2.0
"""Turns a recorded step into a function that does the same for other batches."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from skest.execution.kernels import function_for, in_place_variant, out_variant
from skest.execution.memory import Arena, is_dense, last_uses
from skest.execution.recording import Call, Value, map_leaves, values_in
from skest.execution.simplification import Storages

__all__ = ["Program", "StepProgram"]

_aten = torch.ops.aten
_UNSET = {_aten.empty.memory_format, _aten.empty_like.default, _aten.new_empty.default}
_ZEROS = {_aten.zeros.default, _aten.zeros_like.default, _aten.new_zeros.default}
_COPIES = {_aten._to_copy.default, _aten.clone.default}


class StepProgram(Protocol):
    """What carries out a recorded step; see `Program`."""

    source: str
    places: list[Tensor | int]

    def __init__(
        self,
        inputs: Sequence[Value],
        calls: Sequence[Call],
        outputs: Sequence[Value],
        kept: Sequence[Value],
        storages: Storages,
    ) -> None: ...

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Take the step."""


class Program:
    """A step as straight-line code over memory that is reserved once.

    Parameters
    ----------
    inputs : sequence of Value
        The tensors of the batch, in the order in which they are passed.
    calls : sequence of Call
        What to do, see `skest.execution.simplification.simplified`.
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
            others = [value for value in kept if not writer.is_static(value)]
            returned = [*outputs, *dict.fromkeys(others)]
            self.source = writer.source(returned)
            self.places: list[Tensor | int] = [
                writer.tensor(v) if writer.is_static(v) else returned.index(v)
                for v in kept
            ]
        self.constants = writer.constants
        namespace = dict(writer.constants)
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

    @contextmanager
    def together(self) -> Iterator[Callable[..., tuple[Tensor, ...]]]:
        """Return what takes steps one after the other, for less than calls of this."""
        had_gradients = torch.is_grad_enabled()
        # With `torch.no_grad`, a signal while it is left would leave gradients off.
        with torch._C._AutoDispatchBelowAutograd():
            try:
                torch._C._set_grad_enabled(False)
                yield self._step
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
        self._never_reserved = {storages.root(value) for value in outputs}
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
            names = self._variables.pop(root, None)
            if names:
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
