# SPDX-License-Identifier: Apache-2.0
"""Plots of the results of `benchmarks.run`."""

import statistics
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

__all__ = ["draw", "file_name"]


def file_name(result: dict[str, Any]) -> str:
    """Return the name of the plot of a result."""
    return f"{result['name']}{'-busy' * result['run']['busy']}.svg"


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw lines where cases have a position, else bars.

    The same result gives the same file, so that git shows no changes that are none.
    """
    with matplotlib.rc_context({"svg.hashsalt": result["name"], "font.size": 9}):
        lines = bool(result["x_label"]) and len(result["cases"]) > 1
        n_bars = sum(len(case["values"]) for case in result["cases"])
        height = 3.6 if lines else 0.9 + 0.22 * n_bars
        figure = Figure(figsize=(7, height), layout="constrained")
        axes = figure.subplots()
        (_lines if lines else _bars)(axes, result)
        axes.set_title(
            result["title"] + ", beside a busy process" * result["run"]["busy"]
        )
        figure.savefig(path, metadata={"Date": None})


def _lines(axes: Axes, result: dict[str, Any]) -> None:
    points: dict[str, list[tuple[float, float]]] = {}
    for case in result["cases"]:
        if case["x"] is None:
            continue
        for name, values in case["values"].items():
            points.setdefault(name, []).append((case["x"], statistics.median(values)))
    for name, own in points.items():
        style = "o-" if name.startswith("skest") else "s--"
        axes.plot(*zip(*own, strict=True), style, label=name, markersize=4)
    axes.set(
        xscale="log", yscale="log", xlabel=result["x_label"], ylabel=result["unit"]
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)


def _bars(axes: Axes, result: dict[str, Any]) -> None:
    several = len(result["cases"]) > 1
    bars = [
        (f"{name}, {case['name']}" if several else name, statistics.median(values))
        for case in result["cases"]
        for name, values in case["values"].items()
    ]
    names, medians = zip(*bars, strict=True)
    colours = ["C0" if name.startswith("skest") else "0.7" for name in names]
    axes.barh(names, medians, color=colours)
    axes.invert_yaxis()
    axes.set_xlabel(result["unit"])
    if max(medians) > 20 * min(medians):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())  # they would lie on each other
