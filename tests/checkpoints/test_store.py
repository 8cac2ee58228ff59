# SPDX-License-Identifier: Apache-2.0

import dataclasses
import json
import logging
import math
import os
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skest import (
    Estimator,
    EvalSpec,
    KeepBest,
    RunConfig,
    TrainSpec,
    train_and_evaluate,
)
from skest.checkpoints import format as checkpoint_format
from skest.checkpoints import store as checkpoint_store
from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.format import read_checkpoint
from skest.checkpoints.store import (
    DirectoryStore,
    eval_dir_of,
    read_eval_results,
    write_eval_result,
)
from skest.exceptions import CorruptCheckpointError
from tests._models import FakeClock, assert_same_checkpoint, model_fn, raising, table_fn

FILES = ("optimizer.safetensors", "state.json", "variables.safetensors")


def checkpoint_of(step):
    return Checkpoint(
        step,
        {"weight": torch.full((3, 2), float(step)), "empty": torch.zeros(0)},
        {"0:weight/sum": torch.full((3, 2), 0.5)},
        {"optimizers": [{"class": "Adagrad"}]},
    )


def saved(model_dir, *steps, **options):
    store = DirectoryStore(model_dir, **options)
    for step in steps:
        store.save(checkpoint_of(step))
    return store


def on_disk(model_dir):
    return sorted(int(p.name.split("-")[1]) for p in model_dir.glob("ckpt-*"))


def leftovers(model_dir):
    return [p.name for p in model_dir.iterdir() if p.name.startswith(".")]


def point_to(model_dir, name):
    pointer = json.loads((model_dir / "checkpoint").read_text())
    (model_dir / "checkpoint").write_text(json.dumps({**pointer, "latest": name}))


# Stores


def test_layout(tmp_path):
    saved(tmp_path, 2, 5)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "checkpoint",
        "ckpt-2",
        "ckpt-5",
    ]
    assert sorted(p.name for p in (tmp_path / "ckpt-5").iterdir()) == list(FILES)
    pointer = json.loads((tmp_path / "checkpoint").read_text())
    assert pointer["latest"] == "ckpt-5"
    assert [entry["name"] for entry in pointer["all"]] == ["ckpt-2", "ckpt-5"]


# Retention


def test_saving_a_step_again_replaces_it(tmp_path):
    store = saved(tmp_path, 3, 5, 3, keep_max=2)
    assert store.latest_step() == 3
    assert on_disk(tmp_path) == [3, 5]
    changed = dataclasses.replace(checkpoint_of(3), variables={"a": torch.ones(1)})
    store.save(changed)
    assert_same_checkpoint(store.latest(), changed)
    assert leftovers(tmp_path) == []


# The pointer


def test_training_goes_on_from_where_the_pointer_was_set(tmp_path):
    config = RunConfig(model_dir=tmp_path, save_checkpoints_steps=2, random_seed=0)
    estimator = Estimator(model_fn, config=config)
    estimator.train(table_fn(num_epochs=None), steps=6)
    point_to(tmp_path, "ckpt-2")
    assert estimator.evaluate(table_fn())["global_step"] == 2
    estimator.train(table_fn(num_epochs=None), steps=2)
    assert estimator.latest_checkpoint() == tmp_path / "ckpt-4-1"
    assert on_disk(tmp_path) == [0, 2, 4, 6]


@pytest.mark.parametrize(
    "content", [b'{"latest": "ckpt-9"}', b"[]", b"\xff\xfe", b'{"latest": "ckp', None]
)
def test_a_pointer_to_nothing_falls_back_to_the_highest_step(tmp_path, content, caplog):
    store = saved(tmp_path, 9, 10, keep_max=None)
    shutil.rmtree(tmp_path / "ckpt-9")
    (tmp_path / "ckpt-11").mkdir()  # is not complete
    (tmp_path / "checkpoint").unlink()
    if content is not None:
        (tmp_path / "checkpoint").write_bytes(content)
    assert store.latest_step() == store.latest().global_step == 10
    if content is not None:
        assert "names no checkpoint that is there. 'ckpt-10' is used" in caplog.text
    store.save(checkpoint_of(12))
    assert store.latest_step() == 12


