# SPDX-License-Identifier: Apache-2.0
"""Processes that train and export are killed at any moment, and started again."""

import functools
import random
import time
from pathlib import Path

import pandas as pd
import pytest

from skest import DNNClassifier, Estimator, RunConfig, export
from skest.checkpoints.format import read_checkpoint
from skest.checkpoints.store import DirectoryStore
from skest.core.files import list_versions
from skest.inputs import parquet_input_fn
from tests import _forkserver
from tests._models import assert_same_checkpoint, model_fn, table, table_fn

SECONDS = 120.0
FOREVER = 1_000_000
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


def train(model_dir, folder, kind, max_steps):
    config = RunConfig(
        model_dir, random_seed=3, save_checkpoints_steps=2, keep_checkpoint_max=2
    )
    estimator = Estimator(model_fn, config=config, params=PARAMS)
    return estimator.train(INPUTS[kind](folder), max_steps=max_steps)


def kill(target, arguments, has_begun, seconds):
    """Start a process, and kill it some time after it has begun to write."""
    process = _forkserver.context().Process(target=target, args=arguments)
    process.start()
    end = time.monotonic() + SECONDS
    while not has_begun():
        assert process.is_alive()
        assert time.monotonic() < end
        time.sleep(0.002)
    time.sleep(seconds)
    process.kill()
    process.join()


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


@pytest.mark.parametrize("kind", sorted(INPUTS))
def test_killed_trainings_add_up_to_one(tmp_path, folder, kind):
    rng, store, steps = random.Random(kind), DirectoryStore(tmp_path), [0]
    for n in range(5):
        before = store.version()
        kill(
            train,
            (tmp_path, folder, kind, FOREVER),
            lambda before=before: store.version() != before,
            rng.uniform(0, 0.1) if n else 0.0,
        )
        steps.append(store.latest().global_step)
        for path in tmp_path.glob("ckpt-*"):
            read_checkpoint(path)  # whatever is visible is whole
    assert steps == sorted(steps)
    last = steps[-1] + 5
    train(tmp_path, folder, kind, last)
    whole = train(None, folder, kind, last)
    assert_same_checkpoint(store.latest(), whole.checkpoint)


def export_without_end(model, base):
    while True:
        model.export(base)


def test_every_visible_version_loads(tmp_path):
    rng = random.Random(0)
    x, y = table()
    model = DNNClassifier((256, 256), max_iter=1).fit(x, y > 0)
    # In its first export, and in a later one.
    for seen in (Path.iterdir, list_versions) * 5:
        before = set(seen(tmp_path))
        kill(
            export_without_end,
            (model, tmp_path),
            lambda seen=seen, before=before: not set(seen(tmp_path)) <= before,
            rng.uniform(0, 0.1),
        )
    assert list_versions(tmp_path)
    for version in list_versions(tmp_path):
        export.load(version)
