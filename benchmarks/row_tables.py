# SPDX-License-Identifier: Apache-2.0
"""What a training step costs as the table of an embedding grows.

Run it with ``python -m benchmarks.row_tables``. Rows that a batch does not touch get no
gradient and no update; beside it stands the same table with dense gradients.
"""

import statistics
import time

import torch
import torch.nn.functional as F

from skest.feature_columns.lookup import row_lookup, row_table
from skest.optimizers import make_optimizer

BATCH, DIMENSION = 512, 16


def step_microseconds(optimizer: str, n_rows: int, sparse: bool) -> float:
    """Return the median time of forward, backward and update."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(n_rows, DIMENSION, generator=generator)
    table = row_table(values) if sparse else torch.nn.Parameter(values)
    update = make_optimizer(optimizer, [table], 0.05)
    times = []
    for _ in range(60):
        ids = torch.randint(0, n_rows, (BATCH,), generator=generator)
        start = time.perf_counter()
        update.zero_grad()
        rows = row_lookup(table, ids) if sparse else F.embedding(ids, table)
        rows.square().mean().backward()
        update.step()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times[10:])


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"One step, batch {BATCH}, dimension {DIMENSION}, one thread; microseconds")
    print(f"{'optimizer':<12}{'rows':>12}{'touched rows':>16}{'all rows':>12}")
    for optimizer in ("adagrad", "ftrl", "adam"):
        for n_rows in (1_000, 10_000, 100_000, 1_000_000):
            touched = step_microseconds(optimizer, n_rows, sparse=True)
            dense = step_microseconds(optimizer, n_rows, sparse=False)
            print(f"{optimizer:<12}{n_rows:>12,}{touched:>16.0f}{dense:>12.0f}")


if __name__ == "__main__":
    main()
