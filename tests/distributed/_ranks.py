# SPDX-License-Identifier: Apache-2.0
"""What tests let several processes do, as torchrun starts them or by itself.

The module is also the program of the processes of torchrun: it calls functions of a test
module, one after another, in every process, and writes what they return or raise.
"""

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest.feature_columns.lookup import looked_up_often, row_lookup, row_table
from skest.optimizers import make_optimizer
from tests import _forkserver

ROOT = Path(__file__).parents[2]
N_IDS = 6


def torchrun(module, names, out):
    """Call functions of a module as ``name(rank, folder)`` in two processes of torchrun.

    Returns a dictionary of what they returned for each rank, or of the errors, and the
    exit code of torchrun.
    """
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nproc-per-node", "2", "--master-addr", "127.0.0.1"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0"),
        *("-m", "tests.distributed._ranks", module, str(out), *names),
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120
    )
    return read(out), done


def found_by_both(module, names, out):
    """Return what both of two processes found, by function; all goes well there.

    They start at once, with the environment of torchrun and a store like its own, which
    is in another process and stays when theirs have left.
    """
    store = dist.TCPStore("127.0.0.1", is_master=True, wait_for_workers=False, port=0)
    environ = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(store.port)}
    start = _forkserver.context().Process
    both = [
        start(target=rank_of_two, args=(environ, n, module, out, names)) for n in (0, 1)
    ]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
        process.kill()
    assert [process.exitcode for process in both] == [0, 0]
    zero, one = read(out)
    return {name: (zero[name], one[name]) for name in names}


def rank_of_two(environ, rank, *work):
    """Be a process of two."""
    of_two = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ.update(environ, **of_two)
    call_all(*work)


def read(out):
    paths = [out / f"{rank}.pickle" for rank in range(2)]
    return [pickle.loads(p.read_bytes()) if p.exists() else {} for p in paths]


def train(replica, estimator, input_fn, *, hooks=(), steps=None, max_steps=None):
    """Do what ``estimator.train`` does, with a replica; the input is of this rank."""

    def own_part(input_context):
        return input_fn()

    estimator._replica = lambda *_: replica
    return estimator.train(own_part, hooks, steps, max_steps)


class Tables(nn.Module):
    """A table that is looked up twice, one of torch, and a dense layer."""

    def __init__(self):
        super().__init__()
        self.twice = row_table(torch.arange(2.0 * N_IDS).reshape(N_IDS, 2) / 4)
        self.once = nn.Embedding(N_IDS, 2, sparse=True)
        self.out = nn.Linear(2, 1)
        self.unused = nn.Linear(1, 1)

    def forward(self, ids):
        first, second = looked_up_often(self.twice, 2)
        rows = row_lookup(first, ids[:, 0]) + row_lookup(second, ids[:, 1])
        return self.out(rows + self.once(ids[:, 2]))[:, 0]


class Dense(nn.Module):
    """Some layers that draw random numbers or keep statistics."""

    def __init__(self, dropout=0.0, batch_norm=False):
        super().__init__()
        norm = nn.BatchNorm1d(5) if batch_norm else nn.Identity()
        self.layers = nn.Sequential(
            nn.Linear(3, 5), norm, nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 1)
        )

    def forward(self, ids):
        return self.layers(ids.float() / N_IDS)[:, 0]


def model_fn(features, labels, mode, params):
    params = dict(params)
    optimizer = params.pop("optimizer", "sgd")
    learning_rate = params.pop("learning_rate", 1 / 64)
    clip_norm = params.pop("clip_norm", None)
    network = params.pop("network", Tables)(**params)
    return EstimatorSpec(
        mode,
        network=network,
        loss=lambda y, z, x: ((z - y) ** 2).mean(),
        predictions=lambda z: {"y": z},
        optimizer=make_optimizer(optimizer, network.parameters(), learning_rate),
        clip_norm=clip_norm,
    )


def estimator(model_dir=None, seed=1, *, config=None, **params):
    options = {"random_seed": seed, "log_step_count_steps": None, **(config or {})}
    return Estimator(model_fn, model_dir, RunConfig(**options), params)


def rows(n_rows, seed=0):
    """Features of three ids each, and labels, all of them small integers."""
    ids = np.random.default_rng(seed).integers(0, N_IDS, size=(n_rows, 3))
    return ids, (ids[:, 0] - 2.0 * ids[:, 1]).astype(np.float32)


def batches(sizes, rank=None, seed=0):
    """Batches of the given sizes; or what `rank` has of each, by contiguous parts.

    A size is a number of rows for one process, or a tuple of those of all ranks.
    """

    def input_fn():
        ids, y = rows(int(sum(map(np.sum, sizes))), seed)
        start = 0
        for size in sizes:
            ends = start + np.cumsum([0, *np.atleast_1d(size)])
            first, last = (0, -1) if rank is None else (rank, rank + 1)
            part = slice(ends[first], ends[last])
            yield ids[part], y[part]
            start = ends[-1]

    return input_fn


def variables(trained):
    """Return what is comparable of the checkpoint of an estimator."""
    checkpoint = trained.checkpoint
    if checkpoint is None:
        return None
    return {
        "step": checkpoint.global_step,
        "stop_reason": trained.stop_reason,
        "position": checkpoint.input_position,
        **{name: value.tolist() for name, value in checkpoint.variables.items()},
    }


def call_all(module, out, names):
    rank, found = int(os.environ["RANK"]), {}
    functions = importlib.import_module(module)
    for name in names:
        folder = Path(out, name)
        folder.mkdir(exist_ok=True)
        try:
            found[name] = getattr(functions, name)(rank, folder)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        # As a whole: torchrun may kill this process at any moment.
        whole = Path(out, f"{rank}.tmp")
        whole.write_bytes(pickle.dumps(found))
        whole.replace(whole.with_suffix(".pickle"))


if __name__ == "__main__":
    call_all(sys.argv[1], sys.argv[2], sys.argv[3:])
