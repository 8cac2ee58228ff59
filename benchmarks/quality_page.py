# SPDX-License-Identifier: Apache-2.0
"""The page of `benchmarks.quality`: means over seeds, ranks, aims and a picture."""

import json
import math
import operator
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from benchmarks import machine, report
from benchmarks.broad_tables import BROAD
from benchmarks.elsewhere_tables import ELSEWHERE, LARGE
from benchmarks.keel_tables import KEEL
from benchmarks.unseen_tables import UNSEEN

__all__ = ["FOLDER", "differs", "load", "ranks", "spread", "write"]

FOLDER = report.FOLDER / "quality"
OFFICIAL = "adult, official"
SEEN = (
    *("adult", "telco", "credit_default", "letter"),
    *("diamonds", "flights", "bike", "wine_quality"),
)
BASE = "boosting"  # what losses are related to
DEFAULT = "skest, DNN"
ALL_ROWS = 1_000_000  # more than any of the tables has
Results = dict[tuple[str, str, int, int], dict[str, Any]]
Scores = dict[str, dict[str, dict[int, dict[str, float]]]]  # by table, model, seed

PAGE = """\
<!-- Written by python -m benchmarks.quality --write. -->
# Quality of predictions

Estimators as constructed: the only argument is the seed, which moves the split (a quarter
held out), too. The numbers in skest's recipe were chosen with a look at eight of these
tables ({seen}),
the number of members, the cycle to end with, what folds of few rows do, when whole
numbers name things and how fast members learn their scales with a look at all. skest gets
the table as it was read. For scikit-learn's models numbers are imputed and scaled and
strings are one-hot; "linear" is
`LogisticRegression(max_iter=1000)` or `Ridge`,
"MLP" has early stopping and, in regression, a scaled target (without, it is better on the
four smallest, and behind skest); "boosting" is
`HistGradientBoosting…` with its own categories, and target means for columns of more than
255 levels. LightGBM and CatBoost have fewer seeds.
RealMLP_TD and TabM_D are those of pytabkit, with medians for gaps, and have one seed on
seven tables. {rows:,} rows of each part at most, except in "{official}", the whole official
split. One thread.

Means over {n_seeds} seeds ± standard errors; the loss is logarithmic, or RMSE of numbers.

## What was aimed at

{aims}

## All tables

Mean rank by loss among the models with all seeds; ratios to the loss of boosting on equal
seeds (losses near 0 move the mean most); processor seconds.

{overall}

![Loss relative to boosting](quality/quality.svg)

## Loss

Bold is the best of the models with all seeds; compare others by the ratios above.

{loss}

## Accuracy, AUC, micro F1

{other}

## Processor seconds of a fit

{seconds}

## What each ingredient is worth

The loss relative to that of `DNN…` as constructed, on two seeds, with one
ingredient undone; more than 1 says that it helps. The mean is geometric. Without training
on all rows there are no folds. The first is commit 6b73c5e8, on five seeds.

{ablations}

## All rows

Five of these tables have more rows, three quarters to train with:
bike 13,034, letter 15,000, credit_default 22,500, diamonds 40,455, flights 72,873 (`--rows
{all_rows}`). Eleven more (`--large`; two seeds), picked likewise, have 1,514 (cells)
to 190,990 (fertility). {whole}

## Tables that nothing was chosen with

{n_unseen} tables from packages of R (`benchmarks/unseen_tables.py`; `--unseen`), picked by
names, sizes and targets before any fit; none was left out. Since then
one split of eight had a say in how training ends. {unseen}

## Tables of a later reader

{n_elsewhere} more (`benchmarks/elsewhere_tables.py`; `--elsewhere`), chosen in the same way
by someone who had not seen the library; "forest" is `RandomForest…`. Since then some had a
say in how training ends and in what folds do, and insteval in how strings of digits are
read. {elsewhere}

## Tables that papers compare with

{n_keel} of UCI and KEEL with 1,000 rows or more (`benchmarks/keel_tables.py`; `--keel`),
listed before any fit. Since then, chess, car and splice had a say in
how members begin, 29 of all groups in how to calibrate, 60 in how fast scales learn.
{keel}

## Tables of many columns

{n_broad} with 44 to 1,617 columns (`--broad`), listed before any fit. Seven had a say in
scales since (grants: .49 before). {broad}

## Measured with

{machine}; `quality/results.jsonl` has the commit of each fit. After
calibration and scales changed, losses were measured anew; seconds mostly not.
"""


def load(path: Path) -> Results:
    """Return the results in a file; of several for the same, the last."""
    if not path.exists():
        return {}
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {(r["table"], r["model"], r["seed"], r["rows"]): r for r in lines}


def by_table(results: Results, n_rows: int) -> Scores:
    """Return results with so many rows by table, model and seed."""
    found: Scores = {}
    for (table, model, seed, rows), result in results.items():
        if rows == n_rows:
            found.setdefault(table, {}).setdefault(model, {})[seed] = result
    return found