# Permissions, and errors of the system


def test_a_file_in_place_of_the_directory(tmp_path):
    file = tmp_path / "model"
    file.write_text("a note")
    with pytest.raises(
        OSError, match="needs to write to 'model_dir'.*another model_dir"
    ):
        Estimator(model_fn, file).train(table_fn())
    assert file.read_text() == "a note"


def test_checkpoints_of_tensorflow_are_left_alone(tmp_path):
    pointer = tmp_path / "checkpoint"
    pointer.write_text('model_checkpoint_path: "model.ckpt-1000"\n')
    estimator = Estimator(model_fn, tmp_path)
    for call in (estimator.evaluate, estimator.train):
        with pytest.raises(ValueError, match="holds checkpoints of TensorFlow"):
            call(table_fn(), steps=1)
    assert pointer.read_text().startswith("model_checkpoint_path")


@pytest.mark.skipif(os.name == "nt", reason="permissions of POSIX")
def test_all_files_have_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o007)
    try:
        estimator = Estimator(model_fn, tmp_path / "model").train(table_fn())
        version = estimator.export(tmp_path / "export")
    finally:
        os.umask(before)
    files = [*estimator.latest_checkpoint().iterdir(), *version.iterdir()]
    modes = {path.name: path.stat().st_mode & 0o777 for path in files if path.is_file()}
    assert {*FILES, "manifest.json", "model.onnx"} < set(modes)
    assert set(modes.values()) == {0o660}


# Damage


@pytest.mark.parametrize("name", FILES)
def test_damaged_files_are_refused(tmp_path, name):
    store = saved(tmp_path, 1, 2)
    path = tmp_path / "ckpt-2" / name
    content = path.read_bytes()
    for damaged in (content[:-3], b"\xa5" * len(content), b"", content + b"}", None):
        if damaged is None:
            path.unlink()
        else:
            path.write_bytes(damaged)
        if (name, damaged) == ("state.json", None):  # then it is no checkpoint
            assert store.latest_step() == 1
        else:
            with pytest.raises(
                CorruptCheckpointError, match=r"ckpt-2' is damaged:.*Delete it"
            ):
                store.latest()


@pytest.fixture(scope="module")
def one_checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    saved(folder, 2)
    return folder / "ckpt-2"


def test_what_is_no_checkpoint_is_refused(tmp_path):
    for path in (tmp_path, tmp_path / "ckpt-3", str(tmp_path / "file")):
        with pytest.raises(ValueError, match="There is no checkpoint at"):
            read_checkpoint(path)


# Failing to write


@pytest.mark.parametrize("step", [2, 3])
def test_a_pointer_that_cannot_be_written_keeps_the_older_checkpoint(
    tmp_path, monkeypatch, step
):
    store = saved(tmp_path, 1, 2, keep_max=1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_store, "write_file", raising(OSError(5, "broken")))
        with pytest.raises(OSError, match="broken"):
            store.save(checkpoint_of(step))
    assert_same_checkpoint(store.latest(), checkpoint_of(2))
    store.save(checkpoint_of(4))
    assert on_disk(tmp_path) == [4]
    assert leftovers(tmp_path) == []


# The best ones, and checksums


def note(model_dir, step, name=None, **metrics):
    metrics = {"global_step": step, **metrics}
    write_eval_result(eval_dir_of(model_dir, name), metrics)


