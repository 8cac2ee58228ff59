# SPDX-License-Identifier: Apache-2.0
"""Tasks of a cluster are killed at any moment, whichever they are."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skest.checkpoints.format import read_checkpoint
from skest.checkpoints.store import DirectoryStore
from tests.distributed._processes import wait_for

ROOT = Path(__file__).parents[2]
KILLED, MAX_STEPS = ("worker", "ps", "chief"), 200


def tasks_of(launcher, kind):
    """Return the processes of the tasks of a kind that have begun."""
    found = []
    for children in Path(f"/proc/{launcher}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for pid in children.read_text().split():
                if f'"type": "{kind}"' in Path(f"/proc/{pid}/environ").read_text():
                    found.append(int(pid))
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_a_training_survives_the_death_of_any_task(tmp_path):
    rng, model_dir = random.Random(0), tmp_path / "model"
    settings = f'{{"max_steps": {MAX_STEPS}, "timeout": 30.0}}'
    told = (tmp_path / "told").open("w+")
    launcher = subprocess.Popen(
        [
            *(sys.executable, "-m", "skest.distributed.launch"),
            *("--workers", "2", "--ps", "2", "--max-restarts", "20"),
            *("--log-dir", str(tmp_path / "logs"), "tests/distributed/_role.py"),
            *(str(model_dir), settings),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=told,
    )
    store, reached = DirectoryStore(model_dir), 0
    with launcher, told:
        for kind in KILLED:
            before = store.version()
            wait_for(lambda before=before: store.version() != before)
            time.sleep(rng.uniform(0, 0.3))
            wait_for(lambda kind=kind: tasks_of(launcher.pid, kind))
            os.kill(rng.choice(tasks_of(launcher.pid, kind)), signal.SIGKILL)
            step = store.latest_step() or 0
            assert step >= reached  # what was saved is never lost
            reached = step
        assert launcher.wait(300) == 0
        told.seek(0)
        said = told.read()
    for kind in KILLED:
        assert re.search(rf"{kind}-\d was killed by signal 9", said)
    assert said.count("all tasks are started again") == 1
    assert MAX_STEPS <= store.latest_step() <= MAX_STEPS + 1
    for path in model_dir.glob("ckpt-*"):
        read_checkpoint(path)
