# SPDX-License-Identifier: Apache-2.0
"""What the project set out to reach, and the table that tells if it did."""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["AIMS", "Aim", "found", "table", "times_as_good"]

AUTO, EAGER = "skest, auto", "skest, eager"
HAND, SPARSE = "PyTorch by hand", "PyTorch by hand, sparse"
MLP, TENSORFLOW = "scikit-learn, MLP", "tf.estimator"
PRODUCTS = "matrix products alone"


@dataclass(frozen=True)
class Aim:
    """How many times as good as another contender one should be.

    Parameters
    ----------
    suite, case : str
        Where it is measured; `case` is how the name of the case begins.
    name, other : str
        How the names of the two contenders begin.
    times : float
        What was aimed at.
    is_busy : bool, default=False
        Whether another process keeps a core busy.
    """

    suite: str
    case: str
    name: str
    other: str
    times: float
    is_busy: bool = False


def training(is_busy: bool) -> Iterator[Aim]:
    """Yield the aims that hold on an idle machine and beside a busy process."""
    for other, times in ((HAND, 1.8), (MLP, 1.8), ("skorch", 8.0), (TENSORFLOW, 5.0)):
        yield Aim("dense", "batch 128", AUTO, other, times, is_busy)
    yield Aim("dense", "batch 128", EAGER, HAND, 1 / 1.05, is_busy)
    yield Aim("wide_deep", "batch 512", AUTO, TENSORFLOW, 5.0, is_busy)
    yield Aim("wide_deep", "batch 512", AUTO, SPARSE, 1.2, is_busy)


AIMS = (
    *training(is_busy=False),
    Aim("predict_one", "", "skest", "scikit-learn", 1 / 1.5),
    *training(is_busy=True),
    *(Aim("dense", "batch", name, HAND, 1 / 1.3, True) for name in (AUTO, EAGER)),
)


def times_as_good(
    result: dict[str, Any], values: list[float], first: list[float]
) -> float:
    """Return the median over the rounds of how values compare with those of another."""
    pairs = zip(values, first, strict=True)
    if result["more_is_better"]:
        return statistics.median(own / other for own, other in pairs)
    return statistics.median(other / own for own, other in pairs)


def found(
    aim: Aim, results: Iterable[dict[str, Any]]
) -> list[tuple[str, float | None]]:
    """Return the names of the cases of an aim, and what was found; None: not measured."""
    cases = []
    for result in results:
        if (result["name"], result["run"]["busy"]) != (aim.suite, aim.is_busy):
            continue
        for case in result["cases"]:
            if not _begins(case["name"], aim.case):
                continue
            own, other = (_values(case, name) for name in (aim.name, aim.other))
            ratio = own and other and times_as_good(result, own, other)
            cases.append((case["name"], ratio or None))
    return cases


def _begins(name: str, start: str) -> bool:
    rest = name.removeprefix(start)
    return name.startswith(start) and not rest[:1].isdigit()


def _values(case: dict[str, Any], start: str) -> list[float] | None:
    values = case["values"] | case.get("bounds", {})
    return next((v for n, v in values.items() if n.startswith(start)), None)


def table(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table: a row for each aim and case."""
    lines = ["| | times | aim | found | | at most |", "|---" * 6 + "|"]
    for aim in AIMS:
        bounds = found(replace(aim, name=PRODUCTS), results)
        for (name, ratio), (_, bound) in zip(found(aim, results), bounds, strict=True):
            where = (
                f"{aim.suite}{', beside a busy core' if aim.is_busy else ''}, {name}"
            )
            what = f"{aim.name} / {aim.other}"
            text, told = "not measured", ""
            if ratio is not None:
                text, told = (
                    f"{ratio:.2f}",
                    "reached" if ratio >= aim.times else "missed",
                )
            most = "" if bound is None else f"{bound:.2f}"
            row = (where, what, f"{aim.times:.3g}", text, told, most)
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)
