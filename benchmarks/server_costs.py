# SPDX-License-Identifier: Apache-2.0
"""What a parameter server costs beside its rate: bytes, times to join and to notice."""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import skest
from skest.distributed import AsyncParameterServer, ClusterSpec, TaskConfig
from skest.distributed.ps.connection import Peer, PSClient
from skest.distributed.ps.messages import Message, Op
from skest.distributed.ps.server import ParameterServer
from skest.heads import BinaryClassHead
from skest.hooks import Hook
from skest.hooks.base import Run
from skest.inputs import ArrayDataset

__all__ = [
    "bytes_per_step",
    "seconds_of_server",
    "seconds_to_attach",
    "seconds_to_notice",
]

_SERVE = """
from skest.distributed.ps.server import ParameterServer
server = ParameterServer("127.0.0.1:0")
server.start()
print(server.address, flush=True)
server.wait()
"""
_LONGEST = 60.0


class Tables(nn.Module):
    """The network of the work, with tables of `torch.nn`."""

    def __init__(self, work: Mapping[str, Any], *, sparse: bool) -> None:
        super().__init__()
        n_ids, width = work["n_ids"], work["width"]
        self.tables = nn.ModuleList(
            nn.Embedding(work["n_rows"], width, sparse=sparse) for _ in range(n_ids)
        )
        sizes = [n_ids * width + work["n_numbers"], *work["hidden"]]
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(sizes):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(sizes[-1], 1))

    def forward(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the logits."""
        rows = [table(features[f"id{i}"]) for i, table in enumerate(self.tables)]
        return self.layers(torch.cat([*rows, features["x"]], 1))


class Told(Hook):
    """Calls a function after a step."""

    def __init__(self, step: int, tell: Any) -> None:
        self._step, self._tell, self._n_own = step, tell, 0

    def after_step(self, run: Run, loss: Any) -> None:
        self._n_own += 1
        if self._n_own == self._step:
            self._tell()


class Attached(Hook):
    """Notes when the first step may begin."""

    at = 0.0

    def begin(self, run: Run) -> None:
        self.at = time.perf_counter()


def _estimator(
    work: Mapping[str, Any],
    address: str,
    task: str = "chief",
    n_workers: int = 1,
    *,
    sparse: bool = True,
    built: list[float] | None = None,
) -> skest.Estimator:
    """Return an Estimator in a role; `built` gets the time when the network is made."""

    def model_fn(features: Any, labels: Any, mode: str) -> skest.EstimatorSpec:
        network = Tables(work, sparse=sparse)
        sgd = torch.optim.SGD(network.parameters(), work["rate"])
        spec = BinaryClassHead().create_estimator_spec(
            features, mode, network, labels, sgd
        )
        if built is not None:
            built.append(time.perf_counter())
        return spec

    jobs = {"chief": [""], "worker": [""] * (n_workers - 1), "ps": [address]}
    config = skest.RunConfig(
        random_seed=0,
        log_step_count_steps=None,
        device="cpu",
        num_threads=1,
        train_distribute=AsyncParameterServer(),
        task=TaskConfig(task, 0, ClusterSpec(jobs)),
    )
    return skest.Estimator(model_fn, config=config)


def _input_fn(work: Mapping[str, Any], table: dict[str, np.ndarray]) -> Any:
    features = {name: values for name, values in table.items() if name != "y"}

    def input_fn() -> ArrayDataset:
        return ArrayDataset(
            features,
            table["y"],
            batch_size=work["batch_size"],
            shuffle=True,
            num_epochs=None,
            seed=0,
        )

    return input_fn


def bytes_per_step(
    work: Mapping[str, Any], table: dict[str, np.ndarray], *, sparse: bool
) -> float:
    """Return how much a worker sends and receives in a step.

    Parameters
    ----------
    work : mapping
        See `benchmarks.distributed.work_of`.
    table : dict of str to ndarray
        Its columns, and the labels as "y".
    sparse : bool
        Whether gradients of the tables are those of rows.
    """
    first, last = 2, 6
    seen: list[int] = []
    server = ParameterServer("127.0.0.1:0")
    server.start()

    def note() -> None:
        (session,) = server._sessions
        seen.append(session.bytes_sent + session.bytes_received)

    _estimator(work, server.address, sparse=sparse).train(
        _input_fn(work, table),
        hooks=[Told(first, note), Told(last, note)],
        steps=last + 1,
    )
    server.close()
    return (seen[1] - seen[0]) / (last - first)


def seconds_of_server(
    work: Mapping[str, Any], table: dict[str, np.ndarray], n_steps: int
) -> float | None:
    """Return how long a step of one worker keeps the processor of a server busy.

    None where the system does not tell it of another process (in ``/proc``).
    """
    seen: list[float] = []
    with _server() as (process, address):
        status = Path(f"/proc/{process.pid}/stat")
        if not status.exists():
            return None

        def note() -> None:
            # Behind the name, which may hold spaces: ticks of the user and of the system.
            fields = status.read_text().rpartition(")")[2].split()
            seen.append((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))

        hooks = [Told(5, note), Told(5 + n_steps, note)]
        _estimator(work, address).train(
            _input_fn(work, table), hooks=hooks, steps=6 + n_steps
        )
    return (seen[1] - seen[0]) / n_steps


def seconds_to_attach(work: Mapping[str, Any], table: dict[str, np.ndarray]) -> float:
    """Return the time from a worker's built network to its first step.

    It joins a training that is going on; the start of its process is not counted.
    """
    built: list[float] = []
    attached = Attached()
    with _server() as (_, address):

        def join() -> None:
            worker = _estimator(work, address, "worker", 2, built=built)
            worker.train(_input_fn(work, table), hooks=[attached], steps=2)

        _estimator(work, address, "chief", 2).train(
            _input_fn(work, table), hooks=[Told(3, join)], steps=10
        )
    return attached.at - built[0]


def seconds_to_notice() -> float:
    """Return the time from SIGKILL for a server until a worker's request fails."""
    killed: list[float] = []
    with _server() as (process, address):
        client = PSClient([address], Peer("worker", 0))
        client.connect()

        def kill() -> None:
            killed.append(time.perf_counter())
            process.send_signal(signal.SIGKILL)

        timer = threading.Timer(0.2, kill)
        timer.start()
        end = time.perf_counter() + _LONGEST
        try:
            while time.perf_counter() < end:
                client.ask(0, Message(Op.INFO))
        except (ConnectionError, RuntimeError):
            return time.perf_counter() - killed[0]
        finally:
            timer.join()
            client.close()
    raise TimeoutError(f"A server was killed and nobody noticed in {_LONGEST:g} s.")


@contextlib.contextmanager
def _server() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a parameter server as a process; its address comes with it."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE], env=variables, stdout=subprocess.PIPE, text=True
    )
    try:
        if process.stdout is None:
            raise RuntimeError("The output of the server is not a pipe.")
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
