# SPDX-License-Identifier: Apache-2.0
"""What a worker and the parameter servers exchange in a step."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from skest.distributed.ps.connection import PSClient
from skest.distributed.ps.messages import Message, Op, Reader
from skest.distributed.ps.rows import RemoteRows
from skest.distributed.ps.variables import Variable, Variables, layout_of
from skest.optimizers.state import group_options


class _Dense:
    """The dense variables that one server has, and their gradients, in two buffers."""

    def __init__(
        self, variables: Sequence[Variable], parameters: Mapping[str, nn.Parameter]
    ) -> None:
        self._members = [parameters[v.name] for v in variables]
        device = self._members[0].device if self._members else torch.device("cpu")
        # One buffer for each direction: a copy and a message take as long for a hundred
        # small variables as for one of their size.
        layout = layout_of(variables)
        self.values, self._flat = (
            torch.zeros(layout.size, dtype=torch.uint8, device=device) for _ in range(2)
        )
        self._places = layout.parts(self._flat)
        for parameter, value in zip(
            self._members, layout.parts(self.values), strict=True
        ):
            # The network computes with what lies in the buffer, where it comes to.
            parameter.data = value

    def gradients(self) -> list[Tensor]:
        """Return which of the variables have a gradient, and all gradients."""
        there = [i for i, p in enumerate(self._members) if p.grad is not None]
        # No gradient is not one of zeros: Adam and momentum move a variable by those.
        present = torch.zeros(len(self._members), dtype=torch.uint8)
        if there:
            present[there] = 1
            gradients: Any = [self._members[i].grad for i in there]
            torch._foreach_copy_([self._places[i] for i in there], gradients)
        return [present, self._flat]


class Exchange:
    """Brings variables to a network, and its gradients to the servers.

    Parameters
    ----------
    client : PSClient
        Asks the servers.
    network : nn.Module
        Its dense variables become parts of one buffer for each server, its tables
        empty.
    optimizers : sequence of Optimizer
        Their options go to the servers when they change.
    variables : Variables
        Of the network.

    Attributes
    ----------
    staleness : int
        Of the last update: how many others server 0 made since the variables were read.
    """

    def __init__(
        self,
        client: PSClient,
        network: nn.Module,
        optimizers: Sequence[Optimizer],
        variables: Variables,
    ) -> None:
        self._client, self._optimizers = client, optimizers
        parameters = dict(network.named_parameters())
        self._dense = [
            _Dense(variables.of_kind("dense", ps), parameters)
            for ps in range(variables.num_ps)
        ]
        self._num_ps = variables.num_ps
        self.rows = RemoteRows(network, variables, self._pull)
        # Also of servers that have no variables: one that hears of nobody for long ends.
        self._versions = [0] * self._num_ps
        self._told: list[list[Any]] = []
        self.staleness = 0

    def pull(self, features: Any) -> None:
        """Bring all that a step on a batch reads into the network."""
        self._pull(self.rows.begin_step(features), with_dense=True)

    def push(self) -> None:
        """Send the gradients that the network has, and wait until they are taken.

        Servers apply them before they do anything else that is asked for afterwards.

        Raises
        ------
        PeerLostError
            If they were, or may have been, not taken everywhere.
        """
        options = self._changed_options()
        requests = {
            ps: Message(
                Op.PUSH,
                number=self._versions[ps],
                control={"options": options} if options else {},
                payload=[*self._dense[ps].gradients(), *of_tables],
            )
            for ps, of_tables in enumerate(self._table_gradients())
        }
        self.staleness = self._client.ask_each(requests)[0].number

    def _pull(self, wanted: Mapping[int, Tensor], with_dense: bool = False) -> None:
        """Put rows, and maybe dense variables, into the network."""
        split = {n: self._shares(wanted[n]) for n in sorted(wanted)}
        requests = {}
        for ps in range(self._num_ps):
            counts = [0] * len(self.rows)
            # Ascending by the number of the table, as the server divides them.
            of_tables = [shares[ps][0] for shares in split.values()]
            for n, of_table in zip(split, of_tables, strict=True):
                counts[n] = len(of_table)
            # Rows that were met in the midst of a step, all of them of other servers.
            if not with_dense and not any(counts):
                continue
            # The ids of all tables are one tensor, which the counts divide.
            payload = [torch.tensor(counts), _together(of_tables)]
            requests[ps] = Message(Op.PULL, number=with_dense, payload=payload)
        for ps, reply in self._client.ask_each(requests).items():
            reader = Reader(reply)
            if with_dense:
                buffer = self._dense[ps].values
                buffer.copy_(reader.take(buffer.shape, torch.uint8))
                self._versions[ps] = reply.number
            for n, shares in split.items():
                ids, places = shares[ps]
                shape, dtype = self.rows.row_shape(n)
                found = reader.take((len(ids), *shape), dtype)
                self.rows.put(n, wanted[n][places], found)

    def _table_gradients(self) -> list[list[Tensor]]:
        """Return for each server how many rows of each table, all ids, and values.

        The number of a table without a gradient is -1.
        """
        counts: list[list[int]] = [[] for _ in range(self._num_ps)]
        ids: list[list[Tensor]] = [[] for _ in range(self._num_ps)]
        values: list[list[Tensor]] = [[] for _ in range(self._num_ps)]
        for found in self.rows.gradients():
            shares = [None] * self._num_ps if found is None else self._shares(found[0])
            for ps, share in enumerate(shares):
                counts[ps].append(-1 if share is None else len(share[0]))
                if share is not None and found is not None:
                    ids[ps].append(share[0])
                    values[ps].append(found[1][share[1]])
        return [
            [torch.tensor(counts[ps]), _together(ids[ps]), *values[ps]]
            for ps in range(self._num_ps)
        ]

    def _shares(self, ids: Tensor) -> list[tuple[Tensor, Any]]:
        """Return the ids that each server has, as it counts them, and their places."""
        if self._num_ps == 1:
            return [(ids, slice(None))]
        # Row i is row i // n of server i % n: partition_strategy "mod" of TensorFlow.
        # Vocabularies begin with what is frequent: with contiguous parts, the first of 20
        # servers had 13 times the mean number of rows of a batch, with these 1.02 times
        # (Zipf's law with exponent 1.05).
        servers = ids.remainder(self._num_ps)
        places = [(servers == ps).nonzero().ravel() for ps in range(self._num_ps)]
        return [(ids[at].div(self._num_ps, rounding_mode="floor"), at) for at in places]

    def _changed_options(self) -> list[Any]:
        """Return the options of parameter groups that changed since the last push."""
        now = [
            [i, j, group_options(group)]
            for i, optimizer in enumerate(self._optimizers)
            for j, group in enumerate(optimizer.param_groups)
        ]
        # Rates may change with every step, the other options hardly ever do.
        changed = [entry for entry in now if entry not in self._told]
        self._told = now
        return changed


def _together(ids: list[Tensor]) -> Tensor:
    return torch.cat(ids) if ids else torch.empty(0, dtype=torch.int64)
