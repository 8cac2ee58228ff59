# SPDX-License-Identifier: Apache-2.0
"""What a training step costs: eager, replayed, hand-written and in scikit-learn.

Run it with ``python -m benchmarks.steps [dense] [wide] [linear] [--rounds 5]``. Every
number is that of a whole ``fit`` on the same rows, with encoding and everything else in
it, in CPU time of the process and on one thread. The contenders take turns, so that other
work on the machine slows down all of them, and ratios are medians over the rounds.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from skest import (
    DNNClassifier,
    DNNLinearCombinedClassifier,
    LinearClassifier,
    RunConfig,
)
from skest import feature_columns as fc

HIDDEN = (128, 64)
N_INPUTS = 30
LEVELS = (10, 100, 1_000, 10_000, 50_000)
CROSS_BUCKETS = 100_000
LINEAR_BUCKETS = 1_000_000
Contenders = dict[str, Callable[[], object]]


def config(execution: Any) -> RunConfig:
    """Return settings without output."""
    return RunConfig(execution=execution, log_step_count_steps=None, num_threads=1)


def training(batch_size: int, n_epochs: int) -> dict[str, Any]:
    """Return arguments of an estimator that never stops early."""
    return {
        "batch_size": batch_size,
        "max_iter": n_epochs,
        "early_stopping": False,
        "n_iter_no_change": np.inf,
        "random_state": 0,
    }


def minimise(
    network: Callable[..., Tensor],
    optimizers: list[torch.optim.Optimizer],
    columns: list[Tensor],
    labels: Tensor,
    batch_size: int,
    n_epochs: int,
) -> None:
    """Train as one writes it by hand."""
    for _ in range(n_epochs):
        order = torch.randperm(len(labels))
        total = 0.0
        for start in range(0, len(labels), batch_size):
            rows = order[start : start + batch_size]
            for optimizer in optimizers:
                optimizer.zero_grad()
            logits = network(*[column[rows] for column in columns])
            loss = F.binary_cross_entropy_with_logits(logits, labels[rows])
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            total += loss.item()


def mlp(n_inputs: int) -> nn.Sequential:
    """Return the network that all contenders train."""
    return nn.Sequential(
        nn.Linear(n_inputs, HIDDEN[0]),
        nn.ReLU(),
        nn.Linear(HIDDEN[0], HIDDEN[1]),
        nn.ReLU(),
        nn.Linear(HIDDEN[1], 1),
    )


def dense(batch_size: int) -> tuple[Contenders, int]:
    """Return the contenders on dense numbers, and the steps that they take."""
    n_rows = max(12_800, 8 * batch_size)
    n_epochs = max(2, 800 * batch_size // n_rows // (1 + batch_size // 512))
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, N_INPUTS)).astype(np.float32)
    y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)

    def skest(execution: str) -> object:
        return DNNClassifier(
            HIDDEN,
            optimizer="adam",
            learning_rate=1e-3,
            config=config(execution),
            **training(batch_size, n_epochs),
        ).fit(X, y)

    def by_hand() -> None:
        network = mlp(N_INPUTS)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=True)
        labels = torch.tensor(y[:, None], dtype=torch.float32)
        minimise(network, [optimizer], [torch.tensor(X)], labels, batch_size, n_epochs)

    def sklearn() -> object:
        return MLPClassifier(
            HIDDEN,
            batch_size=batch_size,
            max_iter=n_epochs,
            n_iter_no_change=n_epochs + 1,
            alpha=0.0,
            random_state=0,
        ).fit(X, y)

    contenders = {
        "PyTorch by hand, fused Adam": by_hand,
        "skest, eager": partial(skest, "eager"),
        "skest, graph": partial(skest, "graph"),
        "scikit-learn, MLPClassifier": sklearn,
    }
    return contenders, n_epochs * -(-n_rows // batch_size)


def mixed_table(n_rows: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return 8 columns of numbers and 5 of strings, and labels."""
    rng = np.random.default_rng(0)
    table: dict[str, Any] = {f"number_{i}": rng.normal(size=n_rows) for i in range(8)}
    for n_levels in LEVELS:
        names = np.array([f"level {i}" for i in range(n_levels)], dtype=object)
        table[f"string_{n_levels}"] = names[rng.integers(0, n_levels, n_rows)]
    return pd.DataFrame(table), (table["number_0"] > 0).astype(int)


