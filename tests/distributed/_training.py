# SPDX-License-Identifier: Apache-2.0
"""Small trainings with parameter servers in threads."""

from types import SimpleNamespace

import torch
from torch import nn

from skest.distributed.ps.checkpoint import snapshot, state_of, upload
from skest.distributed.ps.connection import Peer, PSClient
from skest.distributed.ps.exchange import Exchange
from skest.distributed.ps.variables import Variables
from skest.distributed.ps.worker import AsyncReplica

TIMEOUT = 10.0


def strategy(**changes):
    settings = {"timeout": TIMEOUT, "lease": 5.0, **changes}
    return SimpleNamespace(**settings)


def replica(addresses, task_type="chief", task_index=0, **options):
    """Return a replica that soon gives up."""
    changes = {k: options.pop(k) for k in ("timeout",) if k in options}
    options = {"attach_timeout": 20.0, **options}
    return AsyncReplica(
        strategy(**changes),
        ps_addresses=addresses,
        task_type=task_type,
        task_index=task_index,
        **options,
    )


class Counting(nn.Module):
    """A dense vector and a table whose gradients are small integers."""

    def __init__(self, n_rows=7):
        super().__init__()
        self.dense = nn.Parameter(torch.zeros(3))
        self.table = nn.Embedding(n_rows, 2, sparse=True)
        nn.init.zeros_(self.table.weight)

    def forward(self, ids):
        return self.dense.sum() + self.table(ids).sum()


class Trainer:
    """One worker without an Estimator: pulls, computes gradients, pushes."""

    def __init__(self, addresses, task_type="worker", index=0, network=None, make=None):
        self.network = network or Counting()
        make = make or (lambda params: torch.optim.SGD(params, lr=1.0))
        self.optimizer = make(self.network.parameters())
        self.client = PSClient(addresses, Peer(task_type, index), timeout=TIMEOUT)
        self.variables = Variables.of(self.network, [self.optimizer], len(addresses))
        self.client.connect()
        self.exchange = None

    def initialize(self):
        state = state_of(self.variables, self.network, [self.optimizer])
        upload(self.client, self.variables, state, 0)
        return self

    def begin(self):
        self.exchange = Exchange(
            self.client, self.network, [self.optimizer], self.variables
        )
        return self

    def values(self):
        """Return what the servers have, by name."""
        found = snapshot(self.client, self.variables, ["dense", "table"]).tensors
        return {name.partition(":")[2]: tensor[:] for name, tensor in found.items()}

    def pull(self, ids):
        self.exchange.pull(ids)

    def compute(self, ids):
        self.optimizer.zero_grad()
        loss = self.network(ids)
        (-loss).backward()

    def step(self, ids):
        self.pull(ids)
        self.compute(ids)
        self.exchange.push()

    def close(self):
        self.client.close()
