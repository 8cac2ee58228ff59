# SPDX-License-Identifier: Apache-2.0
import errno
import json
import logging
import os
import shutil
import socket
import threading

import pytest
from filelock import FileLock

from skest import Estimator, RunConfig
from skest.checkpoints.lock import training_lock
from skest.exceptions import ModelDirInUseError
from tests._models import At, model_fn, raising, table_fn


def owner(directory):
    return json.loads((directory / "training.json").read_text())


def test_says_who_holds_it(tmp_path):
    directory = tmp_path / "new"
    with training_lock(directory):
        assert owner(directory)["pid"] == os.getpid()
        assert owner(directory)["host"] == socket.gethostname()
    assert [path.name for path in directory.iterdir()] == ["training.lock"]


def test_two_trainings_in_one_process(tmp_path):
    estimator, errors = Estimator(model_fn, tmp_path), []

    def train_another(run):
        def train():
            with pytest.raises(ModelDirInUseError) as caught:
                Estimator(model_fn, tmp_path).train(table_fn())
            errors.append(str(caught.value))

        train()
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()

    estimator.train(table_fn(), [At(2, train_another)])
    assert estimator.checkpoint.global_step == 5
    assert len(errors) == 2
    for text in errors:
        assert f"'model_dir' '{tmp_path}' is being trained in by another call" in text
        assert "wait for the other one, end it, or use another model_dir" in text


def test_only_training_takes_it(tmp_path):
    estimator = Estimator(model_fn, tmp_path).train(table_fn())
    with training_lock(tmp_path):
        estimator.evaluate(table_fn())
        list(estimator.predict(table_fn(labels=False)))
        estimator.export(tmp_path / "export", format="checkpoint")
        estimator.train(table_fn(), max_steps=5)  # nothing is left to do
        with pytest.raises(ModelDirInUseError):
            estimator.train(table_fn(), max_steps=6)


def test_what_a_killed_process_left_is_no_lock(tmp_path, caplog):
    (tmp_path / "training.json").write_text('{"pid": 123, "host": "there"}')
    with caplog.at_level(logging.WARNING, "skest"), training_lock(tmp_path):
        assert owner(tmp_path)["pid"] == os.getpid()
    assert "of process 123 on there, was killed" in caplog.text


def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
    error = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr(FileLock, "acquire", raising(error))
    with caplog.at_level(logging.WARNING, "skest"):
        estimator = Estimator(model_fn, tmp_path).train(table_fn())
    assert estimator.checkpoint.global_step == 5
    assert "can't be locked (No locks available): take care" in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps files that are open")
@pytest.mark.parametrize("another_trains", [False, True])
def test_who_deletes_the_directory_ends_the_training_in_it(tmp_path, another_trains):
    model_dir = tmp_path / "model"
    other = Estimator(model_fn, model_dir)

    def delete(run):
        # At once: event files are written by another thread.
        shutil.rmtree(model_dir.rename(tmp_path / "gone"), ignore_errors=True)
        if another_trains:
            other.train(table_fn(), max_steps=4)

    config = RunConfig(model_dir, save_checkpoints_steps=2)
    with pytest.raises(ModelDirInUseError, match="was deleted .*Don't delete .* file"):
        Estimator(model_fn, config=config).train(table_fn(), [At(3, delete)])
    assert model_dir.exists() == another_trains
    if another_trains:  # nothing of it is overwritten
        assert other.checkpoint.global_step == 4
        assert other.stop_reason == "reached step 4"