class WideAndDeep(nn.Module):
    """Wide & deep as one writes it by hand: with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        widths = [min(16, round(6 * n**0.25)) for n in LEVELS]
        pairs = list(zip(LEVELS, widths, strict=True))
        self.deep = nn.ModuleList(nn.Embedding(n, d, sparse=True) for n, d in pairs)
        sizes = [*LEVELS, CROSS_BUCKETS]
        self.wide = nn.ModuleList(nn.Embedding(n, 1, sparse=True) for n in sizes)
        self.wide_numbers = nn.Linear(8, 1)
        self.mlp = mlp(8 + sum(widths))

    def forward(self, numbers: Tensor, *ids: Tensor) -> Tensor:
        """Return logits of shape (n_rows, 1)."""
        vectors = [table(i) for table, i in zip(self.deep, ids, strict=False)]
        logits = self.mlp(torch.cat([numbers, *vectors], dim=1))
        for table, i in zip(self.wide, ids, strict=True):
            logits = logits + table(i)
        return logits + self.wide_numbers(numbers)


def wide(batch_size: int) -> tuple[Contenders, int]:
    """Return the contenders on a mixed table, and the steps that they take."""
    n_rows, n_epochs = 51_200, 3
    table, y = mixed_table(n_rows)
    strings = [f"string_{n}" for n in LEVELS]
    numbers = [
        fc.numeric_column(f"number_{i}", normalizer="standard") for i in range(8)
    ]
    categories = [fc.categorical_column_with_vocabulary_list(name) for name in strings]
    cross = fc.crossed_column([strings[0], strings[2]], CROSS_BUCKETS)
    embedded = [fc.embedding_column(column, "auto") for column in categories]

    def skest(execution: str, linear_optimizer: str = "adagrad") -> object:
        return DNNLinearCombinedClassifier(
            HIDDEN,
            linear_feature_columns=[*numbers, *categories, cross],
            dnn_feature_columns=[*numbers, *embedded],
            linear_optimizer=linear_optimizer,
            config=config(execution),
            **training(batch_size, n_epochs),
        ).fit(table, y)

    def by_hand() -> None:
        values = table.iloc[:, :8].to_numpy(np.float32)
        columns = [torch.tensor((values - values.mean(0)) / values.std(0))]
        codes = [pd.factorize(table[name])[0] for name in strings]
        codes.append((codes[0] * 1_000 + codes[2]) % CROSS_BUCKETS)
        columns += [torch.tensor(code) for code in codes]
        network = WideAndDeep()
        optimizer = torch.optim.Adagrad(network.parameters(), lr=0.05)
        labels = torch.tensor(y[:, None], dtype=torch.float32)
        minimise(network, [optimizer], columns, labels, batch_size, n_epochs)

    contenders = {
        "PyTorch by hand, sparse Adagrad": by_hand,
        "skest, eager": partial(skest, "eager"),
        "skest, graph": partial(skest, "graph"),
        "skest, graph, FTRL for the linear part": partial(skest, "graph", "ftrl"),
    }
    return contenders, n_epochs * -(-n_rows // batch_size)


class Linear(nn.Module):
    """A linear model of hashed ids as one writes it by hand."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [LINEAR_BUCKETS] * 4
        self.tables = nn.ModuleList(nn.Embedding(n, 1, sparse=True) for n in sizes)

    def forward(self, *ids: Tensor) -> Tensor:
        """Return logits of shape (n_rows, 1)."""
        return sum(table(i) for table, i in zip(self.tables, ids, strict=True))


def linear(batch_size: int) -> tuple[Contenders, int]:
    """Return linear contenders with large tables, and the steps that they take."""
    n_rows, n_epochs = 51_200, 3
    rng = np.random.default_rng(0)
    ids = {f"id_{i}": rng.integers(0, 10**6, n_rows) for i in range(4)}
    y = (ids["id_0"] % 2).astype(int)

    def skest(execution: str) -> object:
        columns = [
            fc.categorical_column_with_identity(name, LINEAR_BUCKETS) for name in ids
        ]
        return LinearClassifier(
            feature_columns=columns,
            optimizer="ftrl",
            config=config(execution),
            **training(batch_size, n_epochs),
        ).fit(pd.DataFrame(ids), y)

    def by_hand() -> None:
        network = Linear()
        optimizer = torch.optim.Adagrad(network.parameters(), lr=0.05)
        labels = torch.tensor(y[:, None], dtype=torch.float32)
        columns = [torch.tensor(column) for column in ids.values()]
        minimise(network, [optimizer], columns, labels, batch_size, n_epochs)

    contenders = {
        "PyTorch by hand, sparse Adagrad": by_hand,
        "skest, FTRL, eager": partial(skest, "eager"),
        "skest, FTRL, graph": partial(skest, "graph"),
    }
    return contenders, n_epochs * -(-n_rows // batch_size)


def report(title: str, contenders: Contenders, n_steps: int, n_rounds: int) -> None:
    """Run the contenders in turn and print a table."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(n_rounds + 1):
        for name, contender in contenders.items():
            start = time.process_time()
            contender()
            times[name].append((time.process_time() - start) / n_steps * 1e6)
    first = next(iter(times.values()))
    print(f"\n{title}: {n_steps} steps\n{'':<42}{'µs a step':>10}{'speed':>8}")
    for name, own in times.items():
        ratios = [
            a / b for a, b in zip(first[1:], own[1:], strict=True)
        ]  # one warms up
        speed = statistics.median(ratios)
        print(f"{name:<42}{statistics.median(own[1:]):>10.0f}{speed:>8.2f}", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=["dense", "wide", "linear"])
    parser.add_argument("--batch", type=int, nargs="*", default=[32, 128, 1024, 8192])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        if "dense" in arguments.parts:
            for batch_size in arguments.batch:
                report(
                    f"dense, batch {batch_size}", *dense(batch_size), arguments.rounds
                )
        if "wide" in arguments.parts:
            report("wide & deep, batch 512", *wide(512), arguments.rounds)
        if "linear" in arguments.parts:
            report("linear, 4 million weights", *linear(512), arguments.rounds)


if __name__ == "__main__":
    main()
