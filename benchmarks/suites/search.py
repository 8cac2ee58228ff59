# SPDX-License-Identifier: Apache-2.0
"""A grid search with cross-validation."""

import warnings
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from benchmarks import tables
from benchmarks.contenders import with_skest, with_sklearn, with_skorch
from benchmarks.measure import Case, Settings, Suite, Timed

TEXT = """\
`GridSearchCV` over learning rates of a network of 128 and 64 units with 30 numbers, batches
of 128, 5 epochs; one candidate after the other (`n_jobs=1`)."""
BATCH_SIZE, N_EPOCHS, N_FOLDS = 128, 5, 5


def search(estimator: Any, rate: str, n_candidates: int, X: Any, y: Any) -> object:
    """Search among learning rates."""
    grid = {rate: np.logspace(-4, -2, n_candidates)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # so many epochs, no more
        return GridSearchCV(estimator, grid, cv=N_FOLDS).fit(X, y)


def cases(settings: Settings) -> Iterable[Case]:
    """Return one case."""
    n_candidates = settings.choose(20, 5, 1)
    X, y = tables.dense(settings.choose(2_560, 2_560, 100), 30)
    given = (BATCH_SIZE, N_EPOCHS)
    estimators = {
        "scikit-learn, MLP": (with_sklearn.network(*given), "learning_rate_init"),
        "skest, auto": (with_skest.network(*given), "learning_rate"),
        "skest, eager": (
            with_skest.network(*given, execution="eager"),
            "learning_rate",
        ),
        "skorch": (with_skorch.network(30, *given), "lr"),
    }

    def timed(name: str, estimator: Any, rate: str) -> Timed:
        labels = y.astype(np.float32) if name == "skorch" else y
        work = partial(search, estimator, rate, n_candidates, X, labels)
        return Timed(work, settings.n_threads if "skest" in name else 1)

    yield Case(
        f"{n_candidates} candidates, {N_FOLDS} folds",
        {name: timed(name, *given) for name, given in estimators.items()},
        n_rounds=settings.choose(3, 1, 1),
    )


SUITE = Suite("search", "Grid search", TEXT, "s", False, cases)
