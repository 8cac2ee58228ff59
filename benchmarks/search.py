# SPDX-License-Identifier: Apache-2.0
"""Many fits on one table: `fit_many` beside one fit after the other.

Run it with ``python -m benchmarks.search``. Candidates differ in their learning rates.
"One core" are seconds of processor time, which other work on the machine disturbs little;
"all cores" are seconds on the wall, of joblib's processes, which have been started before.
Turns are taken; medians are shown.
"""

import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from joblib import Parallel, cpu_count, delayed
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline

from benchmarks import tables
from benchmarks.contenders import with_skest, with_sklearn
from skest.model_selection import GridSearchCV as TogetherCV
from skest.model_selection import fit_many

N_ROUNDS = 3
BATCH_SIZE, N_EPOCHS = 128, 5


def fit_quietly(estimator: Any, X: Any, y: Any) -> Any:
    """Return a fitted clone; in so few epochs none converges."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return clone(estimator).fit(X, y)


def one_after_the_other(
    n_jobs: int, estimators: list[Any], X: Any, y: Any, rows: list[Any]
) -> list[Any]:
    """Fit as scikit-learn's searches do."""
    fits = [
        delayed(fit_quietly)(estimator, X[own], y[own])
        for estimator, own in zip(estimators, rows, strict=True)
    ]
    fitted: list[Any] = Parallel(n_jobs=n_jobs)(fits)
    return fitted


def together(
    n_jobs: int, estimators: list[Any], X: Any, y: Any, rows: list[Any]
) -> list[Any]:
    """Fit with `fit_many`."""
    return fit_many(estimators, X, y, rows=rows, n_jobs=n_jobs)


Way = Callable[[int, list[Any], Any, Any, list[Any]], list[Any]]


def seconds(ways: dict[str, tuple[Way, list[Any]]], n: int, *given: Any) -> list[float]:
    """Return the median seconds of each way with `n` processors."""
    clock = time.process_time if n == 1 else time.perf_counter
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(N_ROUNDS + 1):
        for name, (way, estimators) in ways.items():
            start = clock()
            way(n, estimators, *given)
            if turn:  # the first starts processes and fills caches
                found[name].append(clock() - start)
    return [statistics.median(times) for times in found.values()]


def case(title: str, hidden: tuple[int, ...], n_candidates: int, n_folds: int) -> None:
    """Print one table."""
    X, y = tables.dense(2_560, 30)
    rates = np.logspace(-4, -2, n_candidates)
    folds = [train for train, _ in KFold(5).split(X)][:n_folds]
    network = with_skest.network(BATCH_SIZE, N_EPOCHS).set_params(hidden_units=hidden)
    theirs = with_sklearn.network(BATCH_SIZE, N_EPOCHS)
    theirs.set_params(hidden_layer_sizes=hidden)
    own = [clone(network).set_params(learning_rate=r) for r in rates for _ in folds]
    mlps = [
        clone(theirs).set_params(learning_rate_init=r) for r in rates for _ in folds
    ]
    given = (X, y, folds * n_candidates)
    ways: dict[str, tuple[Way, list[Any]]] = {
        "scikit-learn's MLP": (one_after_the_other, mlps),
        "skest, one after the other": (one_after_the_other, own),
        "skest, fit_many": (together, own),
    }
    one, several = seconds(ways, 1, *given), seconds(ways, cpu_count(), *given)
    print(f"\n{title}\n{'':<28}{'one core':>10}{'':>8}{'all cores':>10}")
    for name, a, b in zip(ways, one, several, strict=True):
        ratios = f"{a / one[-1]:>7.1f}x", f"{b / several[-1]:>7.1f}x"
        print(f"{name:<28}{a:>10.2f}{ratios[0]}{b:>10.2f}{ratios[1]}")
    scores = [
        [model.predict_proba(X)[:, 1] for model in way(1, own, *given)]
        for way in (one_after_the_other, together)
    ]
    print(
        f"largest difference of a probability: {np.abs(np.subtract(*scores)).max():g}"
    )


def census(n_candidates: int = 24, n_folds: int = 3, n_epochs: int = 3) -> None:
    """Print the seconds of searches over Census income, from raw strings."""
    data = tables.census()
    rates = np.logspace(-4, -2, n_candidates)
    own = with_skest.one_hot_network(512, n_epochs, data.numbers, data.strings)
    theirs = make_pipeline(
        with_sklearn.one_hot(data.numbers, data.strings),
        with_sklearn.network(512, n_epochs),
    )
    searches = {
        "scikit-learn's MLP": GridSearchCV(
            theirs, {"mlpclassifier__learning_rate_init": rates}
        ),
        "skest, one after the other": GridSearchCV(own, {"learning_rate": rates}),
        "skest.model_selection": TogetherCV(own, {"learning_rate": rates}),
    }
    print(f"\nCensus, {n_candidates} candidates x {n_folds} folds, {n_epochs} epochs")
    found = {}
    for name, search in searches.items():
        search.set_params(
            cv=n_folds, n_jobs=cpu_count(), refit=False, scoring="neg_log_loss"
        )
        start = time.perf_counter()
        found[name] = fit_quietly(search, data.X, data.y).cv_results_
        print(f"{name:<28}{time.perf_counter() - start:>10.1f}")
    _, alone, at_once = (results["mean_test_score"] for results in found.values())
    is_same = (np.argsort(alone) == np.argsort(at_once)).all()
    print(f"same order: {is_same}; scores differ by {np.abs(alone - at_once).max():g}")


def main() -> None:
    """Print the tables."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    print(f"30 numbers, 2,048 rows, {N_EPOCHS} epochs of batches of 128; seconds")
    case("20 candidates x 5 folds, layers of 128 and 64", (128, 64), 20, 5)
    case("64 candidates, one layer of 32", (32,), 64, 1)
    census()


if __name__ == "__main__":
    main()
