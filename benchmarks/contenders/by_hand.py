# SPDX-License-Identifier: Apache-2.0
"""PyTorch as one writes it by hand: the best simple loop."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

HIDDEN = (128, 64)
Predictor = Callable[[Any], np.ndarray]


def mlp(n_inputs: int) -> nn.Sequential:
    """Return the network that all contenders train."""
    return nn.Sequential(
        nn.Linear(n_inputs, HIDDEN[0]),
        nn.ReLU(),
        nn.Linear(HIDDEN[0], HIDDEN[1]),
        nn.ReLU(),
        nn.Linear(HIDDEN[1], 1),
    )


def minimise(
    network: Callable[..., Tensor],
    optimizer: torch.optim.Optimizer,
    columns: list[Tensor],
    labels: Tensor,
    batch_size: int,
    n_epochs: int,
) -> float:
    """Train with shuffled batches, and return the sum of the last epoch's losses."""
    total = torch.zeros((), device=labels.device)
    for _ in range(n_epochs):
        order = torch.randperm(len(labels), device=labels.device)
        total.zero_()
        for rows in order.split(batch_size):
            optimizer.zero_grad()
            logits = network(*[column.index_select(0, rows) for column in columns])
            targets = labels.index_select(0, rows)
            loss = F.binary_cross_entropy_with_logits(logits, targets)
            loss.backward()
            optimizer.step()
            total += loss.detach()
    return total.item()


def fit_dense(
    X: np.ndarray,
    y: np.ndarray,
    batch_size: int,
    n_epochs: int,
    *,
    device: str = "cpu",
    compiled: bool = False,
) -> Predictor:
    """Train a network on numbers."""
    torch.manual_seed(0)
    network = mlp(X.shape[1]).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
    columns = [torch.tensor(X, dtype=torch.float32, device=device)]
    labels = torch.tensor(y[:, None], dtype=torch.float32, device=device)
    call = torch.compile(network) if compiled else network
    minimise(call, optimizer, columns, labels, batch_size, n_epochs)

    @torch.inference_mode()
    def predict(X: np.ndarray) -> np.ndarray:
        inputs = torch.as_tensor(X, dtype=torch.float32, device=device)
        return network(inputs).sigmoid().flatten().cpu().numpy()

    return predict


class WideAndDeep(nn.Module):
    """A network of numbers and embedded ids beside a linear model of both."""

    def __init__(
        self, levels: Sequence[int], n_crossed: int, n_numbers: int, sparse: bool = True
    ) -> None:
        super().__init__()
        widths = [min(16, round(6 * n**0.25)) for n in levels]
        sizes = [*zip(levels, widths, strict=True)]
        self.deep = nn.ModuleList(nn.Embedding(n, d, sparse=sparse) for n, d in sizes)
        counts = [*levels, n_crossed]
        self.wide = nn.ModuleList(nn.Embedding(n, 1, sparse=sparse) for n in counts)
        self.wide_numbers = nn.Linear(n_numbers, 1)
        self.mlp = mlp(n_numbers + sum(widths))

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """Return logits of shape (n_rows, 1) for ids of shape (n_rows, n_columns)."""
        columns = ids.unbind(1)
        vectors = [t(i) for t, i in zip(self.deep, columns, strict=False)]
        logits = self.mlp(torch.cat([numbers, *vectors], dim=1))
        for table, column in zip(self.wide, columns, strict=True):
            logits = logits + table(column)
        return logits + self.wide_numbers(numbers)


def encode(
    table: pd.DataFrame,
    numbers: Sequence[str],
    strings: Sequence[str],
    crossed: Sequence[str],
    n_buckets: int,
) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return scaled numbers, ids of strings and cross, and the strings' levels."""
    values = table[list(numbers)].to_numpy(np.float32)
    factors = {name: pd.factorize(table[name]) for name in strings}
    levels = [len(names) for _, names in factors.values()]
    (first, _), (second, names) = (factors[name] for name in crossed)
    cross = (first * len(names) + second) % n_buckets
    codes = [codes for codes, _ in factors.values()]
    scaled = (values - values.mean(0)) / values.std(0)
    return scaled, np.stack([*codes, cross], axis=1), levels


def fit_wide_deep(
    table: pd.DataFrame,
    y: np.ndarray,
    batch_size: int,
    n_epochs: int,
    *,
    encoding: dict[str, Any],
    device: str = "cpu",
    compiled: bool = False,
) -> None:
    """Train wide & deep: sparse gradients, which torch.compile does not have."""
    torch.manual_seed(0)
    numbers, ids, levels = encode(table, **encoding)
    columns = [torch.tensor(numbers, device=device), torch.tensor(ids, device=device)]
    size, n_numbers = encoding["n_buckets"], numbers.shape[1]
    network = WideAndDeep(levels, size, n_numbers, sparse=not compiled).to(device)
    optimizer = torch.optim.Adagrad(network.parameters(), lr=0.05)
    labels = torch.tensor(y[:, None], dtype=torch.float32, device=device)
    call = torch.compile(network) if compiled else network
    minimise(call, optimizer, columns, labels, batch_size, n_epochs)


class Linear(nn.Module):
    """A linear model of ids."""

    def __init__(self, n_columns: int, n_buckets: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding(n_buckets, 1, sparse=True) for _ in range(n_columns)
        )

    def forward(self, *ids: Tensor) -> Tensor:
        """Return logits of shape (n_rows, 1)."""
        return sum(table(i) for table, i in zip(self.tables, ids, strict=True))


def fit_linear(
    ids: dict[str, np.ndarray],
    y: np.ndarray,
    batch_size: int,
    n_epochs: int,
    *,
    n_buckets: int,
) -> None:
    """Train a linear model with sparse Adagrad, for torch has no FTRL."""
    network = Linear(len(ids), n_buckets)
    optimizer = torch.optim.Adagrad(network.parameters(), lr=0.05)
    labels = torch.tensor(y[:, None], dtype=torch.float32)
    columns = [torch.tensor(column) for column in ids.values()]
    minimise(network, optimizer, columns, labels, batch_size, n_epochs)
