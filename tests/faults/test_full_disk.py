# SPDX-License-Identifier: Apache-2.0
"""No room for a checkpoint, and a directory that may only be read."""

import logging
import os
import re
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest

from skest import Estimator, EvalSpec, RunConfig, TrainSpec, train_and_evaluate
from skest.export import LatestExporter
from tests import _forkserver
from tests._models import At, assert_same_checkpoint, model_fn, raising, table_fn

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="limits and permissions of POSIX"
)
FULL = (
    "was not saved in '.*': File too large. Make room.*that of step 10 is still there"
)
NOBODY = 65534


def make(model_dir):
    config = RunConfig(model_dir, random_seed=0, save_checkpoints_steps=10)
    return Estimator(model_fn, config=config)


def endless():
    return table_fn(num_epochs=None, shuffle=True, seed=1)()


def set_limit(n_bytes):
    """Let no file grow further, as the file system of a small quota does."""
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error in place of the signal
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))


def run(function, *arguments):
    """Call a function in a process of its own, and return what it returns."""
    context = _forkserver.context()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, function, arguments))
    process.start()
    sender.close()
    try:
        return receiver.recv()
    finally:
        process.join()


def _send(sender, function, arguments):
    make(None).train(endless, steps=1)  # imports what writes or must be readable
    sender.send(function(*arguments))


def error_of(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except OSError as error:
        return type(error).__name__, str(error)
    return None


def train_until_the_disk_is_full(model_dir):
    hook = At(15, lambda run: set_limit(100))
    return error_of(make(model_dir).train, endless, [hook], max_steps=40)


def test_the_older_checkpoint_is_kept_and_goes_on(tmp_path):
    name, message = run(train_until_the_disk_is_full, tmp_path)
    assert name == "OSError"
    assert re.search(FULL, message)
    assert "The checkpoint of step 20 was not saved" in message
    estimator = make(tmp_path)
    assert estimator.checkpoint.global_step == 10
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".")]
    estimator.train(endless, max_steps=40)
    whole = make(None).train(endless, max_steps=40)
    assert_same_checkpoint(estimator.checkpoint, whole.checkpoint)


def use_with_a_full_disk(model_dir):
    estimator = make(model_dir)
    set_limit(0)
    metrics = estimator.evaluate(table_fn())
    exported = error_of(estimator.export, model_dir / "export", format="checkpoint")
    trained = error_of(estimator.train, endless, steps=3)
    return metrics, exported, trained


def test_what_only_reads_works_and_exports_say_what_failed(tmp_path):
    before = make(tmp_path).train(endless, steps=10).checkpoint
    metrics, exported, trained = run(use_with_a_full_disk, tmp_path)
    assert metrics["global_step"] == 10
    assert "checkpoint of step 10 was not exported to" in exported[1]
    assert "older versions are still there" in exported[1]
    assert list((tmp_path / "export").iterdir()) == []
    assert "Training needs to write to 'model_dir'" in trained[1]
    assert_same_checkpoint(make(tmp_path).checkpoint, before)


def use_as_nobody(model_dir):
    if os.geteuid() == 0:
        os.setuid(NOBODY)
    estimator = make(model_dir)
    metrics = estimator.evaluate(table_fn())
    predictions = list(estimator.predict(table_fn(labels=False)))
    exported = error_of(estimator.export, model_dir / "export", format="checkpoint")
    return metrics, predictions, exported, error_of(estimator.train, endless, steps=3)


def test_a_directory_that_may_only_be_read():
    model_dir = Path(tempfile.mkdtemp())
    try:
        make(model_dir).train(endless, steps=10)
        for path in (model_dir, *model_dir.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        metrics, predictions, exported, trained = run(use_as_nobody, model_dir)
        assert metrics["global_step"] == 10
        assert len(predictions) == 20
        assert exported[0] == trained[0] == "PermissionError"
        assert "was not exported to" in exported[1]
        assert "Training needs to write to 'model_dir'" in trained[1]
        assert "Permission denied. Make room, see to the permissions" in trained[1]
        assert make(model_dir).checkpoint.global_step == 10
    finally:
        model_dir.chmod(0o755)
        for path in model_dir.rglob("*"):
            path.chmod(0o755)
        shutil.rmtree(model_dir)


@pytest.mark.parametrize(
    "name", ["skest.estimators.evaluations", "skest.checkpoints.store"]
)
def test_records_that_cannot_be_written_do_not_hide_the_results(
    tmp_path, monkeypatch, caplog, name
):
    module = sys.modules[name]
    write_file = module.write_file
    full = raising(OSError(28, "No space left on device"))

    def failing(path, content):
        is_record = path.name in ("train_and_evaluate.json", "stopped.json")
        return (full if is_record else write_file)(path, content)

    monkeypatch.setattr(module, "write_file", failing)
    with caplog.at_level(logging.WARNING, "skest"):
        metrics, exports = train_and_evaluate(
            make(tmp_path),
            TrainSpec(endless, max_steps=20),
            EvalSpec(
                table_fn(), exporters=LatestExporter("latest", format="checkpoint")
            ),
        )
    assert metrics["global_step"] == 20
    assert exports[0].is_dir()
    assert "recorded" in caplog.text
    assert "No space left" in caplog.text
