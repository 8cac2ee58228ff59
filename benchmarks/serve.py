# SPDX-License-Identifier: Apache-2.0
"""How fast an exported model answers: in ONNX Runtime, from a cold start, and by HTTP.

``python -m benchmarks.serve`` prints tables, ``--write`` puts them into docs/serving.md.
Times are milliseconds on one thread: the least of the processor, which other work on the
machine changes little, and the median on the wall. Peers are scikit-learn, and
tf.estimator in an environment of its own (see `benchmarks.peers`).
"""

import argparse
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks import serve_http
from benchmarks.machine import machine
from benchmarks.measure import threads
from benchmarks.serve_models import (
    columns,
    of_skest,
    of_sklearn,
    of_tensorflow,
)
from skest import DNNClassifier

PAGE = Path(__file__).parents[1] / "docs" / "serving.md"
DTYPES = {
    "tensor(string)": object,
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
}
START, END = "<!-- Written by benchmarks/serve.py. -->", "<!-- To here. -->"


class Time(NamedTuple):
    """Milliseconds of some work: the least of the processor, the median on the wall."""

    what: str
    n_rows: int | str
    busy: float
    median: float


def timed(what: str, n_rows: int | str, call: Callable[[], Any], repeats: int) -> Time:
    """Time a call after one that warms up."""
    call()
    busy, whole = [], []
    for _ in range(repeats):
        start = time.process_time(), time.perf_counter()
        call()
        busy.append(time.process_time() - start[0])
        whole.append(time.perf_counter() - start[1])
    return Time(what, n_rows, min(busy) * 1e3, float(np.median(whole)) * 1e3)


def exports(model: DNNClassifier, base: Path, repeats: int) -> Iterator[Time]:
    """Time an export with its test, and without."""
    for what, verify in (("export, tested", True), ("export, not tested", False)):
        call = functools.partial(model.export, base / "exports", verify=verify)
        yield timed(what, "", call, repeats)


def in_process(version: Path, share: float) -> Iterator[Time]:
    """Time the session, and the model with its checks of raw values."""
    import onnxruntime

    from skest import export

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(version / "model.onnx"), options)
    types = {i.name: i.type for i in session.get_inputs()}
    model = export.load(version)
    for n_rows, repeats in ((1, int(2000 * share)), (1000, int(200 * share))):
        table = columns(n_rows)
        feeds = {
            name: np.array(values, DTYPES[types[name]])[:, None]
            for name, values in table.items()
        }
        run = functools.partial(session.run, ["probabilities"], feeds)
        yield timed("ONNX Runtime, arrays", n_rows, run, repeats)
        predict = functools.partial(model.run, table, "predict")
        yield timed("`skest.export.load`, lists", n_rows, predict, repeats)


def peers(model: DNNClassifier, share: float) -> Iterator[Time]:
    """Time the estimator itself, scikit-learn and tf.estimator."""
    pipeline = of_sklearn()
    for n_rows, repeats in ((1, int(200 * share)), (1000, int(50 * share))):
        table = pd.DataFrame(columns(n_rows))
        for what, one in (
            ("skest `predict_proba`, DataFrame", model),
            ("scikit-learn Pipeline, DataFrame", pipeline),
        ):
            call = functools.partial(one.predict_proba, table)
            yield timed(what, n_rows, call, repeats)
        try:
            found = of_tensorflow(n_rows, repeats)
        except RuntimeError as error:
            print(f"tf.estimator does not take part: {error}", file=sys.stderr)
            continue
        what = "tf.estimator SavedModel, raw tensors"
        yield Time(what, n_rows, found["busy"], found["median"])


def cold_start(version: Path, repeats: int) -> Time:
    """Time a fresh process that imports, loads, and answers one row."""
    code = (
        "import json, sys, time\n"
        "from skest import export\n"
        "model = export.load(sys.argv[1])\n"
        "model.predict(json.loads(sys.argv[2]))\n"
        "print(time.process_time())\n"
    )
    command = [sys.executable, "-c", code, str(version), json.dumps(columns(1))]
    busy, whole = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        whole.append(time.perf_counter() - start)
        busy.append(float(done.stdout))
    return Time("cold start", 1, min(busy) * 1e3, float(np.median(whole)) * 1e3)


def table(heads: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a Markdown table."""
    lines = [list(heads), *(map(_cell, row) for row in rows)]
    written = [f"| {' | '.join(line)} |" for line in lines]
    written.insert(1, "|---" * len(lines[0]) + "|")
    return "\n".join(written)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def write(text: str) -> None:
    """Put the tables into the page."""
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(START)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{START}\n{text}\n{END}{after}", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--starts", type=int, default=5, help="cold starts")
    parser.add_argument("--share", type=float, default=1.0, help="of all repeats")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--write", action="store_true", help="into docs/serving.md")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory, threads(1):
        base = Path(directory) / "m"
        model = of_skest()
        version = model.export(base)
        times = [
            *in_process(version, options.share),
            *([] if options.without_peers else peers(model, options.share)),
            *exports(model, Path(directory), max(1, int(10 * options.share))),
            cold_start(version, options.starts),
        ]
        with serve_http.server(base) as url:
            loads = [
                load
                for n_rows in (1, 100)
                for n_clients in options.clients
                for load in serve_http.loads(url, n_rows, n_clients, options.seconds)
            ]
    text = "\n\n".join(
        (
            table(("milliseconds", "rows", "processor, least", "wall, median"), times),
            table(("HTTP", "rows", "clients", "p50 ms", "p99 ms", "per second"), loads),
            f"`python -m benchmarks.serve` on {machine()}.",
        )
    )
    print(text)
    if options.write:
        write(text)


if __name__ == "__main__":
    main()
