# SPDX-License-Identifier: Apache-2.0
"""Searches of skest beside those of scikit-learn, and beside its own networks.

``python -m benchmarks.search [--quick] [--write]`` prints a table; with ``--write`` it
also becomes ``docs/benchmarks/search.md``, beside numbers and picture. A grid of learning
rates is fitted and scored on one core.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn import model_selection
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline

import skest.model_selection
from benchmarks import machine, plots, report, tables
from benchmarks.contenders import with_skest, with_sklearn
from benchmarks.measure import Case, Settings, Suite, Timed, measured, threads

OUT = report.FOLDER / "search"
THEIRS, OURS = "skest in scikit-learn's search", "skest in its own search"
MLP = "scikit-learn's MLP in scikit-learn's search"
Scores = dict[str, dict[str, np.ndarray]]
TEXT = """\
Processor seconds of a search among learning rates, without the refit. In parentheses: how
many times as fast as the first row."""
PAGE = """\
<!-- Written by benchmarks/search.py. -->
# Searches

{text}

{table}

![Searches](search/search.svg)

Epochs are 5 unless it says otherwise, on 2,048 rows in batches of 128; on Census 3, in
batches of 512. Halving ends at 27 epochs, with a third of the candidates each time: skest's
own search trains those that stay in the race on, scikit-learn's anew. MLP was not measured
there.

| skest, both searches | largest difference of a score | same ranking |
|---|---|---|
{same}

{measured_with}
"""


def searched(
    name: str, search: Any, X: Any, y: Any, scores: dict[str, np.ndarray]
) -> None:
    """Fit a search, and note its scores."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # in so few epochs
        scores[name] = search.fit(X, y).cv_results_["mean_test_score"]


def case(
    name: str,
    found: Mapping[str, tuple[Any, Mapping[str, Any]]],
    data: tuple[Any, Any],
    scores: Scores,
    cv: Any,
    n_rounds: int,
    kind: str = "GridSearchCV",
    **options: Any,
) -> Case:
    """Return a case; `found` has estimators and grids."""
    own = scores.setdefault(name, {})
    options |= {"cv": cv, "refit": False, "scoring": "neg_log_loss"}
    contenders = {}
    for who, (estimator, grid) in found.items():
        package = skest.model_selection if who == OURS else model_selection
        search = getattr(package, kind)(estimator, grid, **options)
        contenders[who] = Timed(partial(searched, who, search, *data, own))
    return Case(name, contenders, n_rounds=n_rounds, in_turns=True)


def small(hidden: tuple[int, ...], n_epochs: int, n_candidates: int) -> dict[str, Any]:
    """Return estimators of networks on numbers, and grids."""
    rates = np.logspace(-4, -2, n_candidates)
    own = with_skest.network(128, n_epochs).set_params(hidden_units=hidden)
    theirs = with_sklearn.network(128, n_epochs).set_params(hidden_layer_sizes=hidden)
    found: dict[str, Any] = dict.fromkeys(
        (THEIRS, OURS), (own, {"learning_rate": rates})
    )
    found[MLP] = theirs, {"learning_rate_init": rates}
    return found


def cases(settings: Settings, scores: Scores) -> Iterable[Case]:
    """Yield the cases."""
    n_rounds = settings.choose(3, 1, 1)
    numbers = tables.dense(2_560, 30)
    folds = list(KFold(5).split(numbers[0]))
    most, fewer = settings.choose((64, 20), (16, 4), (4, 2))
    for title, found, n_folds in (
        ("64 of 32 units", small((32,), 5, most), 1),
        ("20 of 128 and 64, 5 folds", small((128, 64), 5, fewer), 5),
    ):
        yield case(title, found, numbers, scores, folds[:n_folds], n_rounds)
    n_epochs, n_candidates = settings.choose((27, 27), (9, 9), (3, 3))
    found = small((128, 64), n_epochs, n_candidates)
    del found[MLP]
    options = {"resource": "max_iter", "max_resources": n_epochs, "min_resources": 1}
    yield case(
        f"halving of {n_candidates}",
        found,
        numbers,
        scores,
        folds[:1],
        n_rounds,
        "HalvingGridSearchCV",
        **options,
    )
    data = tables.census()
    rates = np.logspace(-4, -2, settings.choose(24, 4, 2))
    own = with_skest.one_hot_network(512, 3, data.numbers, data.strings)
    one_hot = with_sklearn.one_hot(data.numbers, data.strings)
    theirs = make_pipeline(one_hot, with_sklearn.network(512, 3))
    found = dict.fromkeys((THEIRS, OURS), (own, {"learning_rate": rates}))
    found[MLP] = theirs, {"mlpclassifier__learning_rate_init": rates}
    yield case("Census, 24, 3 folds", found, (data.X, data.y), scores, 3, 1)


def same(scores: Scores) -> str:
    """Return rows that tell how far the scores of both searches differ."""
    rows = []
    for name, own in scores.items():
        difference = np.abs(own[THEIRS] - own[OURS]).max()
        orders = (np.argsort(own[way]) for way in (THEIRS, OURS))
        is_same = "yes" if np.array_equal(*orders) else "no"
        rows.append(f"| {name} | {difference:.1g} | {is_same} |")
    return "\n".join(rows)


def page(result: report.Result, scores: Scores) -> str:
    """Return the page in Markdown."""
    return PAGE.format(
        text=TEXT,
        table=report.table(result),
        same=same(scores),
        measured_with=report.measured_with([result]),
    )


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write the page if that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.search")
    parser.add_argument("--quick", action="store_true", help="less work, one round")
    parser.add_argument("--write", action="store_true", help="write the page")
    given = parser.parse_args(arguments)
    scores: Scores = {}
    run = machine.about("benchmarks.search", arguments, clock="processor")
    settings = Settings("quick" if given.quick else "full", clock="processor")
    found = partial(cases, scores=scores)
    with threads(1):
        result = measured(
            Suite("searches", "Searches", TEXT, "s", False, found), settings
        )
    result["run"] = run
    text = page(result, scores)
    print(text)
    if given.write:
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "numbers.json").write_text(json.dumps(result, indent=1) + "\n")
        plots.draw(result, OUT / "search.svg")
        OUT.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
