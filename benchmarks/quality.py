# SPDX-License-Identifier: Apache-2.0
"""How well estimators predict as they are constructed, on fifteen tables.

``python -m benchmarks.quality [--tables NAME ...] [--models NAME ...] [--seeds 5]
[--rows 12000] [--unseen] [--elsewhere] [--large] [--keel] [--broad] [--ablate]
[--peers] [--again] [--write]`` fits every model on every table, one thread, and adds
each result as a line to the file ``docs/benchmarks/quality/results.jsonl``.
What is there already is not fitted again, so that an interrupted run goes on where it was;
``--again`` fits it again. The seed moves split and estimator. With ``--write`` all that is
in the file becomes ``docs/benchmarks/quality.md``. ``--ablate`` fits DNN estimators with
one ingredient undone each, ``--peers`` libraries in environments of their own;
``--unseen`` takes tables that nothing was chosen with, ``--elsewhere`` those of a later
reader, ``--large`` all rows of larger ones, ``--keel`` those that papers compare with,
``--broad`` those of many columns.
"""

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks import machine, peers, quality_page
from benchmarks.broad_tables import BROAD
from benchmarks.elsewhere_tables import ELSEWHERE, LARGE
from benchmarks.keel_tables import KEEL
from benchmarks.measure import threads
from benchmarks.quality_models import ABLATIONS, MODELS, answers, scores
from benchmarks.quality_tables import TABLES, Split
from benchmarks.unseen_tables import UNSEEN
from skest import DNNClassifier

PEERS = {
    "LightGBM": peers.BOOSTING,
    "CatBoost": peers.BOOSTING,
    "RealMLP_TD": peers.PYTABKIT,
    "TabM_D": peers.PYTABKIT,
}
_TABLES = TABLES | UNSEEN | ELSEWHERE | LARGE | KEEL | BROAD
_ABLATED = [f"DNN: {name}" for name in ABLATIONS]
_OWN = [name for name in MODELS if name not in (*_ABLATED, "forest")]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality")
    parser.add_argument("--tables", nargs="+", choices=_TABLES)
    parser.add_argument("--models", nargs="+", choices=[*MODELS, *PEERS])
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--rows", type=int, default=12_000, help="of each part at most")
    parser.add_argument(
        "--unseen", action="store_true", help="tables that nothing was chosen with"
    )
    parser.add_argument(
        "--elsewhere", action="store_true", help="tables that a later reader picked"
    )
    parser.add_argument(
        "--large", action="store_true", help="all rows of larger tables"
    )
    parser.add_argument(
        "--keel", action="store_true", help="tables that papers compare with"
    )
    parser.add_argument("--broad", action="store_true", help="tables of many columns")
    parser.add_argument(
        "--ablate", action="store_true", help="one ingredient undone each"
    )
    parser.add_argument(
        "--peers", action="store_true", help="libraries of environments"
    )
    parser.add_argument("--again", action="store_true", help="what was measured, too")
    parser.add_argument("--write", action="store_true", help="the page")
    parser.add_argument("--out", type=Path, default=quality_page.FOLDER)
    given = parser.parse_args(arguments)
    group = UNSEEN if given.unseen else ELSEWHERE if given.elsewhere else TABLES
    group = LARGE if given.large else KEEL if given.keel else group
    group = BROAD if given.broad else group
    given.tables = given.tables or list(group)
    if given.models is None:
        given.models = (
            _ABLATED if given.ablate else list(PEERS) if given.peers else _OWN
        )
    return given


def fitted(model: str, task: str, split: Split, seed: int) -> dict[str, float]:
    """Return scores and processor seconds of a model of this environment."""
    estimator = MODELS[model](task, split.X, seed)
    start = time.process_time()
    estimator.fit(split.X, split.y)
    seconds = time.process_time() - start
    predicted, classes = answers(estimator, task, split.X_test)
    if isinstance(predicted, list):  # an array of two columns for each label
        predicted = np.stack([p[:, 1] for p in predicted], axis=1)
    return {**scores(task, split.y_test, predicted, classes), "seconds": seconds}


def fitted_apart(model: str, task: str, split: Split, seed: int) -> dict[str, float]:
    """Return scores and processor seconds of a model of another environment."""
    arrays: dict[str, np.ndarray] = {}
    X, X_test = split.X, split.X_test
    strings = X.columns.difference(X.select_dtypes("number").columns)
    both = pd.concat([X, X_test])[strings].apply(lambda c: pd.factorize(c)[0])
    for part, own, codes in (
        ("train", X, both[: len(X)]),
        ("test", X_test, both[len(X) :]),
    ):
        arrays[f"numbers_{part}"] = own.drop(columns=strings).to_numpy(np.float64)
        arrays[f"codes_{part}"] = codes.to_numpy(np.int64)
    classes: Any = []
    arrays["y"] = split.y
    if task == "classes":
        classes, arrays["y"] = np.unique(split.y, return_inverse=True)
    result = peers.run(
        PEERS[model],
        "fit_table.py",
        {"model": model, "task": task, "seed": seed},
        arrays,
    )
    predicted = np.asarray(result["predicted"])
    return {
        **scores(task, split.y_test, predicted, classes),
        "seconds": result["seconds"],
    }


def main(arguments: Sequence[str]) -> None:
    """Measure what is missing, and write the page."""
    given = parse(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "results.jsonl"
    # Larger tables have a part of the page of their own.
    n_rows = quality_page.ALL_ROWS if given.large else given.rows
    warnings.filterwarnings("ignore")
    with threads(1), path.open("a", encoding="utf-8") as file:
        there = {} if given.again else quality_page.load(path)
        DNNClassifier(max_iter=1).fit(
            [[0.0], [1.0]], [0, 1]
        )  # what is imported at first
        for seed in range(given.seeds):
            for table in given.tables:
                split = None
                for model in given.models:
                    if (table, model, seed, n_rows) in there:
                        continue
                    split = split or _TABLES[table].split(seed, n_rows)
                    fit = fitted_apart if model in PEERS else fitted
                    found: dict[str, Any] = fit(model, _TABLES[table].task, split, seed)
                    key = {"table": table, "model": model, "seed": seed}
                    found = {**key, "rows": n_rows, **found}
                    found["commit"] = machine.commit()
                    line = json.dumps(found)
                    print(line, file=file, flush=True)
                    print(line, flush=True)
    if given.write:
        print(quality_page.write(path, given.rows))


if __name__ == "__main__":
    main(sys.argv[1:])
