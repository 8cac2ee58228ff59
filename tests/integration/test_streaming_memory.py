# SPDX-License-Identifier: Apache-2.0
"""A file that is larger than the memory allowed for it can be trained on."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

MIB = 2**20
SIZE = 320 * MIB
MOST = 200 * MIB  # less than the file
ROWS = 2**17  # of a row group, about 22 MB

TRAIN = """
import sys
from pathlib import Path
import numpy as np
import torch
from skest import Estimator, EstimatorSpec, RunConfig
from skest.inputs import Pipeline, csv_input_fn, parquet_input_fn

def encode(features):
    numbers = [features[f"x{i}"] for i in range(20)]
    return torch.as_tensor(np.stack(numbers, axis=1), dtype=torch.float32)

def model_fn(features, labels, mode):
    network = torch.nn.Linear(20, 1)
    return EstimatorSpec(
        mode,
        network=network,
        encode=encode,
        loss=lambda y, z, x: (z[:, 0] - y).square().mean(),
        optimizer=torch.optim.SGD(network.parameters(), lr=0.01),
    )

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) * 1024

def train(input_fn, steps):
    estimator = Estimator(model_fn, config=RunConfig(random_seed=0))
    estimator.train(input_fn, max_steps=steps)
    return estimator.checkpoint.global_step

path, format = sys.argv[1:]
one = {name: np.zeros(4096) for name in [f"x{i}" for i in range(20)]}
train(lambda: [(one, np.zeros(4096))], 3)
before = peak()
make = {"parquet": parquet_input_fn, "csv": csv_input_fn}[format]
input_fn = make(path, 4096, label="y", shuffle=True)
steps = train(input_fn, None)
print(steps, before, peak())
"""


def write_parquet(path, n_bytes):
    rng = np.random.default_rng(0)
    writer = None
    n_rows = 0
    while n_rows == 0 or path.stat().st_size < n_bytes:
        columns = {f"x{i}": rng.normal(size=ROWS) for i in range(20)}
        columns["s"] = np.char.add("row ", rng.integers(0, 10**6, ROWS).astype(str))
        columns["y"] = rng.integers(0, 2, ROWS)
        part = pa.table(columns)
        if writer is None:
            writer = pq.ParquetWriter(path, part.schema)
        writer.write_table(part, row_group_size=ROWS)
        n_rows += ROWS
    writer.close()
    return n_rows


def write_csv(path, n_bytes):
    rng = np.random.default_rng(0)
    names = [*(f"x{i}" for i in range(20)), "y"]
    rows = rng.normal(size=(5000, 21)).round(8)
    rows[:, -1] = rows[:, -1] > 0
    block = "".join(",".join(map(str, row)) + "\n" for row in rows.tolist()).encode()
    n_blocks = n_bytes // len(block) + 1
    with path.open("wb") as file:
        file.write((",".join(names) + "\n").encode())
        for _ in range(n_blocks):
            file.write(block)
    return n_blocks * len(rows)


def rss_of_training(path, suffix, n_rows):
    """Return how many bytes training takes beyond what it takes for one batch."""
    done = subprocess.run(
        [sys.executable, "-c", TRAIN, str(path), suffix],
        capture_output=True,
        text=True,
        check=True,
    )
    steps, before, after = map(int, done.stdout.split())
    assert steps == -(-n_rows // 4096)
    return after - before


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_less_memory_than_the_file_is_enough(tmp_path, suffix):
    path = tmp_path / f"large.{suffix}"
    n_rows = {"parquet": write_parquet, "csv": write_csv}[suffix](path, SIZE)
    assert path.stat().st_size >= SIZE
    taken = rss_of_training(path, suffix, n_rows)
    print(f"{SIZE // MIB} MiB of {suffix}: {taken / MIB:.0f} MiB")
    assert taken < MOST
