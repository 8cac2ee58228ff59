# SPDX-License-Identifier: Apache-2.0
"""`Scope`: where in a network the variables of a module are."""

from typing import NamedTuple

from torch import Tensor

from skest.export.graph import Graph, Value

__all__ = ["Scope"]


class Scope(NamedTuple):
    """Where a module is: the graph, and its path in the network.

    Attributes
    ----------
    graph : Graph
        The graph.
    path : str
        Empty, or the names of the modules around it, each with a dot behind it.
    """

    graph: Graph
    path: str = ""

    def inside(self, name: str) -> "Scope":
        """Return the scope of a submodule."""
        return Scope(self.graph, f"{self.path}{name}.")

    def weight(self, name: str, tensor: Tensor, suffix: str = "") -> Value:
        """Return a variable of the module under its path, maybe changed."""
        array = tensor.detach().cpu().numpy()
        return self.graph.weight(f"{self.path}{name}{suffix}", array)
