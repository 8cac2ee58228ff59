# SPDX-License-Identifier: Apache-2.0
"""Exports as programs of torch beside ONNX: how fast they answer, are made and are loaded.

``python -m benchmarks.programs`` prints the table of docs/onnx.md. Times are the least of
one thread, of the model of `benchmarks.serve`. "aoti" needs a C++ compiler.
"""

import functools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import machine
from benchmarks.measure import threads
from benchmarks.serve import table
from benchmarks.serve_models import columns, of_skest
from skest import DNNClassifier, export

HEADS = ("milliseconds of the processor", "1 row", "1,000 rows", "export, s", "load, s")


def least(call: Callable[[], Any], repeats: int) -> float:
    """Return the least seconds of the processor that a call takes, after the first."""
    call()
    return min(_seconds(call) for _ in range(repeats))


def _seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def row(format: str, model: DNNClassifier, base: Path) -> list[Any]:
    """Measure one format."""
    # Inductor keeps what it has compiled: the second export would find it.
    start = time.perf_counter()
    version = model.export(base / format, format=format)
    exported = time.perf_counter() - start
    load = functools.partial(
        export.load, version, verify=False, trust_code=format != "onnx"
    )
    loaded = load()
    answers = []
    for n_rows, repeats in ((1, 500), (1000, 50)):
        call = functools.partial(loaded.run, columns(n_rows), "predict")
        answers.append(least(call, repeats) * 1e3)
    return [format, *answers, exported, least(load, 5)]


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as directory, threads(1):
        model = of_skest()
        base = Path(directory)
        model.export(base / "first")  # what it imports is no part of the others
        rows = [row(format, model, base) for format in ("onnx", "pt2", "aoti")]
    print(table(HEADS, rows))
    print(f"\n{machine()}.")


if __name__ == "__main__":
    main()
