# SPDX-License-Identifier: Apache-2.0
import logging

import pytest

from skest import Estimator, RunConfig
from skest.checkpoints.store import DirectoryStore
from skest.hooks import EpochwiseHook, FinalOpsHook, GlobalStepWaiterHook, Run
from tests._models import N_ROWS, At, Recorder, model_fn, raising, table_fn
from tests.checkpoints.test_store import checkpoint_of
from tests.hooks.test_base import SPEC

# Waiting


def test_waits_once_and_then_trains(caplog):
    steps = iter([None, 3, 9, 10])
    hook = GlobalStepWaiterHook(10, lambda: next(steps), poll_secs=1e-4)
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


def test_wrong_arguments_of_waiting():
    for arguments, error, match in [
        ((-1,), ValueError, "'wait_until_step' of GlobalStepWaiterHook must be"),
        ((1.5,), TypeError, "'wait_until_step' of GlobalStepWaiterHook must be"),
        ((1, None, 0), ValueError, "'poll_secs' of GlobalStepWaiterHook must be"),
    ]:
        with pytest.raises(error, match=match):
            GlobalStepWaiterHook(*arguments)


# Epochs


class Epochs(EpochwiseHook):
    def __init__(self):
        self.calls = []

    def begin_epoch(self, run):
        self.calls.append(("begin", run.global_step))

    def end_epoch(self, run):
        self.calls.append(("end", run.global_step))


@pytest.fixture
def seeded():
    return Estimator(model_fn, config=RunConfig(random_seed=0))


def test_epochs_are_passes_over_the_table(seeded):
    hook = Epochs()
    seeded.train(table_fn(batch_size=8, num_epochs=2), hooks=[hook])
    assert N_ROWS == 20
    assert hook.calls == [("begin", 0), ("end", 3), ("begin", 3), ("end", 6)]


@pytest.mark.parametrize("step", [3, 5])
def test_boundaries_stay_where_they_are_in_the_middle_of_the_input(seeded, step):
    input_fn = table_fn(batch_size=8, num_epochs=4, shuffle=True)  # 3 steps an epoch
    with pytest.raises(OSError, match="broken"):
        seeded.train(input_fn, hooks=[At(step, raising(OSError("broken")))])
    hook = Epochs()
    seeded.train(input_fn, hooks=[hook])
    ends = [end for end in (3, 6, 9, 12) if end > step]
    begins = [step, *ends[:-1]]
    expected = zip(begins, ends, strict=True)
    assert hook.calls == [c for b, e in expected for c in (("begin", b), ("end", e))]


# At the end


def test_computes_at_the_end():
    one = FinalOpsHook(lambda run: run.global_step)
    two = FinalOpsHook({"a": lambda run: run.global_step, "b": lambda run: run.mode})
    assert one.final_ops_values is None
    Estimator(model_fn).train(table_fn(), [one, two])
    assert one.final_ops_values == 5
    assert two.final_ops_values == {"a": 5, "b": "train"}


def test_only_functions():
    for final_ops in [3, {"a": 3}]:
        with pytest.raises(TypeError, match="'final_ops' must be a function .*; got 3"):
            FinalOpsHook(final_ops)
