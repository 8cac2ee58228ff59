# SPDX-License-Identifier: Apache-2.0
"""A small network with a row table, and ways to train it and to save its optimizer."""

import json

import torch
from torch import nn

from skest.optimizers.state import named_state

NAMES = ["adagrad", "adam", "adamw", "ftrl", "momentum", "proximaladagrad"]
NAMES += ["rmsprop", "sgd"]


class Network(nn.Module):
    """An embedding, a hidden layer and a weight that some batches do not use."""

    def __init__(self, tables=False, rows=6, dtype=torch.float32):
        super().__init__()
        gen = torch.Generator().manual_seed(0)

        def tensor(*shape):
            return nn.Parameter(torch.randn(*shape, generator=gen, dtype=dtype))

        self.table = tensor(rows, 3)
        self.table.is_row_table = tables
        self.hidden = tensor(3, 2)
        self.late = tensor(2)

    def loss(self, ids, use_late):
        is_sparse = self.table.is_row_table
        rows = nn.functional.embedding(ids, self.table, sparse=is_sparse)
        out = rows @ self.hidden
        return (out * self.late if use_late else out).square().sum()


def train(network, optimizer, start, stop):
    for step in range(start, stop):
        optimizer.zero_grad()
        gen = torch.Generator().manual_seed(step)
        ids = torch.randint(0, 6, (4,), generator=gen)
        network.loss(ids, use_late=step > 1).backward()
        optimizer.step()


def weights(network):
    return torch.cat([p.detach().ravel() for p in network.parameters()])


def saved(optimizer, network):
    """The state as a checkpoint brings it back: copied tensors, JSON."""
    tensors, scalars = named_state(optimizer, network.named_parameters())
    tensors = {key: value.clone() for key, value in tensors.items()}
    return tensors, json.loads(json.dumps(scalars))
