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

import numpy as np
from scipy.sparse import csr_array
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss, root_mean_squared_error

from benchmarks.measure import threads
from skest import LinearClassifier, LinearRegressor

N_HELD_OUT = 4_000
SIZES = [(1_000, 100), (2_000, 100), (4_000, 100)]
SIZES += [(1_000, 400), (2_000, 400), (4_000, 400), (8_000, 400)]
NAMES = ("scikit-learn", "as constructed", "none held out", "held out")


def tables(
    n_rows: int, n_columns: int, seed: int
) -> Iterator[tuple[str, object, object]]:
    """Yield name, rows and labels of each table."""
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


def losses(X: object, y: np.ndarray, n_rows: int, seed: int) -> list[float]:
    """Return the loss of each model."""
    is_number = y.dtype.kind == "f"
    ours = LinearRegressor if is_number else LinearClassifier
    models = [Ridge() if is_number else LogisticRegression(max_iter=1_000)]
    models.append(ours(random_state=seed))
    models += [ours(random_state=seed, early_stopping=held) for held in (False, True)]
    found = []
    for model in models:
        model.fit(X[:n_rows], y[:n_rows])
        if is_number:
            loss = root_mean_squared_error(y[n_rows:], model.predict(X[n_rows:]))
        else:
            loss = log_loss(y[n_rows:], model.predict_proba(X[n_rows:]))
        found.append(loss)
    return found


def main() -> None:
    """Print a line for each table."""
    warnings.simplefilter("ignore")  # of models that have not converged
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide_tables")
    parser.add_argument("--seeds", type=int, default=3)
    n_seeds = parser.parse_args().seeds
    found: dict[str, list[list[float]]] = {}
    with threads(1):
        for n_rows, n_columns in SIZES:
            for seed in range(n_seeds):
                for name, X, y in tables(n_rows + N_HELD_OUT, n_columns, seed):
                    row = losses(X, np.asarray(y), n_rows, seed)
                    name = f"{name}, {n_rows:,} x {n_columns}"
                    found.setdefault(name, []).append(row)
    print(f"{'':<28}", *(f"{name:>15}" for name in NAMES))
    for name, rows in found.items():
        print(f"{name:<28}", *(f"{loss:15.3f}" for loss in np.mean(rows, axis=0)))


if __name__ == "__main__":
    main()
