# SPDX-License-Identifier: Apache-2.0
"""A training with frequent checkpoints is killed at any moment, and goes on."""

import functools
import random
import time

import pandas as pd
import pytest

from skest import Estimator, RunConfig
from skest.checkpoint_store import DirectoryStore
from skest.inputs import parquet_input_fn
from tests import _forkserver
from tests._models import assert_same_checkpoint, model_fn, table, table_fn

FOREVER = 1_000_000
SECONDS_TO_START = 60.0
PARAMS = {"network": "torch_dropout", "optimizer": "adam"}
INPUTS = {
    "array": lambda folder: table_fn(shuffle=True, num_epochs=None, seed=1),
    "parquet": lambda folder: functools.partial(from_files, folder),
}


def from_files(folder, config):
    """Return a Pipeline with a shuffle buffer and a prefetching thread."""
    input_fn = parquet_input_fn(
        folder / "*.parquet",
        7,
        label="y",
        shuffle=True,
        shuffle_buffer=50,
        num_epochs=None,
    )
    return input_fn(config=config).map(as_arrays)


def as_arrays(batch):
    features, labels = batch
    return pd.DataFrame(features).to_numpy("float32"), labels


def make(model_dir, seed=3):
    config = RunConfig(
        model_dir, random_seed=seed, save_checkpoints_steps=2, keep_checkpoint_max=2
    )
    return Estimator(model_fn, config=config, params=PARAMS)


def train(model_dir, folder, kind, max_steps):
    make(model_dir).train(INPUTS[kind](folder), max_steps=max_steps)


@pytest.fixture(scope="module")
def context():
    """A server that has imported everything, and forks quickly."""
    return _forkserver.context()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files of 60 rows each, in row groups of 20."""
    folder = tmp_path_factory.mktemp("files")
    x, y = table(180)
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=y)
    for part in range(3):
        rows = frame.iloc[60 * part : 60 * (part + 1)]
        rows.to_parquet(folder / f"{part}.parquet", row_group_size=20)
    return folder


def kill(process, model_dir, rng):
    """Kill a training: often while it saves, at times before it has restored."""
    before = DirectoryStore(model_dir).latest_step()
    deadline = time.monotonic() + SECONDS_TO_START
    if rng.random() < 0.75:
        while DirectoryStore(model_dir).latest_step() == before:
            assert process.is_alive()
            assert time.monotonic() < deadline
            time.sleep(0.002)
    time.sleep(rng.uniform(0, 0.15))
    process.kill()
    process.join()


@pytest.mark.parametrize("kind", sorted(INPUTS))
@pytest.mark.parametrize(
    "n_kills",
    [3, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
)
def test_killed_trainings_add_up_to_one(context, tmp_path, folder, kind, n_kills):
    rng, store, steps = random.Random(n_kills), DirectoryStore(tmp_path), [0]
    for _ in range(n_kills):
        arguments = (tmp_path, folder, kind, FOREVER)
        process = context.Process(target=train, args=arguments)
        process.start()
        kill(process, tmp_path, rng)
        latest = store.latest()  # is complete, and its checksums are right
        steps.append(0 if latest is None else latest.global_step)
    assert steps == sorted(steps)
    assert steps[-1] > 0
    last = steps[-1] + 5
    train(tmp_path, folder, kind, last)
    whole = make(None).train(INPUTS[kind](folder), max_steps=last)
    assert_same_checkpoint(store.latest(), whole.checkpoint)
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")]
