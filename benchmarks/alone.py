# SPDX-License-Identifier: Apache-2.0
"""Does the work of one contender in a process of its own, for its time and memory.

``python -m benchmarks.alone MODULE FUNCTION ROWS BATCH_SIZE`` prints JSON. Nothing is
imported but what the contender needs.
"""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STATUS = Path("/proc/self/status")


def run(module: str, function: str, n_rows: int, batch_size: int) -> dict[str, float]:
    """Run this module in a process and return what it prints."""
    # torch.optim.Adagrad with sparse gradients warns of checks that it does not make.
    command = [sys.executable, "-W", "ignore::UserWarning", "-m", "benchmarks.alone"]
    done = subprocess.run(
        [*command, module, function, str(n_rows), str(batch_size)],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def work(function: str, n_rows: int) -> tuple[tuple[Any, Any], dict[str, Any]]:
    """Return the data and the further arguments of a work."""
    from benchmarks import tables

    if function == "fit_dense":
        return tables.dense(n_rows, 30), {}
    table = tables.mixed(n_rows)
    return (table, tables.mixed_labels(table)), {"encoding": tables.encoding()}


def main() -> None:
    """Work, and print the peak of memory in MiB."""
    name, function, n_rows, batch_size = sys.argv[1:]
    module = importlib.import_module(f"benchmarks.contenders.{name}")
    data, options = work(function, int(n_rows))
    getattr(module, function)(*data, int(batch_size), 1, **options)
    lines = STATUS.read_text().splitlines()
    peak = next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) / 1024
    print(json.dumps({"peak": peak}))


if __name__ == "__main__":
    main()
