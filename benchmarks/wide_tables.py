# SPDX-License-Identifier: Apache-2.0
"""Linear models on tables with few rows for each column.

``python -m benchmarks.wide_tables [--seeds 3]`` draws tables of 100 and 400 columns and
prints losses (logarithmic, or RMSE) for 4,000 further rows: of scikit-learn's
`LogisticRegression` or `Ridge`, and of skest's linear models as constructed, without rows
held out, and with. Means over seeds, which move table and estimator.
"""

import argparse
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression, Ridge

from benchmarks.measure import threads
from benchmarks.quality_models import held_out_loss, print_losses
from benchmarks.quality_tables import Split
from skest import LinearClassifier, LinearRegressor

N_HELD_OUT = 4_000
SIZES = [(1_000, 100), (2_000, 100), (4_000, 100)]
SIZES += [(1_000, 400), (2_000, 400), (4_000, 400), (8_000, 400)]
NAMES = ("scikit-learn", "as constructed", "none held out", "held out")


def tables(n_rows: int, n_columns: int, seed: int) -> Iterator[tuple[str, str, Split]]:
    """Yield name, task and rows of each table."""
    for name, X, y in _drawn(n_rows + N_HELD_OUT, n_columns, seed):
        task = "numbers" if name == "numbers" else "classes"
        split = Split(X[:n_rows], y[:n_rows], X[n_rows:], y[n_rows:])
        yield f"{name}, {n_rows:,} x {n_columns}", task, split


def _drawn(n_rows: int, n_columns: int, seed: int) -> Iterator[tuple[str, Any, Any]]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, n_columns))
    weights = rng.normal(size=n_columns)
    noise = rng.logistic(size=n_rows)
    yield "all columns", X, X @ weights * 2 / n_columns**0.5 + noise > 0
    few = {"n_informative": 5, "n_redundant": 15, "flip_y": 0.05, "random_state": seed}
    yield "20 columns", *make_classification(n_rows, n_columns, **few)
    words = (X > 1.6).astype(float)  # one in 18
    score = words @ weights
    yield "words", csr_array(words), score - np.median(score) + noise > 0
    yield "numbers", X, X @ weights * 0.5 + rng.normal(size=n_rows)


def models(task: str, seed: int) -> list[Any]:
    """Return a model for each of `NAMES`."""
    theirs, ours = LogisticRegression(max_iter=1_000), LinearClassifier
    if task == "numbers":
        theirs, ours = Ridge(), LinearRegressor
    holds_out = ("auto", False, True)
    return [theirs, *(ours(random_state=seed, early_stopping=h) for h in holds_out)]


def main() -> None:
    """Print a line for each table."""
    warnings.simplefilter("ignore")  # of models that have not converged
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide_tables")
    parser.add_argument("--seeds", type=int, default=3)
    n_seeds = parser.parse_args().seeds
    losses: dict[str, list[list[float]]] = {}
    with threads(1):
        for n_rows, n_columns in SIZES:
            for seed in range(n_seeds):
                for name, task, split in tables(n_rows, n_columns, seed):
                    row = [held_out_loss(m, task, split) for m in models(task, seed)]
                    losses.setdefault(name, []).append(row)
    print_losses(NAMES, losses)


if __name__ == "__main__":
    main()
