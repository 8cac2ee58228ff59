# SPDX-License-Identifier: Apache-2.0
"""The peak of memory of a process that trains."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from benchmarks import alone, tables
from benchmarks.contenders import in_their_own
from benchmarks.measure import Case, Reported, Settings, Suite

TEXT = """\
The peak of the memory of a process that does nothing but train for an epoch, with the
libraries that it imports and with the data: dense numbers (30 columns) and the table of
wide & deep. Measured on Linux only."""
MODULES = {
    "PyTorch by hand": "by_hand",
    "skest, auto": "with_skest",
    "scikit-learn, MLP": "with_sklearn",
    "skorch": "with_skorch",
}


def cases(settings: Settings) -> Iterable[Case]:
    """Return a case for each kind of data."""
    if not alone.STATUS.exists():
        return
    n_rows = settings.choose(1_000_000, 100_000, 256)
    X, y = tables.dense(n_rows, 30)
    yield case(settings, "fit_dense", n_rows, 1_024, {"X": X, "y": y})
    n_rows = settings.choose(512_000, 51_200, 256)
    table = tables.mixed(n_rows)
    arrays = {**tables.mixed_arrays(n_rows), "y": tables.mixed_labels(table)}
    options = {"encoding": tables.encoding(), "levels": tables.levels_of()}
    yield case(settings, "fit_wide_deep", n_rows, 512, arrays, **options)


def case(
    settings: Settings,
    function: str,
    n_rows: int,
    batch_size: int,
    arrays: dict[str, Any],
    **options: Any,
) -> Case:
    """Return the contenders of a kind of data."""
    kind = function.removeprefix("fit_")
    contenders = {
        name: Reported(partial(alone.run, module, function, n_rows, batch_size), "peak")
        for name, module in MODULES.items()
        if kind == "dense" or module != "with_sklearn"
    }
    given = {"batch_size": batch_size, "n_epochs": 1, **options}
    title = {"dense": "dense", "wide_deep": "wide & deep"}[kind]
    return Case(
        f"{title}, {n_rows:,} rows",
        contenders | in_their_own.working(settings, kind, arrays, what="peak", **given),
        n_rounds=settings.choose(2, 1, 1),
    )


SUITE = Suite("memory", "Memory", TEXT, "MiB", False, cases)
