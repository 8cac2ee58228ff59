# SPDX-License-Identifier: Apache-2.0
"""The state of all servers on its way from and to the checkpoints of the chief.

It travels in blocks of rows, which are read from a file and sent, or fetched and written:
no process but a server ever holds a table, and only the chief needs the directory.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skest.checkpoints.checkpoint import Checkpoint, with_prefix
from skest.checkpoints.format import blocks
from skest.distributed.layout import dtype_named, name_of_dtype
from skest.distributed.ps.connection import PSClient
from skest.distributed.ps.messages import Message, Op, Reader
from skest.distributed.ps.optimizers import described, held_description
from skest.distributed.ps.variables import (
    Part,
    Variables,
    n_rows_of,
    unique_state,
    variable_of,
)
from skest.exceptions import NanLossDuringTrainingError

# All that a process holds of a table at a time.
_BLOCK_BYTES = 1 << 24
# Servers draw no random numbers: states of generators stay with the process.
_OF_THIS_PROCESS = "random:"
# torch imports its compiler for the first optimizer of a process.
_SECONDS_TO_BEGIN = 60.0


class ServedTensor:
    """A tensor of a snapshot in the servers; rows are fetched when they are read.

    Parameters
    ----------
    client : PSClient
        Asks the servers.
    name : str
        As in `skest.distributed.ps.variables.Part`.
    dtype : torch.dtype
        Type of its values.
    shape : sequence of int
        Of all of it.
    holders : sequence of int or None
        Servers that have every ``len(holders)``-th row, beginning with the first. For
        None rows are zeros: a slot there has not been made yet.
    refuse_nan : bool, default=False
        Whether to read NaN raises NanLossDuringTrainingError: it must not be saved.
    """

    def __init__(
        self,
        client: PSClient,
        name: str,
        dtype: torch.dtype,
        shape: Sequence[int],
        holders: Sequence[int | None],
        *,
        refuse_nan: bool = False,
    ) -> None:
        self.dtype, self.shape = dtype, torch.Size(shape)
        self._client, self._name, self._holders = client, name, holders
        self._refuse_nan = refuse_nan

    def __getitem__(self, block: slice) -> Tensor:
        first, stop, _ = block.indices(self.shape[0])
        n_rows = max(0, stop - first)
        # Zeros: of holders that are None nothing will come.
        found = torch.zeros((n_rows, *self.shape[1:]), dtype=self.dtype)
        # As a whole, it might be larger than a message can be.
        for start, rows in blocks(found, _BLOCK_BYTES):
            self._fetch(first + start, rows)
        # Here, where all rows of a checkpoint pass by: nothing reads a table twice for
        # it.
        if self._refuse_nan and found.isnan().any():
            raise NanLossDuringTrainingError(
                f"The variable {variable_of(self._name)!r} is NaN in the parameter "
                "servers; it is not saved. Lower the learning rate, or clip the gradients."
            )
        return found

    def _fetch(self, start: int, into: Tensor) -> None:
        requests, places = {}, {}
        for ps, skipped, first, count in _shares(self._holders, start, len(into)):
            control = {"name": self._name, "first": first, "n": count}
            requests[ps] = Message(Op.FETCH, control=control)
            places[ps] = into[skipped :: len(self._holders)]
        for ps, reply in self._client.ask_each(requests).items():
            place = places[ps]
            place.copy_(Reader(reply).take(place.shape, place.dtype))


def _shares(
    holders: Sequence[int | None], start: int, n_rows: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield which of some rows each server has.

    That is its number, how many rows come before its first one, the number of that one as
    the server counts, and how many it has.
    """
    n = len(holders)
    for place, ps in enumerate(holders):
        skipped = (place - start) % n
        count = len(range(skipped, n_rows, n))
        if ps is not None and count:
            yield ps, skipped, (start + skipped) // n, count


