# SPDX-License-Identifier: Apache-2.0
"""The variables of a model, and the part of its state that each server holds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skest.distributed.layout import Layout, dtype_named, name_of_dtype
from skest.optimizers.row_sparse import row_tables


class Variable(NamedTuple):
    """One variable of a model.

    Parameters
    ----------
    name : str
        As in the ``state_dict`` of the network.
    kind : {"dense", "table", "constant"}
        What a step reads and updates as a whole; what it reads and updates by row; what
        no optimizer updates.
    shape : tuple of int
        Of all of it.
    dtype : str
        As in messages.
    ps : int
        Number of the server that holds it; -1 is all of them, each some rows.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: str
    ps: int


@dataclass(frozen=True)
class Variables:
    """All variables of a model, in an order that is the same in every process.

    Parameters
    ----------
    num_ps : int
        Number of servers.
    all : tuple of Variable
        By name.
    """

    num_ps: int
    all: tuple[Variable, ...]

    @classmethod
    def of(
        cls, network: nn.Module, optimizers: Sequence[Optimizer], num_ps: int
    ) -> "Variables":
        """Look at a network and say where its variables belong."""
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        trained = {id(param) for group in groups for param in group["params"]}
        tables = set(map(id, row_tables(network)))
        kinds: dict[str, str] = {}
        tensors = unique_state(network)
        for name, tensor in tensors.items():
            # Frozen weights and buffers: the chief has drawn them, and all others need
            # the same.
            if id(tensor) not in trained:
                kinds[name] = "constant"
            else:
                kinds[name] = "table" if id(tensor) in tables else "dense"
        whole = {n: t.nbytes for n, t in tensors.items() if kinds[n] != "table"}
        # A table is on all servers, each of which has every n-th row.
        places = place(whole, num_ps)
        return cls(
            num_ps,
            tuple(
                Variable(
                    *(name, kinds[name], tuple(tensor.shape)),
                    *(name_of_dtype(tensor.dtype), places.get(name, -1)),
                )
                # By name: who builds a network in another order still agrees on places
                # in buffers.
                for name, tensor in sorted(tensors.items())
            ),
        )

    def of_kind(self, kind: str, ps: int | None = None) -> list[Variable]:
        """Return those of a kind, all or those with a part on one server."""
        found = [v for v in self.all if v.kind == kind]
        return found if ps is None else [v for v in found if v.ps in (-1, ps)]

    def check_sizes(self, limit: int) -> None:
        """Raise if the dense variables of a server are too large for a message.

        Parameters
        ----------
        limit : int
            Bytes that a server takes at once: each step sends it all their gradients.

        Raises
        ------
        ValueError
            If there are more.
        """
        for ps in range(self.num_ps):
            sizes = {
                v.name: torch.Size(v.shape).numel() * dtype_named(v.dtype).itemsize
                for v in self.of_kind("dense", ps)
            }
            # Gradients are as large as their variables.
            if sum(sizes.values()) <= limit:
                continue
            largest = max(sizes, key=lambda name: sizes[name])
            advice = "Use more parameter servers ('num_ps'), which share them"
            if sizes[largest] > limit:
                advice = "If it is a table, let it be read by row: sparse=True"
            raise ValueError(
                f"Each step would send parameter server {ps} gradients of "
                f"{sum(sizes.values()):,} bytes, {sizes[largest]:,} of which belong to "
                f"{largest!r}; it takes at most {limit:,}. {advice}; or use another "
                "strategy, such as SharedMemory or DataParallel."
            )

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` takes."""
        return {"num_ps": self.num_ps, "all": [list(v) for v in self.all]}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Variables":
        """Return what `to_json` described."""
        made = [Variable(n, k, tuple(s), d, ps) for n, k, s, d, ps in found["all"]]
        return cls(found["num_ps"], tuple(made))

    def differences(self, other: "Variables") -> list[str]:
        """Say in which variables another model differs."""
        ours, theirs = ({v.name: v for v in side.all} for side in (self, other))
        return [
            f"{name}: {_told(ours.get(name))} here, {_told(theirs.get(name))} there"
            for name in sorted(ours.keys() | theirs.keys())
            if ours.get(name) != theirs.get(name)
        ]


class Part(NamedTuple):
    """What one server holds.

    Parameters
    ----------
    optimizers : list of dict
        As `skest.optimizers.state.named_state` describes them, with the parameters that
        the server has.
    tensors : dict of str to Tensor, or to what is read in blocks
        ``"variable:<name>"``, and slots as ``"<optimizer>:<name>/<slot>"``.
    """

    optimizers: list[dict[str, Any]]
    tensors: Mapping[str, Any]


def layout_of(variables: Sequence[Variable]) -> Layout:
    """Return where variables are in the buffer that they travel in."""
    return Layout((dtype_named(v.dtype), v.shape) for v in variables)


def variable_of(key: str) -> str:
    """Return the name of the variable in a key of `Part.tensors`."""
    # A name may have both; before the first colon and behind the last slash is none.
    owner, _, rest = key.partition(":")
    return rest if owner == "variable" else rest.rpartition("/")[0]


def unique_state(network: nn.Module) -> dict[str, Tensor]:
    """Return the ``state_dict`` with every tensor under its first name only.

    Names of parameters are those of ``named_parameters``.
    """
    # Tied weights are one variable: two servers would each update one of their own.
    found: dict[int, tuple[str, Tensor]] = {
        id(p): (name, p) for name, p in network.named_parameters()
    }
    for name, tensor in network.state_dict(keep_vars=True).items():
        if isinstance(tensor, Tensor):
            # Buffers come behind the parameters; what is there already is a tied name.
            found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def aliases(network: nn.Module) -> dict[str, str]:
    """Return the other names of tensors in the ``state_dict``, each with the first."""
    first = {id(tensor): name for name, tensor in unique_state(network).items()}
    return {
        name: first[id(tensor)]
        for name, tensor in network.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor) and first[id(tensor)] != name
    }


def _told(variable: Variable | None) -> str:
    if variable is None:
        return "none"
    return f"{variable.kind} {variable.dtype} {variable.shape} at {variable.ps}"


def place(sizes: Mapping[str, int], num_ps: int) -> dict[str, int]:
    """Spread variables over parameter servers by their size.

    Parameters
    ----------
    sizes : dict of str to int
        Bytes of each variable.
    num_ps : int
        Number of parameter servers, at least 1.

    Returns
    -------
    dict of str to int
        The number of a server for each name. It depends on nothing but the names and
        sizes: every process comes to the same.

    Notes
    -----
    The largest variable goes first, each to the server that has the fewest bytes so far,
    as with ``GreedyLoadBalancingStrategy`` of TensorFlow.

    Examples
    --------
    >>> from skest.distributed.ps.variables import place
    >>> place({"a": 10, "b": 30, "c": 20}, 2)
    {'a': 1, 'b': 0, 'c': 1}
    """
    load = [0] * num_ps
    chosen = {}
    # At most 4/3 of the best load (Graham 1969). In turns, as TensorFlow's servers get
    # theirs by default, the largest may all come to one.
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        # Even an empty variable takes part in a request.
        ps = min(range(num_ps), key=lambda ps: (load[ps], ps))
        load[ps] += sizes[name]
        chosen[name] = ps
    return {name: chosen[name] for name in sorted(chosen)}


def n_rows_of(n_rows: int, ps: int, num_ps: int) -> int:
    """Return how many rows of a table one server holds: every `num_ps`-th from `ps` on.

    Row ``r`` is row ``r // num_ps`` of server ``r % num_ps``. Ids that are sorted by how
    frequent they are are spread evenly so.
    """
    return len(range(ps, n_rows, num_ps))


@contextmanager
def hidden(network: nn.Module, names: set[str]) -> Iterator[None]:
    """Leave variables out of the ``state_dict`` of a network."""

    def leave_out(
        module: nn.Module, found: dict[str, Any], prefix: str, metadata: Any
    ) -> None:
        for name in names & found.keys():
            del found[name]

    # A checkpoint copies all that it finds, and tables here may be larger than the memory.
    handle = network.register_state_dict_post_hook(leave_out)
    try:
        yield
    finally:
        handle.remove()
