# SPDX-License-Identifier: Apache-2.0
"""What piecewise-linear columns cost, beside plain numbers.

``python -m benchmarks.piecewise`` times training steps of a network 128-64 on 20 numbers in
batches of 256, taking turns; ``python -m benchmarks.piecewise memory`` encodes a million
rows of 20 columns with 128 bins each, and trains on them.
"""

import resource
import sys
import time

import numpy as np
import torch

from skest import DNNClassifier, RunConfig
from skest.feature_columns import (
    DenseFeatures,
    FeatureColumns,
    numeric_column,
    piecewise_linear_column,
)
from skest.networks import DNN

_N_TURNS = 200


def _numbers(n_rows: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n_rows, 20), dtype=np.float32)


def _columns(dimension: int | None) -> list:
    plain = numeric_column("x", 20, normalizer="standard")
    if dimension is None:
        return [plain]
    source = numeric_column("x", 20)
    return [plain, piecewise_linear_column(source, "distinct:128", dimension)]


def _step(dimension: int | None):
    columns = FeatureColumns(_columns(dimension)).fit({"x": _numbers(4000)})
    encoded = columns.encode({"x": _numbers(256)})
    network = DNN(DenseFeatures(columns), (128, 64), 1)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)

    def step() -> None:
        optimizer.zero_grad()
        network(encoded).square().mean().backward()
        optimizer.step()

    return step


def steps() -> None:
    """Print the least time of a step, of many that take turns."""
    made = {dimension: _step(dimension) for dimension in (None, 4, 8, 16)}
    best = dict.fromkeys(made, np.inf)
    for _ in range(_N_TURNS):
        for dimension, step in made.items():
            begin = time.perf_counter()
            step()
            best[dimension] = min(best[dimension], time.perf_counter() - begin)
    for dimension, seconds in best.items():
        name = "plain numbers" if dimension is None else f"dimension {dimension}"
        print(f"{name:14} {1e3 * seconds:6.2f} ms  {seconds / best[None]:.2f}")


def memory() -> None:
    """Print the size of the encoded table, and the growth of the process."""
    X = {"x": _numbers(10**6)}
    y = X["x"][:, 0] > 0.5
    columns = FeatureColumns(_columns(8)).fit(X)
    encoded = columns.encode(X)
    size = sum(t.numel() * t.element_size() for t in encoded.values())
    del encoded
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    DNNClassifier(
        hidden_units=(128, 64),
        feature_columns=columns,
        optimizer="adagrad",
        learning_rate=0.05,
        batch_size=4096,
        max_steps=50,
        early_stopping=False,
        config=RunConfig(log_step_count_steps=None),
    ).fit(X, y)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"encoded {size / 2**20:.0f} MiB, process {after / 2**10:.0f} MiB, of which")
    print(f"{before / 2**10:.0f} MiB before the training")


if __name__ == "__main__":
    torch.set_num_threads(1)
    memory() if "memory" in sys.argv[1:] else steps()
