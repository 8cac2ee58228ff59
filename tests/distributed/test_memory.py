# SPDX-License-Identifier: Apache-2.0
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("_memory.py")
N_ROWS = 1_600_000
TABLE_BYTES = N_ROWS * 16 * 4


def peaks(n_rows, *directory):
    """Return the bytes that each task of a training had at its peak."""
    done = subprocess.run(
        [sys.executable, PROGRAM, str(n_rows), *directory],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tables(small, large):
    """Return how many tables a large one costs each task."""
    assert large.keys() == {"chief", "worker", "ps"}
    return {task: (large[task] - small[task]) / TABLE_BYTES for task in large}


@pytest.mark.nightly
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_what_tables_cost_at_the_peak(tmp_path):
    """A server its table and slot, and so the chief, a worker the rows it reads."""
    small, large = peaks(1000, tmp_path / "small"), tmp_path / "large"
    found = tables(small, peaks(N_ROWS, large))
    assert found["ps"] < 2.9
    assert found["chief"] < 2.6
    assert found["worker"] < 0.8
    # The chief maps the checkpoint, and has some blocks of 16 MiB of its own however
    # large the table: one table is six.
    found = tables(small, peaks(N_ROWS, large))
    assert found["ps"] < 2.9
    assert found["chief"] < 1.4
    assert found["worker"] < 0.8
