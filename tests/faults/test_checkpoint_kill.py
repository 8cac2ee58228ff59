# SPDX-License-Identifier: Apache-2.0
"""A process that saves checkpoints is killed at any moment."""

import random
import signal
import time

import pytest
import torch

from skest.checkpoint_store import DirectoryStore
from skest.checkpoints import Checkpoint
from tests import _forkserver
from tests.faults._dying import save_until

N_VALUES = 1_250_000  # 5 MB
SECONDS_TO_START = 60.0


def save_forever(model_dir):
    """Save every step twice, so that checkpoints are also replaced."""
    store = DirectoryStore(model_dir, keep_max=3)
    step = store.latest_step() or 0
    while True:
        step += 1
        checkpoint = Checkpoint(
            step,
            {"variable": torch.full((N_VALUES,), float(step))},
            {"0:variable/sum": torch.full((10,), float(step))},
        )
        store.save(checkpoint)
        store.save(checkpoint)


def kill_while_saving(context, model_dir, delay):
    """Start a process, and kill it some time after it has written a checkpoint."""
    before = DirectoryStore(model_dir).latest_step()
    process = context.Process(target=save_forever, args=(model_dir,))
    process.start()
    deadline = time.monotonic() + SECONDS_TO_START
    while DirectoryStore(model_dir).latest_step() == before:
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.001)
    time.sleep(delay)
    process.kill()
    process.join()


def check(model_dir, least):
    store = DirectoryStore(model_dir)
    checkpoint = store.latest()
    step = checkpoint.global_step
    assert step == store.latest_step() >= least
    for tensors in (checkpoint.variables, checkpoint.optimizer):
        for value in tensors.values():
            assert bool((value == step).all())
    return step


@pytest.fixture(scope="module")
def context():
    """A server that has imported torch, and forks quickly."""
    return _forkserver.context()


@pytest.mark.parametrize(
    "n_kills",
    [20, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_the_latest_checkpoint_survives(context, tmp_path, n_kills):
    delays = random.Random(0)
    step = 0
    for _ in range(n_kills):
        kill_while_saving(context, tmp_path, delays.uniform(0, 0.1))
        step = check(tmp_path, least=step)
    DirectoryStore(tmp_path, keep_max=3).save(
        Checkpoint(step + 1, {"a": torch.ones(1)})
    )
    names = [path.name for path in tmp_path.iterdir()]
    assert not [name for name in names if name.startswith(".")]
    assert len(names) <= 4  # three checkpoints and the pointer


def of_value(step, value):
    return Checkpoint(step, {"variable": torch.full((10,), value)})


@pytest.mark.parametrize("step", [2, 3])
def test_every_moment_of_saving(context, tmp_path, step):
    for n_operations in range(1000):
        model_dir = tmp_path / str(n_operations)
        store = DirectoryStore(model_dir, keep_max=2)
        store.save(of_value(1, 1.0))
        store.save(of_value(2, 2.0))
        arguments = (n_operations, store.save, of_value(step, 9.0))
        process = context.Process(target=save_until, args=arguments)
        process.start()
        process.join()
        latest = DirectoryStore(model_dir).latest()
        found = (latest.global_step, latest.variables["variable"].unique().tolist())
        assert found in ((2, [2.0]), (step, [9.0]))
        store.save(of_value(4, 4.0))
        assert store.latest_step() == 4
        assert not list(model_dir.glob(".*"))
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert found == (step, [9.0])
    assert n_operations > 10
