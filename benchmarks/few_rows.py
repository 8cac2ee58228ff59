# SPDX-License-Identifier: Apache-2.0
"""How well networks predict that learn from a few dozen rows, beside a linear model.

``python -m benchmarks.few_rows [--members 3 auto] [--seeds 4]`` takes 20, 40 and 56 rows
of eleven tables and prints, for each table, the loss for the held-out quarter relative to
that of `LogisticRegression` or `Ridge`: geometric means over rows and seeds.
"""

import argparse
import warnings
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from benchmarks.elsewhere_tables import ELSEWHERE
from benchmarks.measure import threads
from benchmarks.quality_models import MODELS, held_out_loss
from benchmarks.quality_tables import TABLES, Split
from benchmarks.unseen_tables import UNSEEN

NAMES = """breast_cancer wine iris telco adult pima credit_data diabetes wages wine_quality
bike""".split()
N_ROWS = (20, 40, 56)


def relative_losses(name: str, n_seeds: int, members: list[Any]) -> np.ndarray:
    """Return logarithms of relative losses, of shape (rows and seeds, members)."""
    table = {**TABLES, **ELSEWHERE, **UNSEEN}[name]
    found = []
    for seed in range(n_seeds):
        whole = table.split(seed, 12_000)
        strata = whole.y if table.task == "classes" else None
        for n_rows in N_ROWS:
            X, _, y, _ = train_test_split(
                whole.X, whole.y, train_size=n_rows, random_state=seed, stratify=strata
            )
            few = Split(X.reset_index(drop=True), y, whole.X_test, whole.y_test)
            models = [MODELS["linear"](table.task, whole.X, seed)]
            for n in members:
                network = MODELS["skest, DNN"](table.task, whole.X, seed)
                models.append(network.set_params(n_members=n))
            losses = [held_out_loss(model, table.task, few) for model in models]
            found.append(np.log(losses[1:]) - np.log(losses[0]))
    return np.array(found)


def main() -> None:
    """Print a line for each table, and the mean."""
    warnings.simplefilter("ignore")  # of columns that a few rows say nothing about
    parser = argparse.ArgumentParser(prog="python -m benchmarks.few_rows")
    parser.add_argument("--members", nargs="+", default=["3", "auto"])
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    members = [int(n) if n.isdigit() else n for n in given.members]
    means = []
    with threads(1):
        for name in NAMES:
            means.append(relative_losses(name, given.seeds, members).mean(axis=0))
            print(f"{name:<14}", *(f"{np.exp(m):6.3f}" for m in means[-1]), flush=True)
    print(f"{'mean':<14}", *(f"{m:6.3f}" for m in np.exp(np.mean(means, axis=0))))


if __name__ == "__main__":
    main()
