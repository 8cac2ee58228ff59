# SPDX-License-Identifier: Apache-2.0
"""The server of exported models under the load of several clients.

Clients are processes of their own that send one request after the other, each by a
connection that stays open.
"""

import json
import multiprocessing
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from benchmarks.serve_models import LEVELS, columns


@contextmanager
def server(base: Path) -> Iterator[str]:
    """Serve the model in a process of its own; give the address."""
    command = [sys.executable, "-m", "skest", "serve", f"m={base}", "--port", "0"]
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


class Load(NamedTuple):
    """What clients saw that asked at once; times in milliseconds."""

    way: str
    n_rows: int
    n_clients: int
    p50: float
    p99: float
    per_second: float


def loads(url: str, n_rows: int, n_clients: int, seconds: float) -> Iterator[Load]:
    """Let clients ask at once, in each way to send rows."""
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
        yield Load(way, n_rows, n_clients, p50, p99, len(found) / seconds)
