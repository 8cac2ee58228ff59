# SPDX-License-Identifier: Apache-2.0
"""The variables in one parameter server, and the rule that updates them.

A worker describes its optimizers; the server makes them again, from classes that it knows.
"""

import inspect
import operator
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skest.checkpoints.checkpoint import with_prefix
from skest.core.checks import requires
from skest.distributed.layout import dtype_named
from skest.distributed.ps.messages import Reader, WireError
from skest.distributed.ps.rows import TablesElsewhere
from skest.distributed.ps.variables import (
    Part,
    Variable,
    Variables,
    layout_of,
    n_rows_of,
    variable_of,
)
from skest.feature_columns.lookup import row_table
from skest.optimizers.row_sparse import RowSparse, rule_of
from skest.optimizers.state import load_named_state, named_state, set_group_options

_IMPLEMENTATIONS = ("foreach", "fused")


class LockedRows:
    """A tensor whose rows others change; blocks of them are copied under a lock.

    Parameters
    ----------
    tensor : Tensor
        With at least one dimension.
    lock : lock
        Held by who changes rows.
    """

    def __init__(self, tensor: Tensor, lock: AbstractContextManager[Any]) -> None:
        self._tensor, self._lock = tensor, lock
        self.shape, self.dtype = tensor.shape, tensor.dtype

    def __getitem__(self, block: slice) -> Tensor:
        with self._lock:
            return self._tensor[block].clone()


