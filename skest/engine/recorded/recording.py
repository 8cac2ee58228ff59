# SPDX-License-Identifier: Apache-2.0
"""The operations of a step, recorded while it runs."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator

from skest.core.resources import DispatchMode

_DYNAMIC = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_aten = torch.ops.aten
# In training they change the moving averages, which their schema does not tell.
_BATCH_NORMS = (
    _aten.native_batch_norm,
    _aten.cudnn_batch_norm,
    _aten.miopen_batch_norm,
)
_IS_TRAINING = 5  # the position of this argument of theirs
_KEEP_ENTRIES = (
    _aten._sparse_coo_tensor_with_dims_and_tensors.default,
    _aten.alias.default,
    _aten.clone.default,
    _aten.detach.default,
)
# Called for tensors that are made of numbers of Python. Memory that NumPy shares with
# them cannot be resized.
_MADE = _aten.lift_fresh.default
_BAG_GRADIENT = _aten._embedding_bag_backward.default
_BAG_PADDING = 11  # the position of this argument of it
# Without autograd they don't keep what their backward pass needs.
_NEED_AUTOGRAD = (_aten.mkldnn_rnn_layer.default,)
_NAMESPACES = frozenset({"aten", "mkldnn", "prims"})
_CHANGES_SHAPE = "changes the shape of a tensor in place"
# A union that is written where it is used is made anew each time, which takes longer.
_LISTS = (list, tuple)
_NESTS = (list, tuple, dict)
_MAPPINGS = (dict, Mapping)  # the second one takes longer to look at
_INDEXING = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)


class NotRecordableError(Exception):
    """A step that cannot be repeated from a recording; the message tells why."""


class Value:
    """A tensor of a recorded step.

    Attributes
    ----------
    tensor : Tensor
        What it was when it was recorded; its numbers may have changed since.
    kind : {"input", "constant", "result"}
        Whether it comes from the batch, was there before, or is made by the step.
    """

    __slots__ = ("kind", "tensor")

    def __init__(self, tensor: Tensor, kind: str) -> None:
        self.tensor = tensor
        self.kind = kind


@dataclass
class Call:
    """One operation.

    Attributes
    ----------
    function : torch.ops.OpOverload
        What was called.
    args, kwargs
        Its arguments, with a `Value` in place of every tensor.
    returned
        What it returned, likewise; if it works in place, that is its argument.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    returned: Any

    @cached_property
    def results(self) -> list[Value]:
        """All tensors that it returned."""
        return values_in(self.returned)

    @cached_property
    def arguments(self) -> list[Value]:
        """All tensors among the arguments."""
        return values_in((self.args, self.kwargs))

    @cached_property
    def written(self) -> list[Value]:
        """The arguments that it changes."""
        arguments = _written_arguments(self.function)
        # Most operations change nothing: asked for in every call of a recorded step.
        if not arguments:
            return []
        if self.function.overloadpacket in _BATCH_NORMS and not self.args[_IS_TRAINING]:
            return []
        # A slice, so that an optional argument that was left out is no value.
        changed = [
            self.kwargs.get(name, self.args[position : position + 1])
            for position, name in arguments
        ]
        return values_in(changed)

    @cached_property
    def is_random(self) -> bool:
        """Whether it draws random numbers, as operations of others may do untold."""
        is_of_others = self.function.namespace not in _NAMESPACES
        return is_of_others or torch.Tag.nondeterministic_seeded in self.function.tags


