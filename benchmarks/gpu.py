# SPDX-License-Identifier: Apache-2.0
"""Training on a GPU: skest beside PyTorch by hand, eager and with torch.compile.

``python -m benchmarks.gpu [--quick] [--write]`` prints tables of the work of
`benchmarks.run`, dense and wide & deep, on the device "cuda"; with ``--write`` they also
become ``docs/benchmarks/gpu.md``, beside the numbers as JSON. Without a GPU it says so and
ends with status 2.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks import machine, report, tables
from benchmarks.contenders import by_hand, with_skest
from benchmarks.measure import Case, Settings, Suite, Timed, measured, threads

OUT = report.FOLDER / "gpu"
TEXT = "A whole `fit`, compiling included, with the device `cuda`."
PAGE = """\
<!-- Written by benchmarks/gpu.py. -->
# On a GPU

skest beside PyTorch by hand, on the same tables as on the [CPU](../benchmarks.md); by hand,
too, the table is on the GPU before the first step. Every contender fits once unmeasured,
which fills the caches of compilers, too; a figure is {figure}. In parentheses: how
many times as fast as the first row.

{tables}

## Measured with

- {gpu}
{measured_with}
"""


def contenders(
    hand: Callable[..., Any], skest: Callable[..., Any], device: str
) -> dict[str, Timed]:
    """Return the contenders that do the same work on a device."""
    found = {
        "PyTorch by hand": Timed(partial(hand, device=device)),
        "PyTorch by hand, torch.compile": Timed(
            partial(hand, device=device, compiled=True)
        ),
    }
    for execution in ("auto", "eager", "graph"):
        work = partial(skest, device=device, execution=execution)
        found[f"skest, {execution}"] = Timed(work)
    return found


def case(
    name: str, n_examples: int, found: dict[str, Timed], settings: Settings
) -> Case:
    """Return a case of which examples/s are reported."""
    return Case(
        f"{name}, {n_examples:,} examples",
        found,
        lambda seconds: n_examples / seconds,
        n_rounds=settings.choose(3, 1, 1),
    )


def dense(settings: Settings, device: str = "cuda") -> Iterable[Case]:
    """Return a case for each size of batches."""
    for batch_size in settings.choose((128, 1_024, 8_192, 65_536), (1_024,), (32,)):
        n_rows = settings.choose(max(51_200, 8 * batch_size), 51_200, 64)
        n_epochs = settings.choose(20, 5, 1)
        given = (*tables.dense(n_rows, 30), batch_size, n_epochs)
        fits = (
            partial(fit, *given) for fit in (by_hand.fit_dense, with_skest.fit_dense)
        )
        found = contenders(*fits, device)
        yield case(f"batch {batch_size:,}", n_rows * n_epochs, found, settings)


def wide_deep(settings: Settings, device: str = "cuda") -> Iterable[Case]:
    """Return a case for each size of batches."""
    n_rows = settings.choose(102_400, 51_200, 256)
    n_epochs = settings.choose(3, 2, 1)
    table = tables.mixed(n_rows)
    for batch_size in settings.choose((512, 8_192), (512,), (128,)):
        given = (table, tables.mixed_labels(table), batch_size, n_epochs)
        options = {"encoding": tables.encoding()}
        found = contenders(
            partial(by_hand.fit_wide_deep, *given, **options),
            partial(with_skest.fit_wide_deep, *given, **options),
            device,
        )
        yield case(f"batch {batch_size:,}", n_rows * n_epochs, found, settings)


SUITES = [
    Suite("gpu_dense", "Training on dense numbers", TEXT, "examples/s", True, dense),
    Suite("gpu_wide_deep", "Training wide & deep", TEXT, "examples/s", True, wide_deep),
]


def main(arguments: Sequence[str]) -> int:
    """Print the tables and return the status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--quick", action="store_true", help="less work, one round")
    parser.add_argument("--write", action="store_true", help="write the page")
    given = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("There is no CUDA device here.", file=sys.stderr)
        return 2
    # torch.optim.Adagrad with sparse gradients warns of checks that it does not make.
    warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
    settings = Settings("quick" if given.quick else "full")
    run = machine.about("benchmarks.gpu", arguments)
    results = []
    for suite in SUITES:
        with threads(1):
            result = {**measured(suite, settings), "run": run}
        print(f"\n{suite.title}: {suite.text}\n\n{report.table(result)}", flush=True)
        results.append(result)
    text = page(results)
    print(f"\n{text}")
    if given.write:
        OUT.mkdir(parents=True, exist_ok=True)
        (OUT / "numbers.json").write_text(json.dumps(results, indent=1) + "\n")
        OUT.with_suffix(".md").write_text(text, encoding="utf-8")
    return 0


def page(results: Sequence[report.Result]) -> str:
    """Return the page in Markdown."""
    tables = [
        f"## {result['title']}\n\n{result['text']}\n\n{report.table(result)}"
        for result in results
    ]
    n_fits = len(next(iter(results[0]["cases"][0]["values"].values())))
    return PAGE.format(
        figure="of one fit" if n_fits == 1 else f"the median of {n_fits} fits",
        tables="\n\n".join(tables),
        gpu=torch.cuda.get_device_name(),
        measured_with=report.measured_with(results),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
