# SPDX-License-Identifier: Apache-2.0
"""Tasks of a cluster are killed at any moment, whichever they are."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skest.checkpoints.format import read_checkpoint
from skest.checkpoints.store import DirectoryStore

ROOT = Path(__file__).parents[2]
N_KILLS, MAX_STEPS = 6, 400


def tasks_of(launcher):
    """Return the processes of the tasks that have begun, but for the launcher."""
    found = []
    for children in Path(f"/proc/{launcher}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += [int(pid) for pid in children.read_text().split()]
    return sorted(found)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_training_survives_the_death_of_any_task(tmp_path):
    rng, model_dir = random.Random(0), tmp_path / "model"
    settings = f'{{"max_steps": {MAX_STEPS}, "timeout": 30.0}}'
    launcher = subprocess.Popen(
        [
            *(sys.executable, "-m", "skest.distributed.launch"),
            *("--workers", "2", "--ps", "2", "--max-restarts", "20"),
            *("--log-dir", str(tmp_path / "logs"), "tests/distributed/_role.py"),
            *(str(model_dir), settings),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    store, reached = DirectoryStore(model_dir), 0
    with launcher:
        for _ in range(N_KILLS):
            before = store.version()
            while store.version() == before and launcher.poll() is None:
                time.sleep(0.01)
            time.sleep(rng.uniform(0, 0.3))
            if launcher.poll() is None:
                os.kill(rng.choice(tasks_of(launcher.pid)), signal.SIGKILL)
            step = store.latest_step() or 0
            assert step >= reached  # what was saved is never lost
            reached = step
        assert launcher.wait(300) == 0
    assert MAX_STEPS <= store.latest_step() <= MAX_STEPS + 1
    for path in model_dir.glob("ckpt-*"):
        read_checkpoint(path)
