# SPDX-License-Identifier: Apache-2.0
"""Rows per second of data in memory, of files, and of a torch DataLoader, in one run.

Run it with ``python -m benchmarks.streaming [--rows 300000]``. The table has 8 numeric
columns, 2 string columns and a label. *Batches* only goes through them; *training* takes
steps with a network of 16 units on the numbers, *columns* with all of them as feature
columns. Every contender gives shuffled batches of
the same size; times are the medians of some runs, one contender after the other.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

import skest
from skest.feature_columns import infer_feature_columns
from skest.inputs import ArrayDataset, Pipeline, csv_input_fn, parquet_input_fn

NUMBERS = [f"number_{i}" for i in range(8)]
STRINGS = ["city", "product"]


def make_table(n_rows: int) -> pd.DataFrame:
    """Return the table."""
    rng = np.random.default_rng(0)
    table: dict[str, Any] = {name: rng.normal(size=n_rows) for name in NUMBERS}
    for name, n_levels in zip(STRINGS, (100, 10_000), strict=True):
        levels = np.array([f"{name} {i}" for i in range(n_levels)], dtype=object)
        table[name] = levels[rng.integers(0, n_levels, n_rows)]
    table["label"] = (table[NUMBERS[0]] > 0).astype(np.float32)
    return pd.DataFrame(table)


class Rows(Dataset[Any]):
    """What a user of torch writes: one row for an index, or the rows of a list of them."""

    def __init__(self, table: pd.DataFrame) -> None:
        self.columns = {
            name: column.to_numpy(dtype=object if name in STRINGS else None)
            for name, column in table.items()
        }

    def __len__(self) -> int:
        return len(self.columns["label"])

    def __getitem__(self, rows: Any) -> Any:
        features = {k: v[rows] for k, v in self.columns.items() if k != "label"}
        return features, self.columns["label"][rows]


def contenders(
    table: pd.DataFrame, folder: Path, batch_size: int
) -> dict[str, Callable[[], Iterable[Any]]]:
    """Return input functions by name."""
    rows = Rows(table)
    features = {k: v for k, v in rows.columns.items() if k != "label"}
    options: dict[str, Any] = {"label": "label", "shuffle": True, "seed": 0}

    def whole_batches() -> DataLoader[Any]:
        sampler = BatchSampler(RandomSampler(rows), batch_size, drop_last=False)
        return DataLoader(
            rows, sampler=sampler, batch_size=None, collate_fn=lambda b: b
        )

    return {
        "ArrayDataset": lambda: ArrayDataset(
            features, rows.columns["label"], batch_size=batch_size, shuffle=True, seed=0
        ),
        "parquet_input_fn": parquet_input_fn(
            folder / "t.parquet", batch_size, **options
        ),
        "csv_input_fn": csv_input_fn(folder / "t.csv", batch_size, **options),
        "DataLoader, batches by index": whole_batches,
        "DataLoader, row by row": lambda: DataLoader(rows, batch_size, shuffle=True),
        "Pipeline, row by row": lambda: (
            Pipeline(rows).shuffle(10_000, seed=0).batch(batch_size)
        ),
    }


def model_fn(features: Any, labels: Any, mode: str) -> skest.EstimatorSpec:
    """Return a small network of the numbers."""

    def encode(features: Any) -> torch.Tensor:
        numbers = [np.asarray(features[name]) for name in NUMBERS]
        return torch.from_numpy(np.stack(numbers, axis=1).astype(np.float32))

    network = torch.nn.Sequential(
        torch.nn.Linear(len(NUMBERS), 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)
    )
    return skest.EstimatorSpec(
        mode,
        network=network,
        encode=encode,
        loss=lambda y, z, x: (z[:, 0] - y).square().mean(),
        optimizer=torch.optim.SGD(network.parameters(), lr=0.01),
    )


def read(input_fn: Callable[[], Iterable[Any]]) -> None:
    """Go through all batches."""
    for _ in input_fn():
        pass


def train(input_fn: Callable[[], Iterable[Any]]) -> None:
    """Train on all batches."""
    skest.Estimator(model_fn, config=skest.RunConfig(random_seed=0)).train(input_fn)


def train_columns(input_fn: Callable[[], Iterable[Any]], sample: pd.DataFrame) -> None:
    """Train on all batches, which are encoded by feature columns."""
    features = sample.drop(columns="label")
    columns = infer_feature_columns(features).fit(features)
    model = skest.DNNRegressor((16,), feature_columns=columns, random_state=0)
    model.train(input_fn)


def seconds(function: Callable[[], None]) -> float:
    """Return the time of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    table = make_table(arguments.rows)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table.to_parquet(folder / "t.parquet", row_group_size=100_000)
        table.to_csv(folder / "t.csv", index=False)
        functions = contenders(table, folder, arguments.batch_size)
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(arguments.repeats):
            for who, input_fn in functions.items():
                for what, run in (
                    ("batches", read),
                    ("training", train),
                    ("columns", partial(train_columns, sample=table)),
                ):
                    spent = seconds(lambda run=run, f=input_fn: run(f))  # type: ignore[misc]
                    times.setdefault((who, what), []).append(spent)
    print(f"{arguments.rows:,} rows, batches of {arguments.batch_size}; 1,000 rows/s")
    print(f"{'':<30}{'batches':>10}{'training':>10}{'columns':>10}")
    for who in functions:
        rates = [
            arguments.rows / statistics.median(times[who, what]) / 1000
            for what in ("batches", "training", "columns")
        ]
        print(f"{who:<30}" + "".join(f"{rate:>10,.0f}" for rate in rates))


if __name__ == "__main__":
    main()
