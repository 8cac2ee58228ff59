# SPDX-License-Identifier: Apache-2.0
"""Turns the results of `benchmarks.run` into a page.

``python -m benchmarks.report [FOLDER]`` writes the page and the plots anew from the JSON in
the folder (default: docs/benchmarks).
"""

import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import aims, plots
from benchmarks.aims import times_as_good
from benchmarks.suites.order import SUITES

FOLDER = Path(__file__).parents[1] / "docs" / "benchmarks"
ORDER = list(SUITES)
Result = dict[str, Any]

INTRODUCTION = """\
<!-- Written by benchmarks/report.py. -->
# Speed

skest beside a loop that is written by hand in PyTorch, scikit-learn, skorch, tf.estimator
and Keras, on the same work: the same rows, sizes of batches, optimizer and number of steps.
`python -m benchmarks.run` measures, makes this page and leaves the raw numbers in
`{folder}/`.

- The contenders take turns, and what is printed are medians of several rounds. In training,
  those of this environment run side by side, each in a process that goes on for
  50 ms whenever it is its turn, and their processor time counts: the clock of a machine
  that others share halves and doubles within seconds, and so all meet the same one. What
  is in other environments, compiles, or has more than one thread, is timed on the wall;
  so is all in runs that are not called "side by side" at the end.
- In parentheses: how many times as good as the contender in the first row, the median over
  the rounds; more than 1 is better. The best of each column is bold. What is in
  italics is no contender, but a bound for all of them: it does only a part of the work.
- All have one intra-op thread.
- The loop by hand takes batches with `index_select`.
- Nobody was asked for checkpoints; tf.estimator writes some all the same: its times
  include them.
- tf.estimator and Keras run in environments of their own, as in their documentation: the
  one with `numpy_input_fn`, which is faster here than `tf.data` of arrays, the other with
  arrays. They are timed after a short training in the same process, as the others are
  after a first round.
- "auto" is skest as it is constructed, "eager" and "graph" are ways to carry out training
  steps, see `skest.RunConfig`.

This is how skest was given its work:

```python
import numpy as np

from skest import DNNClassifier

X = np.random.default_rng(0).normal(size=(1_000, 30)).astype(np.float32)
y = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int)
model = DNNClassifier(
    (128, 64),
    optimizer="adam",
    learning_rate=1e-3,
    batch_size=128,
    max_iter=2,
    early_stopping=False,
    n_iter_no_change=np.inf,
    random_state=0,
)
assert model.fit(X, y).n_steps_ == 16
```
"""
AIMS = """\
## What was aimed at

The ratios that were set as aims before the work began, each over the same run. Those that
were missed are here as well. Where the last column has a number, it is what the matrix
products alone are to the same other contender: whoever computes with this BLAS, in one
thread, stays below it.

{table}
"""
BESIDE = """\
Beside one process that keeps a core busy, with one thread unless it says otherwise (skest
chooses one here, too):
"""


def load(folder: Path) -> list[Result]:
    """Return the results in a folder, in the order of the suites."""
    results = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return sorted(results, key=lambda r: (ORDER.index(r["name"]), r["run"]["busy"]))


def number(value: float) -> str:
    """Return a number with three digits that count."""
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if rounded >= 1000 else f"{value:.3g}"


def cells(result: Result, case: dict[str, Any]) -> dict[str, str]:
    """Return what a column of the table says of each contender."""
    values = case["values"]
    medians = {name: statistics.median(own) for name, own in values.items()}
    best = (max if result["more_is_better"] else min)(medians.values())
    first = next(iter(values.values()))
    found = {}
    for name, own in values.items():
        text = number(medians[name])
        ratio = times_as_good(result, own, first)
        text = f"**{text}**" if medians[name] == best else text
        found[name] = f"{text} ({ratio:.2f})"
    for name, own in case.get("bounds", {}).items():
        ratio = times_as_good(result, own, first)
        found[f"*{name}*"] = f"*{number(statistics.median(own))} ({ratio:.2f})*"
    for name, note in case["notes"].items():
        found[name] = "; ".join(filter(None, (found.get(name), note)))
    return found


def table(result: Result) -> str:
    """Return a Markdown table: a row for each contender, a column for each case."""
    columns = [cells(result, case) for case in result["cases"]]
    names = list(dict.fromkeys(name for column in columns for name in column))
    heads = [case["name"] for case in result["cases"]]
    lines = [
        f"| {result['unit']} | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for name in names:
        row = " | ".join(column.get(name, "") for column in columns)
        lines.append(f"| {name} | {row} |")
    return "\n".join(lines)


def measured_with(results: Iterable[Result]) -> str:
    """Return where, when and how the results were made."""
    lines = []
    for result in results:
        run = result["run"]
        versions = ", ".join(f"{name} {v}" for name, v in run["versions"].items())
        missing = "".join(f"; without {n}: {why}" for n, why in run["missing"].items())
        clock = "" if run["clock"] == "wall" else ", processor time"
        if least := run.get("least_seconds"):
            clock += f", {least:g} s at least of all but tf.estimator and Keras"
        if any(case.get("in_turns") for case in result["cases"]):
            clock += ", side by side"
        lines.append(
            f"`{run['command']}`, {run['date']}, commit {run['commit']}{clock}: "
            f"{run['machine']}; {versions}{missing}."
        )
    return "\n".join(f"- {line}" for line in dict.fromkeys(lines))


def page(results: list[Result], folder: str) -> str:
    """Return the page in Markdown; `folder` is where its plots are."""
    parts = [INTRODUCTION.format(folder=folder), AIMS.format(table=aims.table(results))]
    told = set()
    for result in results:
        name = result["name"]
        if name not in told:
            parts.append(f"## {result['title']}\n\n{result['text']}\n")
            told.add(name)
        if result["run"]["busy"]:
            parts.append(BESIDE)
        parts.append(f"{table(result)}\n")
        parts.append(f"![{result['title']}]({folder}/{plots.file_name(result)})\n")
    parts.append(f"## Measured with\n\n{measured_with(results)}\n")
    return "\n".join(parts)


def write(folder: Path) -> Path:
    """Write the page beside the folder, and the plots into it."""
    results = load(folder)
    for result in results:
        plots.draw(result, folder / plots.file_name(result))
    path = folder.with_suffix(".md")
    path.write_text(page(results, folder.name), encoding="utf-8")
    return path


if __name__ == "__main__":
    print(write(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER))
