# SPDX-License-Identifier: Apache-2.0
"""What one parameter server process can do, and what travels in a step.

    python -m benchmarks.parameter_servers rates
    python -m benchmarks.parameter_servers bytes
    python -m benchmarks.parameter_servers memory

`rates`: steps per second, each a pull and a push, of one server with 1, 2 and 4 clients,
with a few values and with 400 kB. `bytes`: sparse against dense embeddings in the same
model. `memory`: what the chief needs to save a table.
"""

import argparse
import functools
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from skest import EstimatorSpec, ModeKeys, RunConfig
from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.store import DirectoryStore
from skest.distributed.ps.checkpoint import state_of, upload
from skest.distributed.ps.connection import Peer, PSClient
from skest.distributed.ps.exchange import Exchange
from skest.distributed.ps.messages import Message, Op
from skest.distributed.ps.server import ParameterServer
from skest.distributed.ps.variables import Variables
from skest.distributed.ps.worker import AsyncReplica
from skest.hooks.base import Run

_SPAWN = multiprocessing.get_context("spawn")
_SECONDS = 2.0


def _serve(addresses: Any, ps: int) -> None:
    torch.set_num_threads(1)
    server = ParameterServer("127.0.0.1:0", ps)
    server.start()
    addresses.put(server.address)
    server.wait()


@contextmanager
def served(num_ps: int = 1) -> Iterator[list[str]]:
    """Yield the addresses of servers in processes of their own."""
    addresses, processes = [], []
    for ps in range(num_ps):
        queue = _SPAWN.Queue()
        processes.append(_SPAWN.Process(target=_serve, args=(queue, ps)))
        processes[-1].start()
        addresses.append(queue.get())
    yield addresses
    client = PSClient(addresses, Peer("last", 0))
    client.connect()
    client.ask_all(Message(Op.SHUTDOWN))
    client.close()
    for process in processes:
        process.join()


class Worker:
    """One client with a network: pulls, takes any gradients, pushes."""

    def __init__(self, addresses: list[str], index: int, network: nn.Module) -> None:
        self.network = network
        self.optimizer = torch.optim.SGD(network.parameters(), lr=1e-6)
        self.variables = Variables.of(network, [self.optimizer], len(addresses))
        self.client = PSClient(addresses, Peer("worker", index))
        self.client.connect()
        if index == 0:
            state = state_of(self.variables, network, [self.optimizer])
            upload(self.client, self.variables, state, 0)
        self.exchange = Exchange(self.client, network, [self.optimizer], self.variables)

    def step(self, features: Any) -> None:
        """Take a step."""
        self.exchange.pull(features)
        self.optimizer.zero_grad()
        self.network(features).sum().backward()
        self.exchange.push()


class Vector(nn.Module):
    """Nothing but values to send."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(size))

    def forward(self, features: Any) -> torch.Tensor:
        return self.values


def rates() -> None:
    """Requests per second, two for each step; clients are threads of this process."""
    for size in (4, 100_000):
        with served() as addresses:
            workers = [Worker(addresses, i, Vector(size)) for i in range(4)]
            for n_clients in (1, 2, 4):
                found = _requests(workers[:n_clients]) / _SECONDS
                print(
                    f"{size * 4:>7,} bytes, {n_clients} client(s): "
                    f"{found:6,.0f} requests/s",
                    flush=True,
                )
            for worker in workers:
                worker.client.close()


def _requests(workers: list[Worker]) -> int:
    """Return how many requests all of them have made in some seconds."""
    end = time.perf_counter() + _SECONDS

    def work(worker: Worker) -> int:
        n_requests = 0
        while time.perf_counter() < end:
            worker.step(None)
            n_requests += 2
        return n_requests

    with ThreadPoolExecutor(len(workers)) as pool:
        return sum(pool.map(work, workers))


class WideDeep(nn.Module):
    """Embeddings of 26 ids in each row, and a dense network behind them."""

    def __init__(self, n_rows: int, is_sparse: bool) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(n_rows, 16, sparse=is_sparse, mode="sum")
        self.out = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.out(self.table(features))
        return out


def bytes_per_step() -> None:
    """Bytes in both directions in a step, of batches of 256 rows of 26 ids."""
    found = {}
    batches = torch.randint(0, 200_000, (12, 256, 26))
    for is_sparse in (True, False):
        with served() as addresses:
            worker = Worker(addresses, 0, WideDeep(200_000, is_sparse))
            worker.step(batches[0])  # learns where ids are
            (session,) = worker.client._sessions.values()
            before = session.bytes_sent, session.bytes_received
            for batch in batches[1:]:
                worker.step(batch)
            up = (session.bytes_sent - before[0]) / 11
            down = (session.bytes_received - before[1]) / 11
            found[is_sparse] = up + down
            kind = "sparse" if is_sparse else "dense"
            print(f"{kind:>6}: {up:12,.0f} up, {down:12,.0f} down", flush=True)
            worker.client.close()
    print(f"dense / sparse: {found[False] / found[True]:.1f}")


def _peak_of(work: Callable[[], Any]) -> float:
    """Return by how many MB the memory of this process rose at most in a call."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    work()
    return (_status("VmHWM") - before) / 1e3


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def memory() -> None:
    """Save 1e6 rows of 16 values with Adagrad in 2 servers: 128 MB."""
    with tempfile.TemporaryDirectory() as directory, served(2) as addresses:
        _save(addresses, directory)


def _save(addresses: list[str], directory: str) -> None:
    network = nn.Sequential(nn.Embedding(1_000_000, 16, sparse=True), nn.Linear(16, 1))
    optimizer = torch.optim.Adagrad(network.parameters())
    spec = EstimatorSpec(
        ModeKeys.TRAIN,
        network=network,
        loss=lambda labels, logits, features: logits.sum(),
        optimizer=optimizer,
    )
    strategy = SimpleNamespace(timeout=30.0, lease=60.0)
    replica = AsyncReplica(strategy, ps_addresses=addresses, task_type="chief")

    def capture(run: Run) -> Checkpoint:
        return Checkpoint.capture(run.network, run.global_step, run.spec.optimizers)

    store = DirectoryStore(directory)
    run = Run(
        spec,
        RunConfig(),
        model_dir=Path(directory),
        capture=functools.partial(replica.capture, capture=capture),
        save=store.save,
    )
    replica.begin(run)
    saved = _peak_of(run.save_checkpoint)
    print(f"to a directory: {saved:7.1f} MB at the chief", flush=True)
    gathered = _peak_of(run.capture_checkpoint)
    print(f"in memory: {gathered:7.1f} MB at the chief", flush=True)
    n_bytes = sum(f.stat().st_size for f in Path(directory).rglob("*.safetensors"))
    print(json.dumps({"bytes on disk": n_bytes}), flush=True)
    replica.close()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    chosen = {
        "rates": rates,
        "bytes": bytes_per_step,
        "memory": memory,
    }
    parser.add_argument("what", choices=chosen)
    chosen[parser.parse_args().what]()
