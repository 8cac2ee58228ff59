# SPDX-License-Identifier: Apache-2.0
"""The graph of a network: its operations and variables, named by module path.

A network is called once and its tensor operations are written down; ``torch.jit.trace``
would do without dictionaries of features, and without data-dependent code.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator

from skest._without_dynamo import DispatchMode

__all__ = ["Node", "record_graph"]

_PARAMETER = "Parameter"
_BUFFER = "Buffer"
_INPUT = "Placeholder"


class Node(NamedTuple):
    """A node of a graph.

    Attributes
    ----------
    name : str
        Path with slashes; nodes with a common beginning are drawn as a group.
    kind : str
        Name of the operation; "Parameter", "Buffer" or "Placeholder" (an input).
    inputs : tuple of str
        Names of the nodes that it reads.
    shapes : tuple of tuple of int
        Shapes of the tensors that it makes.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]


def record_graph(
    network: nn.Module,
    features: Any,
    labels: Any = None,
    loss: Callable[[Any, Any, Any], Any] | None = None,
) -> list[Node]:
    """Call a network once and return its graph.

    Parameters
    ----------
    network : torch.nn.Module
        It is called as it is: in training mode it draws random numbers and updates
        moving averages.
    features, labels : tensors or dictionaries of tensors
        One encoded batch.
    loss : callable, default=None
        ``loss(labels, logits, features)``, part of the graph if given.

    Returns
    -------
    list of Node
        Inputs, variables that are used and operations, in order of their use.

    Examples
    --------
    >>> import torch
    >>> from skest.summaries.graph import record_graph
    >>> network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    >>> [node.name for node in record_graph(network, torch.ones(5, 3))]
    ['features', '0/weight', '0/bias', '0/addmm', '1/relu']
    """
    recorder = _Recorder(network, {"features": features, "labels": labels})
    with recorder.following(network), torch.no_grad(), recorder:
        logits = network(features)
        if loss is not None:
            recorder.scopes.append("loss/")
            loss(labels, logits, features)
    return recorder.nodes


class _Recorder(DispatchMode):
    """Writes down operations as nodes."""

    supports_higher_order_operators = True

    def __init__(self, network: nn.Module, inputs: Any) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.scopes = [""]
        self._names: Counter[str] = Counter()
        # Which node makes a tensor; tensors are held, so that ids stay theirs.
        self._makers: dict[int, str] = {}
        self._tensors: list[Tensor] = []
        self._variables = {
            id(tensor): (name, tensor, kind)
            for kind, named in (
                (_BUFFER, network.named_buffers()),
                (_PARAMETER, network.named_parameters()),
            )
            for name, tensor in named
        }
        for name, tensor in _leaves(inputs, ""):
            if id(tensor) not in self._makers:
                self._add(name, _INPUT, (), [tensor])

    @contextmanager
    def following(self, network: nn.Module) -> Iterator[None]:
        """Keep track of the module that is being called."""
        with ExitStack() as stack:
            for path, module in network.named_modules():
                scope = f"{path}/".replace(".", "/") if path else ""
                for handle in self._follow(module, scope):
                    stack.callback(handle.remove)
            yield

    def _follow(self, module: nn.Module, scope: str) -> list[Any]:
        def enter(module: nn.Module, inputs: Any) -> None:
            self.scopes.append(scope)

        def leave(module: nn.Module, inputs: Any, outputs: Any) -> None:
            self.scopes.pop()

        return [
            module.register_forward_pre_hook(enter, prepend=True),
            module.register_forward_hook(leave, always_call=True),
        ]

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Tell torch to run compiled functions as ever, then and later."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        returned = func(*args, **kwargs)
        arguments = [tensor for _, tensor in _leaves((args, kwargs), "")]
        results = [tensor for _, tensor in _leaves(returned, "")]
        if not results:
            return returned
        makers = [self._maker(tensor) for tensor in arguments]
        inputs = tuple(dict.fromkeys(name for name in makers if name is not None))
        is_nested = isinstance(func, HigherOrderOperator)  # torch.cond, or a scan
        if not is_nested and func.is_view and inputs:
            for tensor in results:  # a view is no operation worth a node
                self._note(tensor, inputs[0])
        else:
            name = func.name() if is_nested else func.overloadpacket.__name__.strip("_")
            self._add(f"{self.scopes[-1]}{name}", name, inputs, results)
        return returned

    def _maker(self, tensor: Tensor) -> str | None:
        """Return the node that makes a tensor; None if it is a constant."""
        if id(tensor) not in self._makers and id(tensor) in self._variables:
            path, variable, kind = self._variables[id(tensor)]
            self._add(path.replace(".", "/"), kind, (), [variable])
        return self._makers.get(id(tensor))

    def _add(
        self, name: str, kind: str, inputs: tuple[str, ...], made: list[Tensor]
    ) -> None:
        self._names[name] += 1
        count = self._names[name]
        name = name if count == 1 else f"{name}_{count - 1}"
        shapes = tuple(tuple(tensor.shape) for tensor in made)
        self.nodes.append(Node(name, kind, inputs, shapes))
        for tensor in made:
            self._note(tensor, name)

    def _note(self, tensor: Tensor, name: str) -> None:
        self._makers[id(tensor)] = name
        self._tensors.append(tensor)


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of nested dictionaries and sequences, and their paths."""
    if isinstance(value, Tensor):
        yield name, value
        return
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list | tuple):
        items = enumerate(value)
    for key, item in items:
        yield from _leaves(item, f"{name}/{key}" if name else str(key))
