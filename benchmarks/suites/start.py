# SPDX-License-Identifier: Apache-2.0
"""The first training of a process."""

from collections.abc import Iterable
from functools import partial

from benchmarks import alone
from benchmarks.measure import Case, Settings, Suite, Timed
from benchmarks.suites import memory

TEXT = """\
From the start of a process until it has trained for an epoch with 30 numbers: the time of
its imports, and of all that is done once."""


def cases(settings: Settings) -> Iterable[Case]:
    """Return one case."""
    n_rows = settings.choose(1_000, 1_000, 100)
    work = {
        name: partial(alone.run, module, "fit_dense", n_rows, 128)
        for name, module in memory.MODULES.items()
    }
    yield Case(
        f"{n_rows:,} rows",
        {name: Timed(run, starts_processes=True) for name, run in work.items()},
        n_rounds=settings.choose(5, 3, 1),
    )


SUITE = Suite("start", "Start of a process", TEXT, "s", False, cases)
