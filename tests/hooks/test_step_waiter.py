# SPDX-License-Identifier: Apache-2.0
import logging

import pytest

from skest import Estimator
from skest.checkpoints.store import DirectoryStore
from skest.config.run_config import RunConfig
from skest.hooks import GlobalStepWaiterHook, Run
from tests._models import Recorder, model_fn, table_fn
from tests.checkpoints.test_checkpoint_store import checkpoint_of
from tests.hooks.test_base import SPEC

SOON = {"poll_secs": 1e-4}


def test_waits_once_and_then_trains(caplog):
    steps = iter([None, 3, 9, 10])
    hook = GlobalStepWaiterHook(10, lambda: next(steps), **SOON)
    recorder = Recorder()
    with caplog.at_level(logging.INFO, "skest"):
        Estimator(model_fn).train(table_fn(), [hook, recorder])
    assert next(steps, "all read") == "all read"
    assert recorder.steps == [1, 2, 3, 4, 5]
    assert caplog.text.count("Waiting for global step 10.") == 1


def test_reads_the_step_of_checkpoints(tmp_path, monkeypatch):
    run = Run(SPEC, RunConfig(), model_dir=tmp_path)
    hook = GlobalStepWaiterHook(10)
    slept = []

    def another_process_trains(seconds):
        slept.append(seconds)
        DirectoryStore(tmp_path).save(checkpoint_of(5 * len(slept)))

    monkeypatch.setattr("time.sleep", another_process_trains)
    hook.begin(run)
    hook.before_step(run)
    assert slept == [0.5, 0.5]


@pytest.mark.parametrize("wait_until_step", [0, 3])
def test_a_training_that_is_there_does_not_wait(tmp_path, monkeypatch, wait_until_step):
    estimator = Estimator(model_fn, tmp_path).train(table_fn(), steps=3)
    monkeypatch.setattr("time.sleep", None)
    estimator.train(table_fn(), [GlobalStepWaiterHook(wait_until_step)], steps=1)
    assert estimator.checkpoint.global_step == 4


def test_a_request_to_stop_ends_the_waiting():
    run = Run(SPEC, RunConfig())
    hook = GlobalStepWaiterHook(10, lambda: run.request_stop("enough"), **SOON)
    hook.begin(run)
    hook.before_step(run)
    assert run.should_stop


def test_somebody_must_be_seen():
    with pytest.raises(ValueError, match="Give it a model_dir, or pass 'read_step'"):
        Estimator(model_fn).train(table_fn(), [GlobalStepWaiterHook(10)])


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ((-1,), ValueError, "'wait_until_step' of GlobalStepWaiterHook must be"),
        ((1.5,), TypeError, "'wait_until_step' of GlobalStepWaiterHook must be"),
        ((1, None, 0), ValueError, "'poll_secs' of GlobalStepWaiterHook must be"),
    ],
)
def test_wrong_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        GlobalStepWaiterHook(*arguments)