class Shard:
    """Variables, slots and optimizers of one server.

    Parameters
    ----------
    variables : Variables
        Of the model.
    ps : int
        Number of this server.
    part : Part
        What it begins with. Its tensors become those of the server, without a copy.
    lock : lock
        Held by who calls `update`, and while rows of a `LockedRows` are read.

    Raises
    ------
    ValueError
        If a variable or slot is missing or has a wrong shape, or an optimizer can't be
        made here.
    """

    def __init__(
        self,
        variables: Variables,
        ps: int,
        part: Part,
        lock: AbstractContextManager[Any],
    ) -> None:
        self.variables, self.ps, self._lock = variables, ps, lock
        self._dense = variables.of_kind("dense", ps)
        self._tables = variables.of_kind("table", ps)
        # Ids are checked against these before an update begins, not by torch in its midst.
        n_rows = [n_rows_of(v.shape[0], ps, variables.num_ps) for v in self._tables]
        self._n_rows, self._limits = n_rows, torch.tensor(n_rows, dtype=torch.int64)
        self._layout = layout_of(self._dense)
        # Dense variables are views of it: a pull copies one piece of memory.
        self._buffer = torch.zeros(self._layout.size, dtype=torch.uint8)
        self._parameters: dict[str, nn.Parameter] = {}
        for v, place in zip(self._dense, self._layout.parts(self._buffer), strict=True):
            place.copy_(self._given(part.tensors, v, v.shape))
            self._parameters[v.name] = nn.Parameter(place)
        for v, n in zip(self._tables, n_rows, strict=True):
            shape = (n, *v.shape[1:])
            self._parameters[v.name] = row_table(self._given(part.tensors, v, shape))
        self._constants = {
            v.name: part.tensors[f"variable:{v.name}"]
            for v in variables.of_kind("constant", ps)
        }
        self._descriptions = part.optimizers
        self._optimizers = [
            rebuilt_optimizer(
                description, self._parameters, with_prefix(part.tensors, f"{i}:")
            )
            for i, description in enumerate(part.optimizers)
        ]

    def pull(self, reader: Reader, with_dense: bool) -> list[Tensor]:
        """Return copies of the dense variables and of the rows that are asked for."""
        found = [self._buffer.clone()] if with_dense else []
        if self._tables:
            counts = reader.take([len(self._tables)]).tolist()
            for v, ids in zip(self._tables, self._ids(reader, counts), strict=True):
                # A copy, made under the lock: it is sent when others may be updating again.
                found.append(self._parameters[v.name].detach().index_select(0, ids))
        return found

    def gradients(self, reader: Reader) -> dict[str, Tensor]:
        """Return gradients by the names of the variables that have one.

        Parameters
        ----------
        reader : Reader
            Takes what `skest.distributed.ps.exchange` sends.

        Raises
        ------
        WireError
            If it is not what this shard expects.
        """
        gradients = {}
        present = reader.take([len(self._dense)], torch.uint8).tolist()
        # All in one piece, as they are in memory: one copy, whatever the number of
        # variables.
        flat = reader.take([self._layout.size], torch.uint8)
        for v, part, is_there in zip(
            self._dense, self._layout.parts(flat), present, strict=True
        ):
            if is_there:
                gradients[v.name] = part
        if self._tables:
            counts = reader.take([len(self._tables)]).tolist()
            found = self._ids(reader, [max(count, 0) for count in counts])
            for v, ids, count in zip(self._tables, found, counts, strict=True):
                if count >= 0:
                    gradients[v.name] = self._rows(reader, v, ids)
        return gradients

    def set_options(self, options: Mapping[tuple[int, int], Any]) -> None:
        """Set options of parameter groups, by the number of optimizer and group."""
        for (i, j), values in options.items():
            optimizer = self._optimizers[i]
            if optimizer is not None:
                set_group_options(optimizer.param_groups[j], values)

    @torch.no_grad()
    def update(self, gradients: Mapping[str, Tensor]) -> None:
        """Update the variables with what `gradients` returned."""
        try:
            for name, gradient in gradients.items():
                self._parameters[name].grad = gradient
            for optimizer in self._optimizers:
                if optimizer is not None:
                    # As in one process, all optimizers see the gradients of the same
                    # step.
                    optimizer.step()
        finally:
            # The next push may have none for them, and optimizers pass over what has none.
            for name in gradients:
                self._parameters[name].grad = None

    def state(self, kinds: Sequence[str]) -> Part:
        """Return variables of some kinds, and their slots, to be saved.

        What is read as a whole is copied now. Tables and what is as large are not: their
        rows are read while others go on changing, as a saver of TensorFlow does, so that
        those of a checkpoint may be some updates apart.

        Parameters
        ----------
        kinds : sequence of str
            Of `Variable`.
        """
        kept = [v for kind in kinds for v in self.variables.of_kind(kind, self.ps)]
        names = {v.name for v in kept}
        held = {n: p.detach() for n, p in self._parameters.items() if n in names}
        live = {f"variable:{name}": tensor for name, tensor in held.items()}
        descriptions: list[dict[str, Any]] = []
        for i, (description, optimizer) in enumerate(
            zip(self._descriptions, self._optimizers, strict=True)
        ):
            # Slots may have come since, with the first step.
            now = dict(description)
            if optimizer is not None and held:
                slots, state = named_state(optimizer, self._parameters)
                live |= {f"{i}:{key}": slot for key, slot in slots.items()}
                now |= {key: state[key] for key in ("slots", "values")}
            descriptions.append(now)
        tables = {v.name for v in self._tables}
        tensors: dict[str, Any] = {
            key: LockedRows(tensor, self._lock)
            if variable_of(key) in tables and tensor.ndim
            else tensor.clone()
            for key, tensor in live.items()
        }
        constants = self._constants.items()  # which nobody changes
        tensors |= {f"variable:{name}": t for name, t in constants if name in names}
        return Part(descriptions, tensors)

    def _given(
        self, tensors: Mapping[str, Tensor], v: Variable, shape: tuple[int, ...]
    ) -> Tensor:
        """Return the values of a variable that this server was given."""
        given = tensors.get(f"variable:{v.name}")
        if given is None or given.shape != shape:
            got = "none" if given is None else str(tuple(given.shape))
            raise ValueError(
                f"Parameter server {self.ps} needs {shape} of the variable {v.name!r}, "
                f"got {got}."
            )
        return given.to(dtype_named(v.dtype)).contiguous()

    def _rows(self, reader: Reader, v: Variable, ids: Tensor) -> Tensor:
        parameter = self._parameters[v.name]
        values = reader.take((len(ids), *parameter.shape[1:]), parameter.dtype)
        return torch.sparse_coo_tensor(
            *(ids.unsqueeze(0), values, parameter.shape),
            is_coalesced=True,  # no id comes twice
            check_invariants=False,
        )

    def _ids(self, reader: Reader, counts: Sequence[int]) -> Sequence[Tensor]:
        """Return the ids of all tables, so many of each: they come in one piece."""
        # Rows of more ids would take more memory than the tables do.
        if min(counts) < 0 or any(map(operator.gt, counts, self._n_rows)):
            raise WireError(
                f"A message names {counts} rows of tables, of which parameter server "
                f"{self.ps} has {self._n_rows}; each may be named once."
            )
        ids = reader.take([sum(counts)])
        limits = self._limits.repeat_interleave(torch.tensor(counts))
        found = ids.split(counts)
        if ((ids < 0) | (ids >= limits)).any():
            raise WireError(
                f"A message has rows that parameter server {self.ps} does not have: its "
                f"tables have {self._n_rows}."
            )
        return found


