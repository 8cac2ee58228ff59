# SPDX-License-Identifier: Apache-2.0
"""Measures trainings of several processes on this machine, all in one run.

``python -m benchmarks.distributed [--quick] [--write] [--only NAME ...]`` prints tables;
with ``--write`` they also become ``docs/benchmarks/distributed.md``, beside the numbers
as JSON. tf.estimator runs in an environment that is made at the first run, see
`benchmarks.peers`; ``--no-peers`` leaves it out.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cluster_task, locking_cost, machine, peers, report, server_costs
from benchmarks.contenders import in_their_own
from benchmarks.measure import Case, Reported, Settings, Suite, measured, threads

FOLDER = report.FOLDER / "distributed"
PAUSE = 0.05
TEXT = """\
A network of 256 and 128 units on 13 numbers and 8 columns of ids, each with an embedding of
125,000 rows of 16; 50,000 rows in batches of 1,024, SGD with the rate 0.05; one thread for
each process. Examples in a second of all processes together, between two global steps
when all of them are at work: starts and ends do not count. Steps of SharedMemory, and
gradients of workers with a ps, are recorded as those of the second row; others are eager.
"""


@dataclass(frozen=True)
class Way:
    """A way to train.

    Parameters
    ----------
    name : str
        What it is called in tables.
    command : sequence of str
        What starts the processes, as arguments of Python before the script.
    strategy : str, default=None
        Class of `skest.distributed`.
    n_workers : int, default=1
        Processes that train.
    is_synchronous : bool, default=False
        Whether all of them take every global step.
    execution : str, default="eager"
        See `skest.RunConfig`.
    options : dict, default={}
        Of the strategy.
    """

    name: str
    command: Sequence[str] = ()
    strategy: str | None = None
    n_workers: int = 1
    is_synchronous: bool = False
    execution: str = "eager"
    options: Mapping[str, Any] = field(default_factory=dict)


def launched(n_workers: int, n_ps: int = 1) -> list[str]:
    """Return what starts the tasks of a cluster."""
    counts = ["--workers", str(n_workers), "--ps", str(n_ps), "--max-restarts", "0"]
    return ["-m", "skest.distributed.launch", *counts]


def asynchronous(name: str, n_workers: int, **options: Any) -> Way:
    """Return a way with one parameter server."""
    return Way(
        name,
        launched(n_workers),
        "AsyncParameterServer",
        n_workers,
        execution="graph",
        options=options,
    )


LOCAL, EAGER = "one process, recorded", "one process, eager"
HOGWILD = "SharedMemory(2)"
ASYNC = "2 workers, 1 ps"
UNLOCKED = "2 workers, 1 ps, use_locking=False"
PARALLEL = "DataParallel(), 2 processes"
PEER = "tf.estimator 2.15"
TENSORFLOW = PEER + ", {} worker{}, 1 ps"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
WAYS = [
    Way(EAGER),
    Way(LOCAL, execution="graph"),
    Way(
        HOGWILD,
        (),
        "SharedMemory",
        2,
        execution="graph",
        options={"num_workers": 2},
    ),
    asynchronous("1 worker, 1 ps", 1),
    asynchronous(ASYNC, 2),
    asynchronous(UNLOCKED, 2, use_locking=False),
    Way(PARALLEL, TORCHRUN, "DataParallel", 2, True),
    Way(
        "LocalSGD(8), 2 processes",
        TORCHRUN,
        "LocalSGD",
        2,
        True,
        options={"sync_every": 8},
    ),
]
SLOWED_DOWN = (ASYNC, PARALLEL, "LocalSGD(8), 2 processes")


def make_table(work: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return numbers, ids that are log-uniform, and labels that follow from both."""
    rng = np.random.default_rng(0)
    n_examples, n_rows = work["n_examples"], work["n_rows"]
    x = rng.standard_normal((n_examples, work["n_numbers"]), dtype=np.float32)
    table = {"x": x}
    for i in range(work["n_ids"]):
        ids = np.exp(rng.uniform(0, np.log(n_rows), n_examples)) - 1
        table[f"id{i}"] = ids.astype(np.int64)
    table["y"] = (x[:, 0] + (table["id0"] % 3 == 0) > 0.5).astype(np.int64)
    return table


def work_of(settings: Settings) -> dict[str, Any]:
    """Return the work that all ways to train have in common."""
    return {
        "n_examples": settings.choose(50_000, 50_000, 2_000),
        "n_numbers": 13,
        "n_ids": settings.choose(8, 8, 2),
        "n_rows": settings.choose(125_000, 125_000, 100),
        "width": 16,
        "hidden": settings.choose([256, 128], [256, 128], [4]),
        "batch_size": settings.choose(1_024, 1_024, 32),
        "rate": 0.05,
        "share_before": 0.2,
    }