LOSSES = {0: 9.0, 2: 0.2, 4: 0.1, 6: 0.3, 8: 0.2, 10: float("nan"), 12: 0.5}


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (KeepBest(), [4, 10, 12]),
        (KeepBest(2), [2, 4, 10, 12]),  # at a tie the earlier one
        (KeepBest(2, greater_is_better=True), [0, 10, 12]),
        (KeepBest(2, "auc"), [10, 12]),
    ],
)
def test_the_best_are_kept_also_by_a_new_object(tmp_path, rule, kept):
    for step, loss in LOSSES.items():
        saved(tmp_path, step, keep_max=2, keep_best=rule)
        note(tmp_path, step, loss=loss)
    saved(tmp_path, 12, keep_max=2, keep_best=rule)
    assert on_disk(tmp_path) == sorted({*kept})


def test_what_is_no_longer_the_best_goes(tmp_path):
    store = saved(tmp_path, 1, keep_max=1, keep_best=KeepBest(eval_name="val"))
    note(tmp_path, 1, "val", loss=2.0)
    note(tmp_path, 2, loss=0.0)  # another evaluation
    store.save(checkpoint_of(2))
    assert on_disk(tmp_path) == [1, 2]
    note(tmp_path, 2, "val", loss=1.0)
    store.save(checkpoint_of(3))
    assert on_disk(tmp_path) == [2, 3]
    assert store.best_path(KeepBest(eval_name="val")).name == "ckpt-2"
    assert store.best_path(KeepBest(eval_name="test")) is None


def test_results_that_cannot_be_read_delete_nothing(tmp_path, caplog):
    (tmp_path / "eval").mkdir()
    (tmp_path / "eval" / "3.json").write_text("{\n")
    store = saved(tmp_path, *range(4), keep_max=1, keep_best=KeepBest())
    assert on_disk(tmp_path) == [0, 1, 2, 3]
    assert "All checkpoints stay" in caplog.text
    with pytest.raises(ValueError, match="3.json' is not the result"):
        store.best_path(KeepBest())


def test_training_keeps_the_best_checkpoint(tmp_path):
    config = RunConfig(
        tmp_path,
        random_seed=0,
        save_checkpoints_steps=5,
        keep_checkpoint_max=1,
        keep_best=KeepBest(metric="mean"),
    )
    estimator = Estimator(model_fn, config=config)
    assert estimator.best_checkpoint() is None
    train_and_evaluate(
        estimator,
        TrainSpec(table_fn(num_epochs=None), max_steps=30),
        EvalSpec(table_fn(), throttle_secs=0),
    )
    results = read_eval_results(estimator.eval_dir())
    best = min(results, key=lambda step: results[step]["mean"])
    assert 0 < best < 30
    path = estimator.best_checkpoint()
    assert path == tmp_path / f"ckpt-{best}"
    assert on_disk(tmp_path) == [best, 30]
    evaluated = estimator.evaluate(table_fn(), checkpoint_path=path)
    assert evaluated["mean"] == results[best]["mean"]
    assert estimator.best_checkpoint(KeepBest()) in (path, tmp_path / "ckpt-30")
    with pytest.raises(
        ValueError, match="the 'auc' of evaluations, but there is only 'gl"
    ):
        estimator.best_checkpoint(KeepBest(metric="auc"))
    assert Estimator(model_fn).best_checkpoint() is None


@settings(max_examples=60)
@given(name=st.sampled_from(FILES), where=st.floats(0, 1), bit=st.integers(0, 7))
def test_every_bit_counts(one_checkpoint, name, where, bit):
    path = one_checkpoint / name
    before = path.read_bytes()
    flipped = bytearray(before)
    flipped[round(where * (len(before) - 1))] ^= 1 << bit
    path.write_bytes(flipped)
    try:
        with pytest.raises(CorruptCheckpointError, match="is damaged"):
            read_checkpoint(one_checkpoint)
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize(
    ("moment", "step"), [("before the state", 2), ("before the tensors", 1)]
)
def test_a_checkpoint_that_goes_while_it_is_read(tmp_path, monkeypatch, moment, step):
    store = saved(tmp_path, 1, keep_max=1)
    others = dataclasses.replace(checkpoint_of(step), variables={"a": torch.ones(9)})
    name = "read_checkpoint" if moment == "before the state" else "read_tensors"
    module = checkpoint_format if name == "read_tensors" else checkpoint_store
    read = getattr(module, name)

    def reading(path, *args):
        if others not in done:
            done.append(others)
            DirectoryStore(tmp_path, keep_max=1).save(others)
        return read(path, *args)

    done = []
    monkeypatch.setattr(module, name, reading)
    assert store.latest().global_step == step
    assert store.latest().variables["a"].tolist() == [1.0] * 9


