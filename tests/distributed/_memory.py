# SPDX-License-Identifier: Apache-2.0
"""A program that trains on this machine, and prints how much memory its tasks took.

Its arguments are the rows of a table, 16 wide, and a directory for checkpoints; without
one, they are in memory.
"""

import contextlib
import json
import sys
import threading
from pathlib import Path

import numpy as np
import torch
from torch import nn

import skest
from skest.distributed import AsyncParameterServer
from skest.feature_columns import (
    DenseFeatures,
    FeatureColumns,
    categorical_column_with_identity,
    embedding_column,
)
from skest.optimizers.row_sparse import RowSparse


class Peaks(threading.Thread):
    """Looks for the largest memory of every task, in bytes, until it is told to stop."""

    def __init__(self):
        super().__init__(daemon=True)
        self.found = {}
        self.stopped = threading.Event()

    def run(self):
        while not self.stopped.wait(0.05):
            own = private_of(Path("/proc/self"))
            self.found["chief"] = max(own, self.found.get("chief", 0))
            for children in Path("/proc/self/task").glob("*/children"):
                with contextlib.suppress(OSError, ValueError):  # one may have ended
                    for number in children.read_text().split():
                        self.look_at(Path("/proc", number))

    def look_at(self, path):
        environ = (path / "environ").read_text()
        _, name, after = environ.partition("SKEST_LOCAL_TASK=")
        if name:
            self.found["ps" if after.startswith("ps") else "worker"] = peak_of(path)


def peak_of(path):
    return sum(status_of(path, "VmHWM"))


def private_of(path):
    """Pages of files that are mapped do not count: the kernel takes them back at will."""
    return sum(status_of(path, "RssAnon", "RssShmem"))


def status_of(path, *names):
    lines = (path / "status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines)
    return [int(values[name].split()[0]) << 10 for name in names]


class Network(nn.Module):
    def __init__(self, n_rows):
        super().__init__()
        column = embedding_column(categorical_column_with_identity("ids", n_rows), 16)
        columns = FeatureColumns([("ids", column)]).fit({"ids": np.arange(2)})
        self.table = DenseFeatures(columns)
        self.output = nn.Linear(16, 1)

    def forward(self, features):
        ((_, key, _),) = self.table.row_lookups()
        return self.output(self.table({key: features["ids"]}))


def model_fn(features, labels, mode, params):
    network = Network(params["n_rows"])
    return skest.EstimatorSpec(
        mode,
        network=network,
        loss=lambda y, z, x: ((z - y) ** 2).mean(),
        predictions=lambda z: {"y": z},
        optimizer=RowSparse(torch.optim.Adagrad(network.parameters(), 0.1)),
    )


def train(n_rows, directory=None):
    def input_fn():
        generator = torch.Generator().manual_seed(0)
        for _ in range(40):
            ids = torch.randint(0, n_rows, (64, 4), generator=generator)
            yield {"ids": ids}, torch.rand(64, 1, generator=generator)

    config = skest.RunConfig(
        model_dir=directory,
        random_seed=0,
        save_checkpoints_steps=20,
        train_distribute=AsyncParameterServer(2, 1),
    )
    peaks = Peaks()
    peaks.start()
    skest.Estimator(model_fn, params={"n_rows": n_rows}, config=config).train(input_fn)
    peaks.stopped.set()
    peaks.join()
    print(json.dumps(peaks.found))


if __name__ == "__main__":
    train(int(sys.argv[1]), *sys.argv[2:])
