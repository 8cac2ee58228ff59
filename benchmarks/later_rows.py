# SPDX-License-Identifier: Apache-2.0
"""What `partial_fit` gains of rows that come after a fit, a few at a time.

``python -m benchmarks.later_rows [--seeds 2]`` fits on half of 8,000 rows of each table,
goes on with the other half in calls of so many rows, 200 calls at most, and prints the
loss for rows held out relative to that after the fit; "all" is a fit on both halves.
"""

import argparse
import pickle
import warnings
from collections.abc import Iterator

import numpy as np

from benchmarks.measure import threads
from benchmarks.quality_models import MODELS, answers, held_out_loss, scores
from benchmarks.quality_tables import TABLES

NAMES = "adult telco credit_default letter diamonds flights bike wine_quality".split()
SIZES = (1, 10, 50, 500)
MOST_CALLS = 200
MODEL = "skest, wide & deep"


def relative_losses(name: str, seed: int) -> Iterator[float]:
    """Yield the relative loss for each of `SIZES`, and for a fit on all rows."""
    table = TABLES[name]
    whole = table.split(seed, 8_000)
    n_rows = len(whole.X) // 2
    half = whole._replace(X=whole.X[:n_rows], y=whole.y[:n_rows])
    later_X, later_y = whole.X[n_rows:], np.asarray(whole.y[n_rows:])
    model = MODELS[MODEL](table.task, whole.X, seed)
    before = held_out_loss(model, table.task, half)
    fitted = pickle.dumps(model)
    for size in SIZES:
        model = pickle.loads(fitted)
        for start in range(0, min(len(later_X), MOST_CALLS * size), size):
            part = slice(start, start + size)
            model.partial_fit(later_X[part], later_y[part])
        found = answers(model, table.task, whole.X_test)
        yield scores(table.task, whole.y_test, *found)["loss"] / before
    model = MODELS[MODEL](table.task, whole.X, seed)
    yield held_out_loss(model, table.task, whole) / before


def main() -> None:
    """Print a line for each table, and the mean."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(prog="python -m benchmarks.later_rows")
    parser.add_argument("--seeds", type=int, default=2)
    seeds = range(parser.parse_args().seeds)
    print(f"{'rows in a call':<14}", *(f"{size:>6}" for size in (*SIZES, "all")))
    means = []
    with threads(1):
        for name in NAMES:
            found = [list(relative_losses(name, seed)) for seed in seeds]
            means.append(np.log(found).mean(axis=0))
            print(f"{name:<14}", *(f"{m:6.3f}" for m in np.exp(means[-1])), flush=True)
    print(f"{'mean':<14}", *(f"{m:6.3f}" for m in np.exp(np.mean(means, axis=0))))


if __name__ == "__main__":
    main()
