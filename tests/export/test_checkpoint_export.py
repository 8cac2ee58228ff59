# SPDX-License-Identifier: Apache-2.0
import json

import pytest
import torch

from skest import Estimator, RunConfig
from skest.checkpoints.format import read_checkpoint
from skest.core.files import list_versions
from skest.exceptions import ArtifactError, CorruptCheckpointError, NotFittedError
from skest.export import load, writer
from tests._models import model_fn, table_fn

CHECKPOINT = {"format": "checkpoint"}


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    config = RunConfig(save_checkpoints_steps=2)
    params = {"optimizer": "adam"}
    model_dir = tmp_path_factory.mktemp("trained") / "model"
    estimator = Estimator(model_fn, model_dir, config, params)
    return estimator.train(table_fn())


def test_holds_the_variables_and_a_manifest(tmp_path, estimator):
    source = tmp_path / "words.txt"
    source.write_text("one")
    path = estimator.export(tmp_path / "base", assets={"w.txt": source}, **CHECKPOINT)
    assert list_versions(tmp_path / "base") == [path]
    assert json.loads((path / "manifest.json").read_text()) == {
        "format": "skest.export/1",
        "kind": "checkpoint",
        "global_step": 5,
        "assets": ["w.txt"],
    }
    assert (path / "assets" / "w.txt").read_text() == "one"
    exported, checkpoint = read_checkpoint(path), estimator.checkpoint
    assert exported.global_step == 5
    assert not exported.optimizer and checkpoint.optimizer
    for name, value in checkpoint.variables.items():
        assert torch.equal(exported.variables[name], value)
    assert estimator.evaluate(table_fn(), checkpoint_path=path) == (
        estimator.evaluate(table_fn())
    )
    with pytest.raises(ArtifactError, match="format='checkpoint', which `skest.check"):
        load(path)
    with pytest.raises(ValueError, match="is a version, of which nothing may change"):
        estimator.export(path, **CHECKPOINT)


def test_another_checkpoint(tmp_path, estimator):
    older = estimator.model_dir / "ckpt-2"
    for checkpoint_path in (older, str(older), read_checkpoint(older)):
        path = estimator.export(tmp_path, checkpoint_path=checkpoint_path, **CHECKPOINT)
        assert read_checkpoint(path).global_step == 2


def test_assets_are_there_and_stay_where_they_belong(tmp_path, estimator):
    source = tmp_path / "words.txt"
    source.write_text("one")
    for name in ("", "../words.txt", "/words.txt", "a/b"):
        with pytest.raises(ValueError, match="is no name that a file of an export"):
            estimator.export(tmp_path / "base", assets={name: source}, **CHECKPOINT)
    with pytest.raises(ValueError, match="'assets' has no file '.*nothing' to copy"):
        nothing = {"a": tmp_path / "nothing"}
        estimator.export(tmp_path / "base", assets=nothing, **CHECKPOINT)
    assert not (tmp_path / "base").exists()


def test_what_was_written_is_read_back(tmp_path, estimator, monkeypatch):
    def damaged(checkpoint, directory):
        write(checkpoint, directory)
        path = max(directory.glob("*.safetensors"), key=lambda p: p.stat().st_size)
        path.write_bytes(path.read_bytes()[:-1] + b"\xff")

    write = writer.write_checkpoint
    monkeypatch.setattr(writer, "write_checkpoint", damaged)
    with pytest.raises(CorruptCheckpointError):
        estimator.export(tmp_path / "base", **CHECKPOINT)
    assert list_versions(tmp_path / "base") == []
    assert estimator.export(tmp_path / "base", verify=False, **CHECKPOINT).is_dir()


def test_nothing_to_export(tmp_path, estimator):
    with pytest.raises(NotFittedError, match="Call train first"):
        Estimator(model_fn).export(tmp_path)
    with pytest.raises(ValueError, match="There is no checkpoint at"):
        Estimator(model_fn).export(tmp_path, checkpoint_path=tmp_path / "ckpt-7")
    with pytest.raises(ValueError, match="'format' of an export must be one of 'onnx'"):
        estimator.export(tmp_path, format="pickle")
