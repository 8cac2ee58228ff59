# SPDX-License-Identifier: Apache-2.0
"""How time and memory of an estimator as constructed grow with the rows of a table.

``python -m benchmarks.growth_as_constructed [--rows 10000 100000 1000000]`` fits a
`DNNClassifier` to 14 columns of numbers and 6 of strings, with 2 to 50,000 levels, in one
thread, and prints processor seconds, microseconds a row, the accuracy for 20,000 other
rows, and the peak of the memory.
"""

import argparse
import resource
import time

import numpy as np
import pandas as pd

from benchmarks.measure import threads
from skest import DNNClassifier

LEVELS = (2, 8, 30, 200, 2_000, 50_000)


def table(n_rows: int, seed: int) -> tuple[pd.DataFrame, np.ndarray]:
    """Return a table of numbers and strings, and noisy classes that depend on both."""
    rng = np.random.default_rng(seed)
    numbers = {f"n{i}": rng.normal(size=n_rows).astype(np.float32) for i in range(14)}
    strings = {}
    for i, n_levels in enumerate(LEVELS):
        levels = np.array([f"v{j}" for j in range(n_levels)], dtype=object)
        strings[f"c{i}"] = levels[rng.integers(0, n_levels, n_rows)]
    X = pd.DataFrame(numbers | strings)
    score = X["n0"] * X["n1"] + np.sin(3 * X["n2"]) + (X["c1"] == "v1")
    score += 0.2 * X["c3"].str.len() + rng.normal(size=n_rows)
    return X, (score > score.median()).to_numpy().astype(int)


def main() -> None:
    """Print a line for each number of rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth_as_constructed")
    counts = [10_000, 100_000, 1_000_000]
    parser.add_argument("--rows", type=int, nargs="+", default=counts)
    held_out = table(20_000, 1)
    for n_rows in parser.parse_args().rows:
        X, y = table(n_rows, 0)
        with threads(1):
            start = time.process_time()
            model = DNNClassifier(random_state=0).fit(X, y)
            seconds = time.process_time() - start
            accuracy = model.score(*held_out)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{n_rows:>9,} rows: {seconds:6.1f} s, {seconds / n_rows * 1e6:5.0f} µs a row, "
            f"{model.n_steps_} steps, accuracy {accuracy:.4f}, {peak:.2f} GiB",
            flush=True,
        )


if __name__ == "__main__":
    main()