def _n_seeds(tables: Scores) -> int:
    return max(len(s) for own in tables.values() for s in own.values())


def spread(values: Iterable[float]) -> tuple[float, float]:
    """Return the mean and its standard error, NaN for a single value."""
    own = list(values)
    error = statistics.stdev(own) / math.sqrt(len(own)) if len(own) > 1 else math.nan
    return statistics.fmean(own), error


def mean(scores: dict[int, dict[str, float]], name: str = "loss") -> float:
    """Return the mean over seeds."""
    return statistics.fmean(result[name] for result in scores.values())


def differs(
    one: dict[int, dict[str, float]], other: dict[int, dict[str, float]]
) -> tuple[float, float]:
    """Return by how much the first one's loss is larger, seed by seed, as `spread`."""
    return spread(one[s]["loss"] - other[s]["loss"] for s in one.keys() & other.keys())


def ranks(losses: dict[str, float]) -> dict[str, float]:
    """Return the rank of each loss; equal ones share the mean of theirs."""
    return {
        name: 1
        + sum(other < loss for other in losses.values())
        + (sum(other == loss for other in losses.values()) - 1) / 2
        for name, loss in losses.items()
    }


def _ratios(tables: Scores, model: str, base: str) -> dict[str, float]:
    """Return the ratio of mean losses on equal seeds, by table."""
    relative = {}
    for table, found in tables.items():
        one, other = found.get(model, {}), found.get(base, {})
        if seeds := one.keys() & other.keys():
            losses = (
                sum(results[s]["loss"] for s in seeds) for results in (one, other)
            )
            relative[table] = operator.truediv(*losses)
    return relative


def worse_than_simple(tables: Scores, model: str) -> list[str]:
    """Return where linear or MLP are better by more than a standard error."""
    worse = []
    for table, found in tables.items():
        for other in {"linear", "MLP"} & found.keys() if model in found else ():
            by, error = differs(found[model], found[other])
            if by > (error if error == error else 0):
                worse.append(f"{table} ({other})")
    return sorted(worse)


def _mean_and_median(relative: dict[str, float]) -> tuple[float, float]:
    return statistics.fmean(relative.values()), statistics.median(relative.values())


def _said(ratio: tuple[float, float]) -> str:
    return "{:.3f}; median {:.3f}".format(*ratio)


def aims(tables: Scores, model: str) -> list[str]:
    """Return what a model of skest was to reach, a line each."""
    lines = []

    def line(what: str, found: str, is_reached: bool) -> None:
        said = "reached" if is_reached else "**not reached**"
        lines.append(f"| {model} | {what} | {found} | {said} |")

    worse = worse_than_simple(tables, model)
    what = "nowhere worse than linear or MLP by more than one standard error"
    line(what, "; ".join(worse) or "nowhere", not worse)
    relative = _ratios(tables, model, BASE)
    if relative:
        ratio, better = (
            _mean_and_median(relative),
            sum(r < 1 for r in relative.values()),
        )
        line("mean loss relative to boosting ≤ 1.00", _said(ratio), ratio[0] <= 1)
        half = f"{better} of {len(relative)}"
        line("better than boosting on half", half, 2 * better >= len(relative))
    if relative := _ratios(tables, model, "CatBoost"):
        ratio = _mean_and_median(relative)
        line("the next mark: relative to CatBoost", _said(ratio), ratio[0] <= 1)
    if official := tables.get(OFFICIAL, {}).get(model):
        for name, aim in (("auc", 0.9265), ("accuracy", 0.8715)):
            value = mean(official, name)
            line(f"{OFFICIAL}: {name} ≥ {aim}", f"{value:.4f}", value >= aim)
    times = [mean(f[model], "seconds") for f in tables.values() if model in f]
    if times:
        median, most = statistics.median(times), max(times)
        line("median fit ≤ 10 s", f"{median:.1f} s", median <= 10)
        line("no table above 30 s", f"{most:.1f} s", most <= 30)
    return lines