def described(
    network: nn.Module, optimizers: Sequence[Optimizer]
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Return all that a server needs to make the same optimizers, and their slots."""
    descriptions: list[dict[str, Any]] = []
    tensors: dict[str, Tensor] = {}
    for i, optimizer in enumerate(optimizers):
        # By name: the numbers of parameters in a `state_dict` differ where there are fewer.
        slots, state = named_state(optimizer, network.named_parameters())
        tensors |= {f"{i}:{key}": slot for key, slot in slots.items()}
        for group, raw in zip(
            state["param_groups"], optimizer.param_groups, strict=True
        ):
            # Those of a GPU mean nothing to a server. A fused or foreach update rounds
            # differently now and then: one worker trains bit for bit as one process
            # only if servers take the same.
            on_cpu = all(p.device.type == "cpu" for p in raw["params"])
            chosen = {k: raw[k] for k in _IMPLEMENTATIONS if k in raw}
            group["implementation"] = chosen if on_cpu else {}
        rule = rule_of(optimizer)
        state["module"] = type(rule).__module__
        state["row_sparse"] = isinstance(optimizer, RowSparse)
        descriptions.append(state)
    return descriptions, tensors


def held_description(
    description: Mapping[str, Any], variables: Variables, ps: int
) -> dict[str, Any]:
    """Return the description of an optimizer with what one server has."""
    held = {v.name for v in variables.all if v.ps in (-1, ps)}
    # A copy: the same description goes to every server.
    part = dict(description)
    part["param_groups"] = [
        {**group, "params": [n for n in group["params"] if n in held]}
        for group in description["param_groups"]
    ]
    members = [n for group in part["param_groups"] for n in group["params"]]
    for key in ("slots", "values"):
        part[key] = {n: description[key][n] for n in members if n in description[key]}
    return part


def rebuilt_optimizer(
    description: Mapping[str, Any],
    parameters: Mapping[str, nn.Parameter],
    slots: Mapping[str, Tensor],
) -> Optimizer | None:
    """Make the optimizer that a worker described.

    Parameters
    ----------
    description : dict
        What `skest.optimizers.state.named_state` returned, with the ``module`` of the
        class, the ``implementation`` of each group, and whether it is ``row_sparse``.
    parameters : dict of str to Parameter
        Those in this process; the groups name no others.
    slots : dict of str to Tensor
        As `named_state` returned them. They become those of the optimizer, without a
        copy.

    Returns
    -------
    Optimizer or None
        None if it has no parameters here.

    Raises
    ------
    ValueError
        If the class is not known in this process, or can't be made or used as torch.optim
        does it. Nothing is imported because of a description.
    """
    groups = [
        {
            **group["options"],
            **group["implementation"],
            "params": [parameters[name] for name in group["params"]],
        }
        for group in description["param_groups"]
    ]
    # torch.optim refuses an empty list; a server may have none of its variables.
    if not any(group["params"] for group in groups):
        return None
    cls = _class(description["module"], description["class"])
    try:
        with TablesElsewhere():  # slots that are made at once are replaced below
            taken = list(inspect.signature(cls).parameters)[1:]
            # Some have no default: those of the first group do, for each group has its
            # own.
            first = {key: groups[0][key] for key in taken if key in groups[0]}
            made = cls(groups, **first)
    except Exception as error:
        raise ValueError(
            f"The optimizer {cls.__name__} can't be made again on a parameter server: "
            f"{error} Its constructor must take the options in its parameter groups."
        ) from error
    if description["row_sparse"]:
        made = RowSparse(made)
        # The rows of a step may all be in other servers: the step of the table counts
        # here, too.
        made.counts_all_steps = True
    load_named_state(made, parameters, slots, description, share=True)
    return made


def _class(module: str, name: str) -> type[Optimizer]:
    """Find a class of optimizers among those that are loaded already."""
    # Nothing is imported here: no message may choose what code is loaded.
    source = (
        torch.optim if module.startswith("torch.optim.") else sys.modules.get(module)
    )
    found = getattr(source, name, None)
    if not (isinstance(found, type) and issubclass(found, Optimizer)):
        raise ValueError(
            f"The optimizer {module}.{name} is not known on a parameter server, which "
            "knows those of torch.optim and skest, and what its own program has "
            "imported. Use one of those, or import the module where the parameter "
            "server is started."
        )
    if requires(found.step, "closure"):
        raise ValueError(
            f"The optimizer {name} computes the loss several times in a step, which no "
            "parameter server can do. Use another, such as Adagrad."
        )
    return found