class Snapshot(NamedTuple):
    """What servers hold at a step, of some kinds of variables.

    Parameters
    ----------
    step : int
        The global step.
    optimizers : list
        `Part.optimizers` of each server.
    tensors : dict of str to Rows
        Variables and slots, named as in `Part`.
    """

    step: int
    optimizers: list[list[dict[str, Any]]]
    tensors: dict[str, Any]

    def fetched(self) -> "Snapshot":
        """Return the same with all of its tensors in this process."""
        whole = {n: t[:] if t.shape else t for n, t in self.tensors.items()}
        return self._replace(tensors=whole)


def snapshot(
    client: PSClient,
    variables: Variables,
    kinds: Sequence[str],
    *,
    refuse_nan: bool = False,
) -> Snapshot:
    """Let all servers keep what they have, to be fetched before the next request.

    Parameters
    ----------
    client : PSClient
        Asks the servers.
    variables : Variables
        Of the network.
    kinds : sequence of str
        Of `skest.distributed.ps.variables.Variable`.
    refuse_nan : bool, default=False
        Whether to read a variable that is NaN is an error.
    """
    # All of them before the first fetch: the parts are of nearly the same step.
    replies = client.ask_all(Message(Op.SNAPSHOT, control={"kinds": list(kinds)}))
    contents = [
        {name: (dtype, shape) for name, dtype, shape in reply.control["tensors"]}
        for reply in replies
    ]
    by_name = {v.name: v for v in variables.all}
    tensors: dict[str, Any] = {}
    for ps, of_ps in enumerate(contents):
        for name, (dtype, shape) in of_ps.items():
            # Found at an earlier server, which looked for the shares of all others.
            if name in tensors:
                continue
            v = by_name[variable_of(name)]
            # A dense variable is as a whole on one server; a number, such as the step
            # counter of a table, is the same on all.
            holders: list[int | None] = [ps]
            n_rows = n_rows_of(v.shape[0], ps, variables.num_ps) if v.ps == -1 else None
            # Its rows of a table, and not a number that it has of it.
            if [*shape] == [n_rows, *v.shape[1:]]:
                shape = v.shape
                # Slots that come with the first step are not yet where no row was touched.
                holders = [i if name in c else None for i, c in enumerate(contents)]
            served = ServedTensor(
                *(client, name, dtype_named(dtype), shape or (1,), holders),
                refuse_nan=refuse_nan and name.startswith("variable:"),
            )
            # A number travels as a row of one, and is small enough to come at once.
            tensors[name] = served if shape else served[:].reshape(())
    parts = [reply.control["optimizers"] for reply in replies]
    return Snapshot(replies[0].step, parts, tensors)


def join(found: Snapshot, own: Checkpoint, others: Mapping[str, str]) -> Checkpoint:
    """Return the checkpoint of a training whose state is in servers.

    Parameters
    ----------
    found : Snapshot
        Of the dense variables and tables.
    own : Checkpoint
        Of the chief: all else is from there, such as buffers, options, and the position
        in the input.
    others : dict of str to str
        What `skest.distributed.ps.variables.aliases` returned for the network.
    """
    values = with_prefix(found.tensors, "variable:")
    # A file of a network has tied weights under all their names, as its state_dict has.
    values |= {other: values[name] for other, name in others.items()}
    random = {k: t for k, t in own.optimizer.items() if k.startswith(_OF_THIS_PROCESS)}
    slots = {k: t for k, t in found.tensors.items() if not k.startswith("variable:")}
    descriptions = []
    # Rates and other options are those of the chief, whose schedules set them; which slots
    # there are, the servers know.
    for i, options in enumerate(own.scalars["optimizers"]):
        merged: dict[str, Any] = {**options, "slots": {}, "values": {}}
        for part in found.optimizers:
            for key in ("slots", "values"):
                merged[key] |= part[i][key]
        descriptions.append(merged)
    return replace(
        own,
        variables={**own.variables, **values},
        optimizer={**random, **slots},
        scalars={**own.scalars, "optimizers": descriptions},
    )


