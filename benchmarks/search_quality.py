# SPDX-License-Identifier: Apache-2.0
"""What a search and its ensemble gain over a DNN as constructed.

``python -m benchmarks.search_quality [--tables NAME ...] [--seeds 3] [--rows 12000]
[--candidates 32]`` fits a DNN as constructed and a `RandomizedSearchCV` with its ensemble
on tables of `benchmarks.quality`, and prints their losses for the same rows held out, with
those of CatBoost that ``docs/benchmarks/quality/results.jsonl`` has. Each result is a line
of ``docs/benchmarks/quality/search.jsonl``; what is there is not measured again.
"""

import argparse
import json
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

from scipy.stats import loguniform, uniform

from benchmarks import machine, quality_page
from benchmarks.measure import threads
from benchmarks.quality_models import MODELS, scores
from benchmarks.quality_tables import TABLES, Split
from skest.model_selection import RandomizedSearchCV

FILE = quality_page.FOLDER / "search.jsonl"
# As wide as a user would make it who has seen none of the tables.
SPACE = {
    "hidden_units": [(64,), (128, 64), (256, 128), (128, 128, 128)],
    "activation": ["relu", "silu"],
    "dropout": uniform(0.0, 0.4),
    "weight_decay": loguniform(1e-4, 0.3),
    "learning_rate": loguniform(3e-4, 0.02),  # the highest of the recipe's schedule
    "n_members": [1, 3, 6],
}


def loss_of(model: Any, task: str, split: Split) -> float:
    """Return the loss of a fitted model for the rows held out."""
    if task == "numbers":
        return scores(task, split.y_test, model.predict(split.X_test), [])["loss"]
    probabilities = model.predict_proba(split.X_test)
    return scores(task, split.y_test, probabilities, model.classes_)["loss"]


def measured(table: str, seed: int, rows: int, n_candidates: int) -> dict[str, Any]:
    """Return losses and processor seconds, of what is constructed and of the search."""
    task = TABLES[table].task
    split = TABLES[table].split(seed, rows)
    model = MODELS["skest, DNN"](task, split.X, seed)
    start = time.process_time()
    default = loss_of(model.fit(split.X, split.y), task, split)
    seconds = time.process_time() - start
    scoring = "neg_root_mean_squared_error" if task == "numbers" else "neg_log_loss"
    search = RandomizedSearchCV(
        MODELS["skest, DNN"](task, split.X, seed),
        SPACE,
        n_iter=n_candidates,
        cv=3,
        scoring=scoring,
        random_state=seed,
        ensemble=True,
    )
    start = time.process_time()
    search.fit(split.X, split.y)
    return {
        "default": default,
        "seconds": seconds,
        "ensemble": loss_of(search.best_estimator_, task, split),
        "best": loss_of(search.best_estimator_.single_, task, split),
        "search_seconds": time.process_time() - start,
        "members": len(search.best_estimator_.estimators_),
    }


def report(results: Sequence[dict[str, Any]], rows: int) -> None:
    """Print the means by table, relative to the default's loss."""
    peers = quality_page.load(quality_page.FOLDER / "results.jsonl")
    print("| | default | best | ensemble | CatBoost | s | search, s |")
    print("|---|---|---|---|---|---|---|")
    ratios: dict[str, list[float]] = {"best": [], "ensemble": []}
    for table in dict.fromkeys(result["table"] for result in results):
        own = [result for result in results if result["table"] == table]
        mean = {
            name: statistics.fmean(result[name] for result in own)
            for name in ("default", "best", "ensemble", "seconds", "search_seconds")
        }
        for name, found in ratios.items():
            found.append(mean[name] / mean["default"])
        keys = [(table, "CatBoost", result["seed"], rows) for result in own]
        known = [peers[key]["loss"] for key in keys if key in peers]
        other = f"{statistics.fmean(known):.4g}" if len(known) == len(own) else ""
        print(
            f"| {table} | {mean['default']:.4g} | {mean['best']:.4g} "
            f"| {mean['ensemble']:.4g} | {other} | {mean['seconds']:.1f} "
            f"| {mean['search_seconds']:.0f} |"
        )
    means = {name: statistics.fmean(found) for name, found in ratios.items()}
    print(f"Mean loss relative to the default's: {means}")


def main(arguments: Sequence[str]) -> None:
    """Measure what is missing, and print all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search_quality")
    single = [name for name, table in TABLES.items() if table.task != "labels"]
    parser.add_argument("--tables", nargs="+", choices=single, default=single)
    parser.add_argument("--seeds", type=int, default=3, help="how many")
    parser.add_argument("--rows", type=int, default=12_000, help="of each part at most")
    parser.add_argument("--candidates", type=int, default=32)
    given = parser.parse_args(arguments)
    warnings.filterwarnings("ignore")
    results = []
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    there = [json.loads(line) for line in lines]
    with threads(1), FILE.open("a", encoding="utf-8") as file:
        for seed in range(given.seeds):
            for table in given.tables:
                key = {
                    "table": table,
                    "seed": seed,
                    "rows": given.rows,
                    "candidates": given.candidates,
                }
                found = next((r for r in there if key.items() <= r.items()), None)
                if found is None:
                    found = {
                        **key,
                        **measured(*key.values()),
                        "commit": machine.commit(),
                    }
                    print(json.dumps(found), file=file, flush=True)
                results.append(found)
    report(results, given.rows)


if __name__ == "__main__":
    main(sys.argv[1:])
