# SPDX-License-Identifier: Apache-2.0
"""What piecewise-linear columns cost, beside plain numbers.

``python -m benchmarks.piecewise`` times training steps of networks of some widths on 20
numbers in batches of 256; ``python -m benchmarks.piecewise memory`` encodes a million
rows of 20 columns with 128 bins each, and trains on them.
"""

import resource
import sys
import time

import numpy as np
import torch

from skest import DNNClassifier, RunConfig
from skest.feature_columns import (
    FeatureColumns,
    numeric_column,
    piecewise_linear_column,
)

# The default, that of RealMLP_TD, and one such as are common for large tables.
_WIDTHS = ((128, 64), (256, 256, 256), (512, 512))
_N_TURNS = 4


def _numbers(n_rows: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_normal((n_rows, 20), dtype=np.float32)


def _columns(dimension: int | None) -> list:
    plain = numeric_column("x", 20, normalizer="standard")
    if dimension is None:
        return [plain]
    source = numeric_column("x", 20)
    return [plain, piecewise_linear_column(source, "distinct:128", dimension)]


def _seconds(widths: tuple[int, ...], dimension: int | None, n_epochs: int) -> float:
    """Return processor seconds of a fit by AdamW, without a schedule."""
    X = {"x": _numbers(100 * 256)}
    model = DNNClassifier(
        hidden_units=widths,
        feature_columns=FeatureColumns(_columns(dimension)),
        optimizer="adamw",
        learning_rate=1e-3,
        batch_size=256,
        max_iter=n_epochs,
        early_stopping=False,
        n_iter_no_change=np.inf,
        random_state=0,
    )
    start = time.process_time()
    model.fit(X, X["x"][:, 0] > 0)
    return time.process_time() - start


def steps() -> None:
    """Print the time of a step, the least of fits that take turns."""
    dimensions = (None, 4, 8, 16)
    for widths in _WIDTHS:
        best = dict.fromkeys(dimensions, np.inf)
        for _ in range(_N_TURNS):
            for dimension in dimensions:
                # What comes before the first step is in both.
                one, six = (_seconds(widths, dimension, n) for n in (1, 6))
                best[dimension] = min(best[dimension], (six - one) / 500)
        for dimension, seconds in best.items():
            name = "plain" if dimension is None else f"dimension {dimension}"
            ratio = seconds / best[None]
            print(f"{widths!s:16} {name:12} {1e3 * seconds:6.2f} ms  {ratio:.2f}")


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