class Recorder(DispatchMode):
    """Carries out tensor operations and records them.

    It sees the operations below autograd, those of the backward pass among them. Nothing
    is changed outside of the thread that enters it.

    Parameters
    ----------
    inputs : sequence of Tensor
        The tensors of the batch. All others that the step does not make itself are taken
        as constants: the same tensors, with the values that they have by then.

    Attributes
    ----------
    inputs : list of Value
        The tensors of the batch.
    calls : list of Call
        What was done until now, in its order.
    obstacle : str or None
        Why the operations do not hold for other batches, if they don't.

    Examples
    --------
    >>> import torch
    >>> from skest.engine.recorded.recording import Recorder
    >>> x = torch.ones(2)
    >>> with Recorder([x]) as recorder:
    ...     y = (x + 1).sum()
    >>> [call.function.name() for call in recorder.calls]
    ['aten::add.Tensor', 'aten::sum']
    """

    supports_higher_order_operators = True  # in that it refuses them

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        # Holds every tensor, so that no two have the same id.
        self._values = {id(tensor): Value(tensor, "input") for tensor in inputs}
        self._memory = {storage_of(tensor) for tensor in inputs} - {None}
        self.inputs = [self._values[id(tensor)] for tensor in inputs]
        self.calls: list[Call] = []
        self.obstacle: str | None = None

    def value_of(self, tensor: Tensor) -> Value:
        """Return the value that stands for a tensor."""
        if id(tensor) not in self._values and not tensor.is_leaf:
            # It has a history of autograd, and none of its operations came by here.
            self._note("a tensor comes from code that is not recorded")
        return self._named(tensor, "constant")

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tell torch to run compiled functions as ever.

        Otherwise torch runs them without compiling, from then on and in the whole process.
        """
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if isinstance(func, HigherOrderOperator):  # torch.cond, or a scan
            # Raised and not noted: this mode has no way to carry it out.
            message = f"'torch.{func.name()}' calls Python"
            raise NotRecordableError(message)
        if func is _MADE:
            return self._made_of_numbers(args[0])
        named_args, named_kwargs = map_leaves(
            (args, dict(kwargs or {})), Tensor, self.value_of
        )
        # Such as x.unsqueeze_(1): a replay would change the shape of a tensor that it
        # keeps.
        if torch.Tag.inplace_view in func.tags:
            self._look_instead(func, named_args, named_kwargs)
            return func(*args, **(kwargs or {}))
        call = Call(func, named_args, named_kwargs, None)
        # An empty one may well be given to be resized: nobody has looked at it before.
        written = [value.tensor for value in call.written if value.tensor.numel()]
        shapes = [tensor.shape for tensor in written]
        returned = func(*args, **(kwargs or {}))
        if func.namespace == "profiler":  # marks of what is a step, not part of it
            return returned
        # resize_, and operations with `out` of another size: memory is planned for one
        # shape.
        if [tensor.shape for tensor in written] != shapes:
            self._note(_CHANGES_SHAPE, func)
        if func is _aten.add.Tensor and returned.is_sparse:
            self._note("joins sparse gradients of a table that is used twice", func)
        elif _depends_on_data(func, args, returned):
            self._note("makes Python or the shape of a tensor depend on data", func)
        if func in _NEED_AUTOGRAD:
            self._note("needs autograd", func)
        call.returned = map_leaves(returned, Tensor, lambda t: self._named(t, "result"))
        self.calls.append(call)
        # Often through a view, such as that of nn.Flatten.
        if any(
            value.kind == "input" or storage_of(value.tensor) in self._memory
            for value in call.written
        ):
            self._note("changes the batch", func)
        return returned

    def _made_of_numbers(self, tensor: Tensor) -> Tensor:
        """Record ``torch.tensor(...)``, which is made anew in every step."""
        if not tensor.untyped_storage().resizable():
            self._note("numbers come from NumPy")
        made: Tensor = _MADE(tensor)
        source = Value(tensor.clone(), "constant")  # the other one may be changed
        # A clone: the step may write to it, and the next one needs the numbers again.
        args, result = (source,), self._named(made, "result")
        self.calls.append(Call(_aten.clone.default, args, {}, result))
        return made

    def _look_instead(
        self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Record the change of a tensor's shape as another look at the same memory."""
        before, view = args[0], _view_variant(function)
        tensor = before.tensor
        if view is None or before.kind != "result":
            self._note(_CHANGES_SHAPE, function)
        before.tensor = tensor.detach()  # keeps its shape
        after = self._values[id(tensor)] = Value(tensor, before.kind)
        self.calls.append(Call(view or function, args, kwargs, after))

    def _note(self, obstacle: str, function: Any = None) -> None:
        if self.obstacle is None:
            who = "" if function is None else f"'{function.name()}' "
            self.obstacle = who + obstacle

    def _named(self, tensor: Tensor, kind: str) -> Value:
        return self._values.setdefault(id(tensor), Value(tensor, kind))


def _depends_on_data(function: Any, args: tuple[Any, ...], returned: Any) -> bool:
    """Tell whether what comes after a call is right for its data only."""
    if isinstance(returned, Tensor) and returned.is_sparse:
        if function is _BAG_GRADIENT:
            return len(args) > _BAG_PADDING  # which has no entries
        return function not in _KEEP_ENTRIES  # others may join entries of equal ids
    if function in _INDEXING:  # by numbers, or by a mask
        masks = (torch.bool, torch.uint8)
        return any(index is not None and index.dtype in masks for index in args[1])
    return any(tag in function.tags for tag in _DYNAMIC)


