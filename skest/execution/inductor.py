# SPDX-License-Identifier: Apache-2.0
"""`InductorProgram`: a recorded step compiled by ``torch.compile``."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, fx

from skest.execution.recording import Call, NotBuiltError, Value, map_leaves
from skest.execution.simplification import Storages

__all__ = ["InductorProgram"]


class InductorProgram:
    """A step as one compiled function; otherwise as `skest.execution.program.Program`.

    Parameters
    ----------
    inputs, calls, outputs, kept, storages
        As for `skest.execution.program.Program`.

    Attributes
    ----------
    source, places, is_exact, takes_update
        As there. Nothing stays where it is, operations that are fused round differently,
        and the optimizers do the update.

    Raises
    ------
    NotBuiltError
        If a call draws from a generator: compiled code has random numbers of its own.
    """

    is_exact: ClassVar[bool] = False
    takes_update: ClassVar[bool] = False

    def __init__(
        self,
        inputs: Sequence[Value],
        calls: Sequence[Call],
        outputs: Sequence[Value],
        kept: Sequence[Value],
        storages: Storages,
    ) -> None:
        returned = list(dict.fromkeys([*outputs, *kept]))
        self.places: list[Tensor | int] = [returned.index(value) for value in kept]
        arguments = [value for call in calls for value in call.arguments]
        constants = [
            value
            for value in dict.fromkeys([*arguments, *returned])
            if value.kind == "constant"
        ]
        graph = _graph([*inputs, *constants], calls, returned)
        self.source = graph.python_code("self").src
        self._constants = [value.tensor.detach() for value in constants]
        self._step = torch.compile(fx.GraphModule({}, graph), dynamic=False)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Take the step with a batch and return the outputs, and what is kept."""
        with torch.no_grad():
            results: tuple[Tensor, ...] = self._step(*inputs, *self._constants)
        return results


def _graph(
    arguments: Sequence[Value], calls: Sequence[Call], returned: Sequence[Value]
) -> fx.Graph:
    """Write a recorded step as a graph of torch.fx."""
    graph = fx.Graph()
    nodes: dict[Value, Any] = {
        value: graph.placeholder(f"x{i}") for i, value in enumerate(arguments)
    }
    for call in calls:
        _check_no_generator(call)
        args, kwargs = map_leaves((call.args, call.kwargs), Value, nodes.__getitem__)
        node = graph.call_function(call.function, args, kwargs)
        _name_results(graph, node, call.returned, nodes)
    graph.output(tuple(nodes[value] for value in returned))
    return graph


def _check_no_generator(call: Call) -> None:
    if any(isinstance(a, torch.Generator) for a in [*call.args, *call.kwargs.values()]):
        name = call.function.name()
        raise NotBuiltError(f"'{name}' draws random numbers from a generator")


def _name_results(
    graph: fx.Graph, node: Any, returned: Any, nodes: dict[Value, Any]
) -> None:
    if isinstance(returned, Value):
        nodes[returned] = node
    elif returned is not None:
        for position, value in enumerate(returned):
            if isinstance(value, Value):
                nodes[value] = graph.call_function(_item, (node, position))


def _item(values: Any, position: int) -> Any:
    return values[position]
