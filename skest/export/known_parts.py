# SPDX-License-Identifier: Apache-2.0
"""Networks of the user's that hold modules of skest: only what is around them is traced.

The modules that look up feature columns are written as in canned networks. What torch
traces has inputs in their place.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from skest.exceptions import ExportError
from skest.export.graph import Graph
from skest.export.nets_onnx import network_output
from skest.export.scope import Scope
from skest.export.spec_inputs import SpecInputs, Traceable
from skest.export.torch_bridge import Traced, traced
from skest.feature_columns.modules import (
    DenseFeatures,
    LinearFeatures,
    SequenceFeatures,
)

__all__ = ["trace_around_known_parts"]

_KNOWN = (DenseFeatures, LinearFeatures, SequenceFeatures)


def trace_around_known_parts(
    function: Callable[[Any], Any],
    network: nn.Module,
    graph: Graph,
    given: SpecInputs,
) -> dict[Any, Traced]:
    """Add what a function of the logits gives to a graph.

    Parameters
    ----------
    function : callable
        ``function(network(features)) -> dict of tensors``.
    network : torch.nn.Module
        In evaluation mode; it stays as it is.
    graph : Graph
        Gets the nodes.
    given : SpecInputs
        What the network takes.

    Returns
    -------
    dict of Traced
        By key.

    Raises
    ------
    ExportError, ImportError
        As `skest.export.torch_bridge.traced`.
    """
    parts = _known_parts(network, given)
    around = copy.deepcopy(network)
    slots: dict[str, Any] = {}
    entries = list(given.traceable.values())
    layout = []
    for path, example in parts.items():
        around = _with_stub(around, path, slots)
        part = network.get_submodule(path)
        scope = Scope(graph, f"{path}." if path else "")
        values = network_output(part, scope, given.encoded)
        layout.append((path, isinstance(example, tuple)))
        entries += _as_entries(values, example)

    def run(own: nn.Module, *tensors: Tensor) -> dict[Any, Tensor]:
        left = iter(tensors[len(given.traceable) :])
        for path, is_pair in layout:
            slots[path] = (next(left), next(left)) if is_pair else next(left)
        return function(own(given.assembled(tensors[: len(given.traceable)])))

    return traced(
        run,
        around,
        graph,
        [entry.value for entry in entries],
        [entry.example for entry in entries],
        [entry.open_axes for entry in entries],
    )


def _as_entries(values: Any, example: Any) -> list[Traceable]:
    pairs = (
        zip(values, example, strict=True)
        if isinstance(example, tuple)
        else [(values, example)]
    )
    return [
        Traceable(value, tensor, (0, 1) if tensor.ndim == 3 else (0,))
        for value, tensor in pairs
    ]


def _known_parts(network: nn.Module, given: SpecInputs) -> dict[str, Any]:
    """Return what modules of skest give that take all the encoded features, by path."""
    if given.is_bare:
        return {}
    example = {key: entry.example for key, entry in given.traceable.items()}
    found: dict[str, Any] = {}
    calls: dict[str, int] = {}

    def note(path: str, arguments: Any, result: Any) -> None:
        calls[path] = calls.get(path, 0) + 1
        features = arguments[0] if arguments else None
        if isinstance(features, Mapping) and all(
            features.get(key) is tensor for key, tensor in example.items()
        ):
            found[path] = result

    handles = [
        module.register_forward_hook(
            lambda _, arguments, result, path=path: note(path, arguments, result)
        )
        for path, module in network.named_modules()
        if type(module) in _KNOWN
    ]
    try:
        with torch.no_grad():
            network(example)
    except KeyError as error:
        raise ExportError(
            f"The module {type(network).__name__} takes the feature {error}, which only "
            "modules of skest.feature_columns can look up in an exported graph."
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return {path: result for path, result in found.items() if calls[path] == 1}


class _Given(nn.Module):
    """Stands for a module whose result is known."""

    def __init__(self, read: Callable[[], Any]) -> None:
        super().__init__()
        self._read = read

    def forward(self, *arguments: Any) -> Any:
        """Return the result."""
        return self._read()


def _with_stub(network: nn.Module, path: str, slots: Mapping[str, Any]) -> nn.Module:
    # A function is not copied with its module, so that it reads these very slots.
    stub = _Given(lambda: slots[path])
    if path == "":
        return stub
    network.set_submodule(path, stub)
    return network
