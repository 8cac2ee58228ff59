# SPDX-License-Identifier: Apache-2.0
"""Measures skest beside other libraries, on the same work and in one run.

``python -m benchmarks.run [--quick] [--busy] [--only NAME ...] [--cases START ...]
[--out FOLDER]`` leaves the numbers of each suite as JSON in the folder, and makes the page
beside it, with plots, of all that is in the folder. Beside a busy process the suites are
those of training, unless others are named; rounds and contenders are the same as without.
tf.estimator and Keras run in environments that are made at the first run, see
`benchmarks.peers`; ``--no-peers`` leaves them out.
"""

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine, report
from benchmarks.busy import busy
from benchmarks.contenders import in_their_own
from benchmarks.measure import CLOCKS, Settings, measured, threads
from benchmarks.suites.order import SUITES

BESIDE_BUSY = ("dense", "wide_deep")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run")
    parser.add_argument("--quick", action="store_true", help="less work, one round")
    parser.add_argument("--busy", action="store_true", help="beside a busy process")
    parser.add_argument("--only", nargs="+", choices=SUITES, help="which suites")
    parser.add_argument("--cases", nargs="+", help="which of theirs: how names begin")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out", type=Path, default=report.FOLDER)
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True)
    given = parser.parse_args(arguments)
    given.only = given.only or (BESIDE_BUSY if given.busy else list(SUITES))
    return given


def about(given: argparse.Namespace, missing: dict[str, str]) -> dict[str, Any]:
    """Return what is to be known of a run."""
    own = [*sys.argv[1:]] if sys.argv[0].endswith("run.py") else []
    options = {"clock": given.clock, "busy": given.busy, "missing": missing}
    return machine.about("benchmarks.run", own, **options)


def main(arguments: Sequence[str]) -> None:
    """Measure, and write numbers, page and plots."""
    given = parse(arguments)
    peers, missing = in_their_own.available() if given.peers else (frozenset(), {})
    settings = Settings(
        "quick" if given.quick else "full",
        given.clock,
        (os.cpu_count() or 1) if given.busy else 1,
        peers,
    )
    given.out.mkdir(parents=True, exist_ok=True)
    # torch.optim.Adagrad with sparse gradients warns of checks that it does not make.
    warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
    for name in given.only:
        start = time.perf_counter()
        with busy(int(given.busy)), threads(1):
            result = measured(SUITES[name], settings, given.cases)
        minutes = round((time.perf_counter() - start) / 60, 1)
        result["run"] = {
            **about(given, missing),
            "minutes": minutes,
            "least_seconds": settings.least_seconds,
        }
        path = given.out / f"{name}{'-busy' * given.busy}.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        print(
            f"\n{result['title']}, {minutes} minutes\n{report.table(result)}",
            flush=True,
        )
    print(f"\n{report.write(given.out)}")


if __name__ == "__main__":
    main(sys.argv[1:])
