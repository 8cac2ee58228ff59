# SPDX-License-Identifier: Apache-2.0
"""How fast an exported model answers: in ONNX Runtime, from a cold start, and by HTTP.

Run it with ``python -m benchmarks.serve``. The model takes 25 raw values (20 numbers, 5
texts of 50 to 10,000 levels) and has layers of 128 and 64. Clients are processes of their
own that send one request after the other, each by a connection that stays open. On a busy
machine look at the times of the processor and at p50; p99 is that of the machine.
"""

import argparse
import functools
import json
import multiprocessing
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from benchmarks import _serve_model

NUMBERS = [f"number_{i}" for i in range(20)]
LEVELS = {"city": 50, "job": 100, "shop": 1_000, "street": 5_000, "item": 10_000}


def export_model(base: Path) -> Path:
    """Export the model below `base`; return the directory of the version."""
    return _serve_model.write(base / "1700000000", NUMBERS, LEVELS)


def columns(n_rows: int) -> dict[str, list[Any]]:
    """Return raw values, among them texts that the model does not know."""
    rng = np.random.default_rng(0)
    table: dict[str, list[Any]] = {
        name: rng.normal(size=n_rows).round(3).tolist() for name in NUMBERS
    }
    for name, n_levels in LEVELS.items():
        picked = rng.integers(0, n_levels * 11 // 10, n_rows)
        table[name] = [f"{name}_{level}" for level in picked]
    return table


def milliseconds(call: Callable[[], Any], repeats: int) -> tuple[float, float]:
    """Return the least time of the processor, and the median time."""
    busy, whole = [], []
    for _ in range(repeats):
        start = time.thread_time(), time.perf_counter()
        call()
        busy.append(time.thread_time() - start[0])
        whole.append(time.perf_counter() - start[1])
    return min(busy) * 1e3, float(np.median(whole)) * 1e3


def in_process(version: Path) -> None:
    """Time the session, and the model with its checks of raw values."""
    import onnxruntime

    from skest import export

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(version / "model.onnx"), options)
    model = export.load(version)
    for n_rows, repeats in ((1, 2000), (1000, 100)):
        table = columns(n_rows)
        feeds = {
            name: np.array(values, object if name in LEVELS else np.float64)[:, None]
            for name, values in table.items()
        }
        for what, call in (
            ("session.run, arrays", lambda feeds=feeds: session.run(None, feeds)),
            ("Model.run, lists", lambda table=table: model.run(table, "predict")),
        ):
            busy, median = milliseconds(call, repeats)
            print(f"{what:<24}{n_rows:>6} rows{busy:>12.3f}{median:>12.3f}")


def answers(base: Path) -> None:
    """Time what the server does between reading a request and sending the answer."""
    from skest.export.serving.application import Application
    from skest.export.serving.limits import Limits
    from skest.export.serving.versions import Catalog

    catalog = Catalog({"m": base})
    catalog.refresh()
    application = Application(catalog, Limits())
    for n_rows, repeats in ((1, 1000), (100, 100)):
        for way, request in requests(n_rows).items():
            head, _, body = request.partition(b"\r\n\r\n")
            path = head.split()[1].decode()
            call = functools.partial(application.answer, "POST", path, body)
            busy, median = milliseconds(call, repeats)
            print(f"{'server, ' + way:<24}{n_rows:>6} rows{busy:>12.3f}{median:>12.3f}")


def cold_start(version: Path, repeats: int) -> None:
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
    print(
        f"{'cold start':<24}{1:>6} rows{min(busy) * 1e3:>12.0f}"
        f"{float(np.median(whole)) * 1e3:>12.0f}"
    )


@contextmanager
def server(base: Path) -> Iterator[str]:
    """Serve the model in a process of its own; give the address."""
    command = [sys.executable, "-m", "skest.export.serve", f"m={base}", "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    output: Any = process.stdout
    try:
        yield output.readline().split()[-1]
    finally:
        process.terminate()
        process.communicate()


def requests(n_rows: int) -> dict[str, bytes]:
    """Return a request for each way to send rows."""
    table = columns(n_rows)
    rows = [
        dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)
    ]
    tensors = [
        {
            "name": name,
            "shape": [n_rows, 1],
            "datatype": "BYTES" if name in LEVELS else "FP64",
            "data": values,
        }
        for name, values in table.items()
    ]
    documents = {
        "rows": ("/v1/models/m:predict", {"instances": rows}),
        "columns": ("/v1/models/m:predict", {"inputs": table}),
        "tensors": ("/v2/models/m/infer", {"inputs": tensors}),
    }
    return {
        name: _request(path, json.dumps(document).encode())
        for name, (path, document) in documents.items()
    }


def _request(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def client(url: str, request: bytes, seconds: float, latencies: Any) -> None:
    """Send a request again and again; put how long each answer took."""
    parts = urlsplit(url)
    found = []
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        stream = connection.makefile("rb")
        end = time.perf_counter() + seconds
        while (start := time.perf_counter()) < end:
            connection.sendall(request)
            _read_answer(stream)
            found.append(time.perf_counter() - start)
    latencies.put(found)


def _read_answer(stream: Any) -> None:
    status = stream.readline()
    if b" 200 " not in status:
        raise RuntimeError(f"The server answered {status!r}.")
    size = 0
    while (line := stream.readline()) != b"\r\n":
        if line.lower().startswith(b"content-length:"):
            size = int(line.split(b":")[1])
    stream.read(size)


def load(url: str, n_rows: int, n_clients: int, seconds: float) -> None:
    """Print what clients see that ask at once."""
    context = multiprocessing.get_context("spawn")
    for way, request in requests(n_rows).items():
        latencies = context.Queue()
        clients = [
            context.Process(target=client, args=(url, request, seconds, latencies))
            for _ in range(n_clients)
        ]
        for process in clients:
            process.start()
        found = np.concatenate([latencies.get() for _ in clients]) * 1e3
        for process in clients:
            process.join()
        p50, p99 = np.percentile(found, [50, 99])
        print(
            f"{way:<10}{n_rows:>6}{n_clients:>9}{p50:>10.2f}{p99:>10.2f}"
            f"{len(found) / seconds:>12.0f}"
        )


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--starts", type=int, default=5, help="cold starts")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as directory:
        base = Path(directory)
        version = export_model(base)
        print(f"{'milliseconds':<35}{'processor':>12}{'median':>12}")
        in_process(version)
        answers(base)
        cold_start(version, options.starts)
        print(
            f"\n{'HTTP':<10}{'rows':>6}{'clients':>9}{'p50 ms':>10}{'p99 ms':>10}",
            end="",
        )
        print(f"{'requests/s':>12}")
        with server(base) as url:
            for n_rows in (1, 100):
                for n_clients in options.clients:
                    load(url, n_rows, n_clients, options.seconds)


if __name__ == "__main__":
    main()
