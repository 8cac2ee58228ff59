# SPDX-License-Identifier: Apache-2.0
"""Training examples per second as tables have more rows, and more columns."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import pandas as pd

from benchmarks import tables
from benchmarks.contenders import by_hand, with_skest
from benchmarks.measure import Case, Settings, Suite, Timed

ROWS_TEXT = """\
A whole `fit` of a network of 128 and 64 units on 10 numbers, Adam 1e-3, batches of 1,024,
as the number of rows grows; small tables are gone through more than once."""
COLUMNS_TEXT = """\
The same with batches of 512 as the number of columns grows, as an array and as the columns
of a DataFrame."""


def by_rows(settings: Settings) -> Iterable[Case]:
    """Return a case for each number of rows."""
    counts = settings.choose(
        (10_000, 100_000, 1_000_000, 10_000_000), (10_000, 100_000, 1_000_000), (100,)
    )
    least = settings.choose(1_000_000, 100_000, 1)  # examples
    for n_rows in counts:
        yield case(settings, n_rows, 10, 1_024, max(1, least // n_rows), n_rows)


def by_columns(settings: Settings) -> Iterable[Case]:
    """Return a case for each number of columns."""
    n_rows = settings.choose(51_200, 25_600, 100)
    for n_columns in settings.choose((10, 100, 1_000), (10, 100, 1_000), (10,)):
        n_epochs = settings.choose(4, 2, 1)
        yield case(settings, n_rows, n_columns, 512, n_epochs, n_columns, True)


def case(
    settings: Settings,
    n_rows: int,
    n_columns: int,
    batch_size: int,
    n_epochs: int,
    x: int,
    frame: bool = False,
) -> Case:
    """Return skest and the loop by hand, with a DataFrame too if `frame`."""
    X, y = tables.dense(n_rows, n_columns)
    given = (y, batch_size, n_epochs)
    long = n_rows > 10**6  # such work needs no warming up

    def timed(fit: Any, table: Any, n_threads: int = 1) -> Timed:
        return Timed(partial(fit, table, *given), n_threads, warms_up=not long)

    contenders = {
        "PyTorch by hand": timed(by_hand.fit_dense, X),
        "skest, auto": timed(with_skest.fit_dense, X, settings.n_threads),
    }
    if frame:
        names = [f"column_{i}" for i in range(n_columns)]
        table = pd.DataFrame(X, columns=names)
        contenders["skest, auto, DataFrame"] = timed(
            with_skest.fit_dense, table, settings.n_threads
        )
    return Case(
        f"{x:,}",
        contenders,
        lambda seconds: n_rows * n_epochs / seconds,
        x=x,
        n_rounds=settings.choose(3, 1, 1),
    )


ROWS = Suite("rows", "Growth with rows", ROWS_TEXT, "examples/s", True, by_rows, "rows")
COLUMNS = Suite(
    "columns",
    "Growth with columns",
    COLUMNS_TEXT,
    "examples/s",
    True,
    by_columns,
    "columns",
)
