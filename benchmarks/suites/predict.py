# SPDX-License-Identifier: Apache-2.0
"""What predictions cost: of one row, and of very many."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from benchmarks import tables
from benchmarks.contenders import (
    by_hand,
    in_their_own,
    with_skest,
    with_sklearn,
    with_skorch,
)
from benchmarks.measure import Case, Settings, Suite, Timed

LATENCY_TEXT = """\
`predict_proba` of one row with a fitted network of 128 and 64 units on 30 numbers: an array
goes in, an array comes out. tf.estimator builds its graph in every call of `predict`."""
THROUGHPUT_TEXT = """\
The same network, and very many rows at once; by hand they are one batch."""


def contenders(settings: Settings, n_rows: int, calls: int) -> dict[str, Any]:
    """Return what predicts so many rows, `calls` times in a measurement."""
    X, y = tables.dense(1_280, 30)
    rows = np.resize(X, (n_rows, 30))
    modules = {
        "PyTorch by hand": by_hand,
        "skest": with_skest,
        "scikit-learn, MLP": with_sklearn,
        "skorch": with_skorch,
    }
    found: dict[str, Any] = {}
    for name, module in modules.items():
        predict = module.fit_dense(X, y, 128, 1)
        n_threads = settings.n_threads if name == "skest" else 1
        found[name] = Timed(partial(predict, rows), n_threads, calls)
    few = max(1, calls // 50)  # they are slow, and say the mean of all calls
    return found | in_their_own.working(
        settings, "predict", {"X": X, "y": y}, n_rows=n_rows, calls=few
    )


def latency(settings: Settings) -> Iterable[Case]:
    """Return one case."""
    calls = settings.choose(500, 200, 2)
    yield Case(
        "one row",
        contenders(settings, 1, calls),
        lambda seconds: 1000 * seconds,
        n_rounds=settings.choose(5, 1, 1),
    )


def throughput(settings: Settings) -> Iterable[Case]:
    """Return one case."""
    n_rows = settings.choose(1_000_000, 1_000_000, 100)
    yield Case(
        f"{n_rows:,} rows",
        contenders(settings, n_rows, 1),
        lambda seconds: n_rows / seconds,
        n_rounds=settings.choose(3, 1, 1),
    )


LATENCY = Suite("predict_one", "Predicting one row", LATENCY_TEXT, "ms", False, latency)
THROUGHPUT = Suite(
    "predict_many", "Predicting many rows", THROUGHPUT_TEXT, "rows/s", True, throughput
)
