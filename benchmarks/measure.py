# SPDX-License-Identifier: Apache-2.0
"""Measures contenders that do the same work, one after the other or side by side.

Whatever else slows the machine down then slows all of them, and a ratio is taken within
its round.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from threadpoolctl import threadpool_limits

from benchmarks.turns import seconds_in_turns

CLOCKS: Mapping[str, Callable[[], float]] = {
    "wall": time.perf_counter,
    "processor": time.process_time,
}


@dataclass(frozen=True)
class Settings:
    """What holds for all suites of a run.

    Parameters
    ----------
    size : {"full", "quick", "tiny"}, default="full"
        How much work there is; "tiny" only shows that the suites run.
    clock : {"wall", "processor"}, default="wall"
        What is measured: time on the wall, or time of the processor, in which other work
        on the machine does not count.
    n_threads : int, default=1
        Intra-op threads that the process offers to skest; all others have one.
    peers : frozenset of str
        Names of the libraries in environments of their own that take part.
    """

    size: str = "full"
    clock: str = "wall"
    n_threads: int = 1
    peers: frozenset[str] = frozenset()

    @property
    def least_seconds(self) -> float:
        """How long a measurement in this process lasts at least.

        The clock of a machine that others share changes every few seconds: a fit of half
        a second beside one of four meets either its best or its worst.
        """
        return float(self.choose(2.0, 0.0, 0.0))

    def choose(self, full: Any, quick: Any, tiny: Any) -> Any:
        """Return what belongs to the size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]


class Contender(Protocol):
    """Something that takes part: it does the work and returns what that has cost."""

    warms_up: bool
    note: str

    def measure(self, settings: Settings) -> float:
        """Do the work once and return seconds, or MiB."""


@dataclass(frozen=True)
class Timed:
    """Work in this process, which is done `calls` times, or more often if it is short.

    `starts_processes` says that it does so: their time counts on the wall only.
    """

    work: Callable[[], object]
    n_threads: int = 1
    calls: int = 1
    note: str = ""
    warms_up: bool = True
    starts_processes: bool = False

    def measure(self, settings: Settings) -> float:
        """Return the seconds of one call."""
        clock = CLOCKS[settings.clock]
        with threads(self.n_threads):
            start, n_calls = clock(), 0
            while n_calls < self.calls or clock() - start < settings.least_seconds:
                self.work()
                n_calls += 1
            return (clock() - start) / n_calls


@dataclass(frozen=True)
class Reported:
    """Work in a process of its own, which warms up and measures itself."""

    work: Callable[[], Mapping[str, Any]]
    what: str = ""
    note: str = ""
    warms_up: bool = False

    def measure(self, settings: Settings) -> float:
        """Return what the process says under the name `what`, or that of the clock."""
        return self.work()[self.what or settings.clock]


@dataclass(frozen=True)
class Absent:
    """A contender that could not do the work; `note` says why."""

    note: str


@dataclass(frozen=True)
class Case:
    """The same work for some contenders, of which the first is what others relate to.

    Parameters
    ----------
    name : str
        What is special about the case.
    contenders : dict of str to Contender or Absent
        Who takes part.
    value : callable, default=float
        Turns what is measured into what is reported, e.g. seconds into examples/s.
    x : float, default=None
        Position of the case in a plot.
    n_rounds : int, default=5
        How often each contender is measured.
    bounds : dict of str to Contender, default={}
        What does only the part of the work that no contender can do without. It is
        measured like them, and is none of them.
    in_turns : bool, default=False
        Whether work of one thread is measured side by side, see `benchmarks.turns`.
    """

    name: str
    contenders: Mapping[str, Contender | Absent]
    value: Callable[[float], float] = float
    x: float | None = None
    n_rounds: int = 5
    bounds: Mapping[str, Contender] = field(default_factory=dict)
    in_turns: bool = False


@dataclass(frozen=True)
class Suite:
    """Cases that make one table.

    Parameters
    ----------
    name, title, text : str
        Name of its file, heading and description in Markdown.
    unit : str
        Unit of the values.
    more_is_better : bool
        Whether large values are good ones.
    cases : callable
        Returns them, one at a time, for some settings.
    x_label : str, default=""
        What `Case.x` is.
    """

    name: str
    title: str
    text: str
    unit: str
    more_is_better: bool
    cases: Callable[[Settings], Iterable[Case]] = field(repr=False)
    x_label: str = ""


@contextmanager
def threads(n_threads: int) -> Iterator[None]:
    """Limit the threads of torch, BLAS and OpenMP."""
    before = torch.get_num_threads()
    with threadpool_limits(n_threads):
        torch.set_num_threads(n_threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def measured(
    suite: Suite, settings: Settings, starts: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the values of all rounds of a suite, as JSON can hold them.

    With `starts`, only those of cases whose names begin with one of them.
    """
    cases = []
    for case in suite.cases(settings):
        if starts and not case.name.startswith(tuple(starts)):
            continue
        present = {
            n: c for n, c in case.contenders.items() if not isinstance(c, Absent)
        } | case.bounds
        for contender in present.values():
            if contender.warms_up:
                contender.measure(settings)
        values: dict[str, list[float]] = {name: [] for name in present}
        for _ in range(case.n_rounds):
            found = _in_turns(present, settings) if case.in_turns else {}
            for name, contender in present.items():
                if name not in found:
                    found[name] = contender.measure(settings)
                values[name].append(float(f"{case.value(found[name]):.6g}"))
        bounds = {name: values.pop(name) for name in case.bounds}
        notes = {name: c.note for name, c in case.contenders.items() if c.note}
        report: dict[str, Any] = {"values": values, "bounds": bounds, "notes": notes}
        report["in_turns"] = case.in_turns
        cases.append({"name": case.name, "x": case.x, **report})
    return {
        "name": suite.name,
        "title": suite.title,
        "text": suite.text,
        "unit": suite.unit,
        "more_is_better": suite.more_is_better,
        "x_label": suite.x_label,
        "cases": cases,
    }


def _in_turns(
    contenders: Mapping[str, Contender], settings: Settings
) -> dict[str, float]:
    """Return the seconds of those that are work of one thread and nothing else."""
    works = {
        name: contender.work
        for name, contender in contenders.items()
        if isinstance(contender, Timed)
        and contender.n_threads == 1
        and not contender.starts_processes
    }
    with threads(1):
        return seconds_in_turns(works, settings.least_seconds)