def job_of(
    work: Mapping[str, Any], n_batches: int, pause: float, way: Way
) -> dict[str, Any]:
    """Return what `benchmarks.cluster_task` does."""
    together = way.n_workers if way.is_synchronous else 1
    return {
        **work,
        "strategy": way.strategy,
        "options": dict(way.options),
        "execution": way.execution,
        "n_workers": way.n_workers,
        "is_synchronous": way.is_synchronous,
        "max_steps": n_batches // together,
        "pause": pause,
    }


def train(work: Mapping[str, Any], n_batches: int, pause: float, way: Way) -> Any:
    """Train in processes, and return what the chief measured."""
    job = job_of(work, n_batches, pause, way)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster_task.prepare(folder, job, make_table(work))
        done = subprocess.run(
            [sys.executable, *way.command, cluster_task.__file__, name],
            env=cluster_task.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        result = folder / "result.json"
        if done.returncode or not result.exists():
            raise RuntimeError(f"{way.name} failed:\n{done.stdout[-3000:]}")
        return json.loads(result.read_text())


def train_in_tensorflow(
    work: Mapping[str, Any], n_batches: int, n_workers: int
) -> dict[str, Any]:
    """Train with tf.estimator, and return what its chief measured."""
    given = {
        **work,
        "n_workers": n_workers,
        "n_ps": 1,
        "warm": int(work["share_before"] * n_batches),
        "last": n_batches,
    }
    return peers.run(peers.TENSORFLOW, "fit_cluster.py", given, make_table(work))


def cases(settings: Settings, only: Sequence[str] = ()) -> Iterable[Case]:
    """Return a case with equal processes, and one with a slow one."""
    work = work_of(settings)
    n_rounds = settings.choose(3, 1, 1)
    for name, pause, n_batches in (
        ("all equal", 0.0, settings.choose(2_000, 300, 40)),
        (f"one sleeps {1000 * PAUSE:.0f} ms a step", PAUSE, 1_000),
    ):
        n_batches = settings.choose(n_batches, min(n_batches, 300), 40)
        contenders: dict[str, Any] = {
            way.name: Reported(partial(train, work, n_batches, pause, way), "rate")
            for way in WAYS
            if not pause or way.name in SLOWED_DOWN
        }
        if PEER in settings.peers and not pause:
            for n in (1, 2):
                job = partial(train_in_tensorflow, work, n_batches, n)
                contenders[TENSORFLOW.format(n, "s" * (n > 1))] = Reported(
                    job, "examples_per_second"
                )
        chosen = {k: v for k, v in contenders.items() if not only or k in only}
        if chosen:
            yield Case(name, chosen, n_rounds=n_rounds)


@dataclass(frozen=True)
class Bound:
    """Something that is asked of the numbers.

    Parameters
    ----------
    what : str
        What it is about.
    asked : float
        The bound.
    value : float or None
        What was measured; None if it was not.
    is_least : bool, default=True
        Whether the bound is the least value, or the largest.
    unit : str, default=""
        Of both.
    """

    what: str
    asked: float
    value: float | None
    is_least: bool = True
    unit: str = ""

    def row(self) -> str:
        """Return a row of a Markdown table."""
        sign = "≥" if self.is_least else "≤"
        found = "not measured" if self.value is None else f"{self.value:.3g}{self.unit}"
        return f"| {self.what} | {sign} {self.asked:g}{self.unit} | {found} |"


def ratio(result: Mapping[str, Any], case: int, of: str, to: str) -> float | None:
    """Return the median over the rounds of what one rate is to another one."""
    found = result["cases"]
    values = found[case]["values"] if case < len(found) else {}
    if of not in values or to not in values:
        return None
    pairs = zip(values[of], values[to], strict=True)
    return statistics.median(a / b for a, b in pairs)


def bounds(result: Mapping[str, Any], costs: Mapping[str, Any]) -> list[Bound]:
    """Return what is asked, beside what was measured."""
    peer = TENSORFLOW.format(2, "s")
    least = [
        (f"{ASYNC}, to DataParallel, one slow", 2.5, 1, ASYNC, PARALLEL),
        (f"{ASYNC}, to tf.estimator", 0.9, 0, ASYNC, peer),
        (f"{HOGWILD} to one process, recorded", 1.6, 0, HOGWILD, LOCAL),
    ]
    found = [Bound(what, asked, ratio(result, *pair)) for what, asked, *pair in least]
    dense, sparse = costs["bytes, dense"], costs["bytes, sparse"]
    return [
        *found,
        Bound("bytes of a step, dense tables to sparse", 50, dense / sparse),
        Bound(
            "a new worker attaches, after imports", 0.5, costs["attach"], False, " s"
        ),
        Bound("the end of a killed ps is seen", 1, costs["notice"], False, " s"),
        Bound("cost of reads that wait for updates", 5, costs["locking"], False, " %"),
    ]


def measured_costs(settings: Settings) -> dict[str, Any]:
    """Return what is no rate of `WAYS`; medians of some rounds."""
    work = work_of(settings)
    table = make_table(work)

    def median(measure: Callable[[], float]) -> float:
        n_rounds = settings.choose(5, 3, 1)
        return statistics.median(measure() for _ in range(n_rounds))

    traffic = partial(server_costs.bytes_per_step, work, table)
    attach = partial(server_costs.seconds_to_attach, work, table)
    n_steps = settings.choose(1_000, 200, 20)
    small = work | {"n_ids": 1, "hidden": [4], "batch_size": 8}
    busy = server_costs.seconds_of_server
    endless = job_of(work, sys.maxsize, 0.0, asynchronous(ASYNC, 2))
    turns = (settings.choose(75, 5, 1), settings.choose(0.4, 0.4, 0.05))
    rates = locking_cost.measured_rates(endless, table, *turns)
    return {
        "server": busy(work, table, n_steps),
        "server, small": busy(small, table, n_steps),
        "bytes, sparse": traffic(sparse=True),
        "bytes, dense": traffic(sparse=False),
        "attach": median(attach),
        "notice": median(server_costs.seconds_to_notice),
        "locking": locking_cost.cost_in_percent(rates),
    }


def of_server(costs: Mapping[str, Any]) -> Iterable[str]:
    """Yield what is to say of the processor of a server, if it is known."""
    if costs["server"] is None:
        return
    times = [costs["server"], costs["server, small"]]
    busy, small = (f"{1000 * seconds:.3g} ms" for seconds in times)
    most, most_small = (f"{1 / seconds:,.0f}" for seconds in times)
    yield (
        f"It keeps the processor of the ps busy for {busy}, one of a small model for "
        f"{small}: no more than {most} and {most_small} steps a second fill a core."
    )


def page(result: Mapping[str, Any], costs: Mapping[str, Any]) -> str:
    """Return the page in Markdown."""
    rows = [
        "| | asked | measured |",
        "|---|---|---|",
        *(bound.row() for bound in bounds(result, costs)),
    ]
    sparse, dense = (costs[f"bytes, {kind}"] / 1e6 for kind in ("sparse", "dense"))
    return "\n".join(
        (
            "<!-- Written by benchmarks/distributed.py. -->",
            f"# {result['title']}\n",
            f"{result['text']}",
            "In parentheses: how many times as fast as the first row.\n",
            f"{report.table(dict(result))}\n",
            "## What is asked\n",
            "Ratios of rates within their round, the median over the rounds. One training\n"
            "of 2 workers, 1 ps tells the cost of reads that wait for updates: rates of\n"
            "two trainings differ too much. Reads wait and do not wait there in turns of\n"
            "less than a second, four of which make a round.\n",
            *rows,
            f"\nA step sends and receives {sparse:.3g} MB; {dense:.3g} MB with dense "
            "gradients of the tables.",
            *of_server(costs),
            f"\n## Measured with\n\n{report.measured_with([dict(result)])}\n",
        )
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command line."""
    names = [way.name for way in WAYS]
    names += [TENSORFLOW.format(n, "s" * (n > 1)) for n in (1, 2)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distributed")
    parser.add_argument("--quick", action="store_true", help="less work, one round")
    parser.add_argument("--write", action="store_true", help="leave page and numbers")
    parser.add_argument("--out", type=Path, default=FOLDER, help="where to write them")
    parser.add_argument("--only", nargs="+", choices=names, default=[])
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> None:
    """Measure, print, and write page and numbers if that is asked for."""
    given = parse(arguments)
    found, missing = in_their_own.available() if given.peers else (frozenset(), {})
    missing = {name: why for name, why in missing.items() if name == PEER}
    settings = Settings("quick" if given.quick else "full", peers=found)
    suite = Suite(
        "distributed",
        "Several processes",
        TEXT,
        "examples/s",
        True,
        partial(cases, only=given.only),
    )
    with threads(1):
        result = measured(suite, settings)
        costs = measured_costs(settings)
    result["run"] = machine.about("benchmarks.distributed", arguments, missing=missing)
    text = page(result, costs)
    print(text)
    if given.write:
        given.out.mkdir(parents=True, exist_ok=True)
        numbers = json.dumps({"rates": result, "costs": costs}, indent=1)
        (given.out / "numbers.json").write_text(numbers + "\n")
        given.out.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