def _markdown(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _scores(
    tables: Scores, models: list[str], names: tuple[str, ...], best: Any
) -> str:
    rows = []
    for table, found in tables.items():
        for name in names:
            own = {
                model: spread(r[name] for r in results.values())
                for model, results in found.items()
                if model in models and all(name in r for r in results.values())
            }
            if not own:
                continue
            most = max(map(len, found.values()))
            top = best(
                own[m][0] for m, r in found.items() if m in own and len(r) == most
            )
            cells = {}
            for model, (value, error) in own.items():
                text = f"{value:.4g}" + (f" ± {error:.2g}" if error == error else "")
                cells[model] = f"**{text}**" if value == top else text
            head = table if len(names) == 1 else f"{table}, {name}"
            rows.append([head, *(cells.get(model, "") for model in models)])
    return _markdown(["", *models], rows)


def _overall(tables: Scores, models: list[str]) -> str:
    by_rank: dict[str, list[float]] = {}
    for found in tables.values():
        most = max(map(len, found.values()))
        losses = {
            m: mean(r) for m, r in found.items() if m in models and len(r) == most
        }
        for model, rank in ranks(losses).items():
            by_rank.setdefault(model, []).append(rank)
    rows = []
    for model in models:
        relative = _ratios(tables, model, BASE)
        lost = worse_than_simple(tables, model)
        times = [mean(f[model], "seconds") for f in tables.values() if model in f]
        cells = [
            f"{statistics.fmean(by_rank[model]):.2f}" if model in by_rank else "",
            *(f"{number:.3f}" for number in _mean_and_median(relative)),
            f"{sum(r < 1 for r in relative.values())} of {len(relative)}",
            "; ".join(lost) or "nowhere" if model.startswith("skest") else "",
            f"{statistics.median(times):.2f}",
            f"{max(times):.1f}",
        ]
        rows.append([model, *cells])
    heads = [
        "",
        "rank",
        "relative loss",
        "its median",
        "better than boosting",
        "lost to linear, MLP",
        "s, median",
        "s, most",
    ]
    return _markdown(heads, rows)


def _ablations(tables: Scores, models: list[str]) -> str:
    rows = [
        [
            model.removeprefix("DNN: "),
            *(f"{r[t]:.3f}" if t in r else "" for t in tables),
            f"{statistics.geometric_mean(r.values()):.3f}",
            f"{statistics.median(r.values()):.3f}",
        ]
        for model in models
        for r in [_ratios(tables, model, DEFAULT)]
    ]
    heads = ["undone", *tables, "mean", "median"]
    return _markdown(heads, rows) if rows else "Not measured yet."


def draw(tables: Scores, models: list[str], path: Path) -> None:
    """Draw losses relative to boosting, a row for each table, a mark for each model."""
    with matplotlib.rc_context({"svg.hashsalt": "quality", "font.size": 9}):
        figure = Figure(figsize=(7, 1.2 + 0.3 * len(tables)), layout="constrained")
        axes = figure.subplots()
        for model in models:
            relative = _ratios(tables, model, BASE)
            marker, size = ("o", 8) if model.startswith("skest") else ("s", 4)
            axes.plot(
                list(relative.values()),
                [list(tables).index(table) for table in relative],
                marker,
                markersize=size,
                label=model,
                alpha=0.8,
            )
        axes.axvline(1, color="0.8", zorder=0)
        axes.set(xscale="log", xlabel="loss relative to boosting (less is better)")
        axes.set_yticks(range(len(tables)), list(tables))
        axes.invert_yaxis()
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
        figure.savefig(path, metadata={"Date": None})


def _short(tables: Scores) -> str:
    """Return what is said of tables beside those above."""
    if not tables:
        return ""
    models = list(dict.fromkeys(model for own in tables.values() for model in own))
    losses = _scores(tables, models, ("loss",), min)
    overall = _overall(tables, models)
    n_seeds = _n_seeds(tables)
    said = f"At most {n_seeds} seeds"
    if n_seeds == 1:  # there is no error
        said = "One seed: any difference counts as lost to linear or MLP"
    return f"{said}.\n\n{overall}\n\n{losses}"


def write(path: Path, n_rows: int) -> Path:
    """Write the page of a file of results beside its folder, and the picture into it."""
    results = load(path)
    found = by_table(results, n_rows)
    others = UNSEEN | ELSEWHERE | LARGE | KEEL | BROAD
    tables = {name: found[name] for name in found if name not in others}
    unseen = {name: found[name] for name in UNSEEN if name in found}
    elsewhere = {name: found[name] for name in ELSEWHERE if name in found}
    keel = {name: found[name] for name in KEEL if name in found}
    broad = {name: found[name] for name in BROAD if name in found}
    names = list(dict.fromkeys(model for own in tables.values() for model in own))
    ablated = [name for name in names if name.startswith("DNN: ")]
    models = [name for name in names if name not in ablated]
    lines = [
        line
        for name in models
        if name.startswith("skest")
        for line in aims(tables, name)
    ]
    text = PAGE.format(
        rows=n_rows,
        seen=", ".join(SEEN),
        n_seeds=_n_seeds(tables),
        official=OFFICIAL,
        aims="\n".join(["| | aim | found | |", "|---|---|---|---|", *lines]),
        overall=_overall(tables, models),
        loss=_scores(tables, models, ("loss",), min),
        other=_scores(tables, models, ("accuracy", "auc", "f1"), max),
        seconds=_scores(tables, models, ("seconds",), min),
        ablations=_ablations(tables, ablated),
        all_rows=ALL_ROWS,
        whole=_short(by_table(results, ALL_ROWS)),
        n_unseen=len(unseen),
        unseen=_short(unseen),
        n_elsewhere=len(elsewhere),
        elsewhere=_short(elsewhere),
        n_keel=len(keel),
        keel=_short(keel),
        n_broad=len(broad),
        broad=_short(broad),
        machine=machine.machine(),
    )
    draw(tables, models, path.parent / "quality.svg")
    page = path.parent.with_suffix(".md")
    page.write_text(text, encoding="utf-8")
    print("\n".join(lines))
    return page