def map_leaves(data: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Replace all objects of a type in a nest of lists, tuples and dictionaries."""
    if isinstance(data, kind):
        return function(data)
    if isinstance(data, _LISTS):
        items = [map_leaves(item, kind, function) for item in data]
        return tuple(items) if isinstance(data, tuple) else items
    if isinstance(data, dict):
        return {key: map_leaves(item, kind, function) for key, item in data.items()}
    return data


def values_in(data: Any) -> list[Value]:
    """Return all values in a nest of lists, tuples and dictionaries."""
    found: list[Value] = []
    _collect(data, found)
    return found


def _collect(data: Any, found: list[Value]) -> None:
    if isinstance(data, Value):
        found.append(data)
    elif isinstance(data, _NESTS):
        for item in data.values() if isinstance(data, dict) else data:
            _collect(item, found)


@cache
def _written_arguments(function: Any) -> list[tuple[int, str]]:
    is_batch_norm = function.overloadpacket in _BATCH_NORMS
    return [
        (position, argument.name)
        for position, argument in enumerate(function._schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or (is_batch_norm and argument.name.startswith("running_"))
    ]


def storage_of(tensor: Tensor) -> int | None:
    """Return what tensors that share memory have in common; None for sparse ones."""
    if tensor.layout != torch.strided:
        return None
    # Not `data_ptr`, which is 0 for every empty tensor.
    return tensor.untyped_storage()._cdata


def overloads(packet: Any) -> list[Any]:
    """Return the operations of one name."""
    return [getattr(packet, name) for name in packet.overloads()]


def same_arguments(operation: Any, name: str) -> Any | None:
    """Return the operation of another name that takes the same arguments, or None."""
    packet = getattr(_aten, name, None)
    if operation.namespace != "aten" or packet is None:
        return None
    wanted = [(a.name, str(a.type)) for a in operation._schema.arguments]
    for variant in overloads(packet):
        if [(a.name, str(a.type)) for a in variant._schema.arguments] == wanted:
            return variant
    return None


@cache
def _view_variant(operation: Any) -> Any | None:
    """Return the operation that returns a view instead of changing a shape, or None."""
    name: str = operation.overloadpacket.__name__
    found = same_arguments(operation, name.removesuffix("_"))
    # Such as unsqueeze for unsqueeze_; resize_ has no counterpart that returns a view.
    returns = [] if found is None else found._schema.returns
    return found if any(r.alias_info is not None for r in returns) else None


def kind_of_tensor(tensor: Tensor) -> Hashable:
    """Return what counts of a tensor, or raise TypeError if it requires gradients."""
    if tensor.requires_grad:  # somebody may want them
        raise TypeError("a batch has a tensor that requires gradients")
    # Torch conjugates and negates lazily: these bits say what the numbers mean.
    signs = tensor.is_conj(), tensor.is_neg()
    return tensor.shape, tensor.stride(), tensor.dtype, signs


def kind_of_rows(tensor: Tensor) -> Hashable:
    """Return what batches have in common whose number of rows does not matter."""
    # (n_rows, ...): what the program takes as fixed.
    return tensor.shape[1:], tensor.dtype, tensor.device, tensor.is_contiguous()


def batch_tensors(
    data: Any, kind_of: Callable[[Tensor], Hashable] = kind_of_tensor
) -> tuple[list[Tensor], Hashable]:
    """Take a nest of dictionaries, tuples and lists of tensors apart.

    Parameters
    ----------
    data
        Features and labels; None stands for what is not there.
    kind_of : callable, default=kind_of_tensor
        Returns what counts of a tensor.

    Returns
    -------
    tensors : list of Tensor
        In the order in which they come, each once.
    kind : hashable
        The same for all batches of the same structure whose tensors are of the same
        kinds.

    Raises
    ------
    TypeError
        If there is something else than dense tensors in it.

    Examples
    --------
    >>> import torch
    >>> from skest.engine.recorded.recording import batch_tensors
    >>> tensors, kind = batch_tensors(({"x": torch.ones(3, 2)}, torch.zeros(3)))
    >>> len(tensors), kind == batch_tensors(({"x": torch.zeros(3, 2)}, torch.ones(3)))[1]
    (2, True)
    """
    tensors: dict[int, Tensor] = {}
    kind = _kind(data, tensors, kind_of)
    return list(tensors.values()), kind


def _kind(
    data: Any, tensors: dict[int, Tensor], kind_of: Callable[[Tensor], Hashable]
) -> Hashable:
    if isinstance(data, Tensor):
        if data.layout != torch.strided:
            raise TypeError(f"a batch has a tensor of layout {data.layout}")
        if id(data) in tensors:
            # A tensor that stands twice is one input, and where else it stands is part
            # of the kind.
            return list(tensors).index(id(data))
        tensors[id(data)] = data
        return kind_of(data)
    if isinstance(data, _LISTS):
        return tuple([_kind(value, tensors, kind_of) for value in data])
    if isinstance(data, _MAPPINGS):
        return tuple([(k, _kind(v, tensors, kind_of)) for k, v in data.items()])
    if data is None:
        return None
    raise TypeError(f"a batch has a {type(data).__name__} beside its tensors")