def test_evaluate_records_its_results(tmp_path):
    estimator = Estimator(model_fn, tmp_path)
    assert read_eval_results(estimator.eval_dir()) == {}
    estimator.train(table_fn())
    estimator.evaluate(table_fn(), steps=1)
    first = estimator.evaluate(table_fn())  # replaces the one of the same step
    named = estimator.evaluate(table_fn(), steps=1, name="test")
    second = estimator.train(table_fn()).evaluate(table_fn())
    assert read_eval_results(str(estimator.eval_dir())) == {5: first, 10: second}
    assert read_eval_results(estimator.eval_dir("test")) == {5: named}
    written = json.loads((estimator.eval_dir() / "5.json").read_text())
    assert written.items() >= first.items()


def test_what_is_no_number_is_read_back(tmp_path):
    for step, loss in ((20, math.nan), (10, math.inf)):
        write_eval_result(tmp_path, {"global_step": step, "loss": loss})
    results = read_eval_results(tmp_path)
    assert list(results) == [10, 20]
    assert results[10]["loss"] == math.inf
    assert math.isnan(results[20]["loss"])


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path, caplog):
    estimator = Estimator(model_fn, tmp_path).train(table_fn())
    estimator.eval_dir().write_text("a file is in the way")
    with caplog.at_level(logging.WARNING, "skest"):
        assert estimator.evaluate(table_fn())["global_step"] == 5
    assert "The result is not recorded" in caplog.text


def test_a_name_that_leads_elsewhere(tmp_path):
    estimator = Estimator(model_fn, tmp_path / "model").train(table_fn(), steps=1)
    for name in ["../x", "a/b", "..", ".", "/x"]:
        with pytest.raises(ValueError, match="'name' of an evaluation must be .* of a"):
            estimator.evaluate(table_fn(), name=name)
        with pytest.raises(ValueError, match="'name' of EvalSpec must be the .* a dir"):
            EvalSpec(table_fn(), name=name)
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_damaged_file_is_named(tmp_path):
    for content in ["{", "[]", '{"loss": 1}', '{"global_step": 1}']:
        write_eval_result(tmp_path, {"global_step": 1})
        (tmp_path / "2.json").write_text(content)
        with pytest.raises(ValueError, match="/2.json' is not the result .*Delete it"):
            read_eval_results(tmp_path)


def test_going_on_from_one_that_is_kept_for_good_keeps_it(tmp_path):
    clock = FakeClock(now=1e9)
    options = {"keep_max": 2, "keep_every_n_hours": 2, "clock": clock}
    store = DirectoryStore(tmp_path, **options)
    for step in range(6):  # one in every hour
        store.save(checkpoint_of(step))
        clock.now += 3600
    assert on_disk(tmp_path) == [2, 4, 5]
    point_to(tmp_path, "ckpt-2")
    saved(tmp_path, 2, 6, 7, 8, **options)  # a training saves where it begins
    assert on_disk(tmp_path) == [2, 4, 6, 7, 8]


def test_a_bit_that_flips_is_seen(tmp_path):
    write_eval_result(tmp_path, {"global_step": 1, "loss": 0.5, "auc": float("nan")})
    content = (tmp_path / "1.json").read_bytes()
    for i in range(0, 8 * len(content), 11):
        damaged = bytearray(content)
        damaged[i // 8] ^= 1 << i % 8
        (tmp_path / "1.json").write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            read_eval_results(tmp_path)
