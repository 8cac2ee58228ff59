# SPDX-License-Identifier: Apache-2.0
"""How well estimators as constructed leave out columns that tell nothing.

``python -m benchmarks.noise_columns [--seeds 3]`` simulates tables of which few columns
say something about the label, and prints for each the loss (logarithmic, or RMSE) for rows
that were held out: means over seeds, which move table and estimator.
"""

import argparse
import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification, make_friedman1

from benchmarks.measure import threads
from benchmarks.quality_models import MODELS, held_out_loss, print_losses
from benchmarks.quality_tables import Split

NAMES = ("linear", "boosting", "skest, DNN", "skest, wide & deep")
N_HELD_OUT = 3_000


def tables(seed: int) -> Iterator[tuple[str, str, Split]]:
    """Yield name, task and rows of each table."""
    for n_rows, n_columns in ((1_500, 50), (1_500, 200), (5_000, 100)):
        X, y = make_classification(
            n_rows + N_HELD_OUT,
            n_columns,
            n_informative=8,
            n_redundant=0,
            flip_y=0.02,
            random_state=seed,
        )
        yield f"8 of {n_columns}, {n_rows:,} rows", "classes", _split(X, y, n_rows)
    for n_rows, n_columns in ((1_000, 10), (1_000, 100), (4_000, 50)):
        X, y = make_friedman1(
            n_rows + N_HELD_OUT, n_columns, noise=1, random_state=seed
        )
        yield f"5 of {n_columns}, {n_rows:,} rows", "numbers", _split(X, y, n_rows)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(3_000 + N_HELD_OUT, 30))
    y = (X[:, 0] * X[:, 1] > 0) ^ (rng.random(len(X)) < 0.05)
    yield "signs of 2 of 30, 3,000 rows", "classes", _split(X, y.astype(int), 3_000)


def _split(X: np.ndarray, y: np.ndarray, n_rows: int) -> Split:
    frame = pd.DataFrame(X).add_prefix("x")
    held_out = frame[n_rows:].reset_index(drop=True)
    return Split(frame[:n_rows], y[:n_rows], held_out, y[n_rows:])


def main() -> None:
    """Print a line for each table."""
    warnings.simplefilter("ignore")  # of a linear model that has not converged
    parser = argparse.ArgumentParser(prog="python -m benchmarks.noise_columns")
    parser.add_argument("--seeds", type=int, default=3)
    n_seeds = parser.parse_args().seeds
    losses: dict[str, list[list[float]]] = {}
    with threads(1):
        for seed in range(n_seeds):
            for name, task, split in tables(seed):
                models = [MODELS[model](task, split.X, seed) for model in NAMES]
                row = [held_out_loss(model, task, split) for model in models]
                losses.setdefault(name, []).append(row)
    print_losses(NAMES, losses)


if __name__ == "__main__":
    main()
