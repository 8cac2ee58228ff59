# SPDX-License-Identifier: Apache-2.0
"""What intra-op threads do to a small network, on an idle and on a busy machine.

Run it with ``python -m benchmarks.threads``. It fits the same `DNNClassifier` with skest's
own choice of threads and with two, alone and beside processes that keep cores busy.
"""

import multiprocessing
import statistics
import time

import numpy as np
import torch

from benchmarks.busy import busy
from skest import DNNClassifier, RunConfig


def fit_seconds(num_threads: int | str, repeats: int = 3) -> float:
    """Return the median time of a fit of 500 steps."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12_800, 30)).astype(np.float32)
    y = X[:, 0] > X[:, 1]
    seconds = []
    for _ in range(repeats):
        model = DNNClassifier(
            (128, 64),
            optimizer="adagrad",
            learning_rate=0.05,
            batch_size=128,
            max_iter=5,
            random_state=0,
            config=RunConfig(num_threads=num_threads),
        )
        start = time.perf_counter()
        model.fit(X, y)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def main() -> None:
    """Print the table."""
    cores = multiprocessing.cpu_count()
    torch.set_num_threads(2)
    fit_seconds("auto", repeats=1)
    print(f"500 steps of a 30-128-64-1 network, batch 128; {cores} cores; seconds")
    print(f"{'machine':<20}{'threads: auto':>16}{'threads: 2':>16}{'ratio':>8}")
    for name, n_busy in (
        ("idle", 0),
        ("one busy process", 1),
        ("all cores busy", cores),
    ):
        with busy(n_busy):
            auto, two = fit_seconds("auto"), fit_seconds(2)
        print(f"{name:<20}{auto:>16.2f}{two:>16.2f}{two / auto:>8.1f}")


if __name__ == "__main__":
    main()