def outlined(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint of which servers will have the tensors: they are but shapes."""

    def outline(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: tensor if name.startswith(_OF_THIS_PROCESS) else tensor.to("meta")
            for name, tensor in tensors.items()
        }

    variables, slots = outline(checkpoint.variables), outline(checkpoint.optimizer)
    return replace(checkpoint, variables=variables, optimizer=slots)


def state_of(
    variables: Variables,
    network: nn.Module,
    optimizers: Sequence[Optimizer],
    saved: Checkpoint | None = None,
) -> Part:
    """Return what all servers together shall begin with.

    Parameters
    ----------
    variables, network, optimizers
        Of the model; options of the optimizers are those of now.
    saved : Checkpoint, default=None
        Of this model: it has variables and slots. None is what they are in this process.
    """
    # Rates are those of now, also after a restart with another learning rate.
    descriptions, slots = described(network, optimizers)
    values: Mapping[str, Tensor] = unique_state(network)
    if saved is not None:
        of_saved = saved.scalars["optimizers"]
        for description, old in zip(descriptions, of_saved, strict=False):
            description |= {key: old[key] for key in ("slots", "values")}
        values = saved.variables
        slots = {
            name: slot
            for name, slot in saved.optimizer.items()
            if not name.startswith(_OF_THIS_PROCESS)
        }
    tensors = {f"variable:{v.name}": values[v.name].detach() for v in variables.all}
    return Part(descriptions, {**tensors, **slots})


def upload(client: PSClient, variables: Variables, state: Part, step: int) -> None:
    """Give all servers their variables, and let them begin.

    Parameters
    ----------
    client : PSClient
        Asks the servers.
    variables : Variables
        Of the network.
    state : Part
        What `state_of` returned.
    step : int
        The global step.
    """
    by_name, num_ps = {v.name: v for v in variables.all}, variables.num_ps
    contents: list[list[Any]] = [[] for _ in range(num_ps)]
    for name, tensor in state.tensors.items():
        v = by_name[variable_of(name)]
        for ps in range(num_ps) if v.ps == -1 else [v.ps]:
            shape = [*tensor.shape]
            if v.ps == -1 and tensor.shape == v.shape:
                # A slot of rows is divided as its table is.
                shape[0] = n_rows_of(shape[0], ps, num_ps)
            contents[ps].append([name, name_of_dtype(tensor.dtype), shape])
    # Servers make room first, and refuse what they can't hold before it is sent.
    announced = {
        ps: Message(
            Op.INIT,
            control={
                "variables": variables.to_json(),
                "optimizers": [
                    held_description(d, variables, ps) for d in state.optimizers
                ],
                "tensors": of_ps,
                "step": step,
            },
        )
        for ps, of_ps in enumerate(contents)
    }
    client.ask_each(announced)
    for name, tensor in state.tensors.items():
        v = by_name[variable_of(name)]
        # Block by block, since a table may be larger than the memory of this process.
        for start, rows in blocks(tensor, _BLOCK_BYTES):
            if v.ps == -1 and tensor.shape == v.shape:
                _put(client, name, [*range(num_ps)], start, rows)
                continue
            for ps in range(num_ps) if v.ps == -1 else [v.ps]:
                _put(client, name, [ps], start, rows)
    client.ask_all(Message(Op.COMMIT), more_seconds=_SECONDS_TO_BEGIN)


def _put(
    client: PSClient, name: str, holders: list[int], start: int, rows: Tensor
) -> None:
    """Send a block of rows, to each server those that it has."""
    requests = {}
    for ps, skipped, first, _ in _shares(holders, start, len(rows)):
        own = rows[skipped :: len(holders)].cpu()
        control = {"name": name, "first": first, "n": len(own)}
        requests[ps] = Message(Op.PUT, control=control, payload=[own])
    client.ask_each(requests)
