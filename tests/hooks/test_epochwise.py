# SPDX-License-Identifier: Apache-2.0
import pytest

from skest import Estimator, RunConfig
from skest.hooks import EpochwiseHook
from tests._models import N_ROWS, At, batches, model_fn, raising, table_fn


class Recorder(EpochwiseHook):
    def __init__(self):
        self.calls = []

    def begin_epoch(self, run):
        self.calls.append(("begin", run.global_step))

    def end_epoch(self, run):
        self.calls.append(("end", run.global_step))


@pytest.fixture
def estimator():
    return Estimator(model_fn, config=RunConfig(random_seed=0))


def test_epochs_are_passes_over_the_table(estimator):
    hook = Recorder()
    estimator.train(table_fn(batch_size=8, num_epochs=2), hooks=[hook])
    assert N_ROWS == 20
    assert hook.calls == [("begin", 0), ("end", 3), ("begin", 3), ("end", 6)]


def test_the_last_epoch_may_be_short_and_the_next_run_begins_anew(estimator):
    hook = Recorder()
    for _ in range(2):
        estimator.train(table_fn(batch_size=8, num_epochs=None), hooks=[hook], steps=4)
    first = [("begin", 0), ("end", 3), ("begin", 3), ("end", 4)]
    assert hook.calls == [*first, ("begin", 4), ("end", 7), ("begin", 7), ("end", 8)]


def test_an_interrupted_epoch_goes_on_in_the_next_run(estimator):
    class Failing(Recorder):
        def after_step(self, run, loss):
            super().after_step(run, loss)
            if run.global_step == 2:
                raise OSError("broken")

    hook = Failing()
    with pytest.raises(OSError, match="broken"):
        estimator.train(table_fn(batch_size=8), hooks=[hook])
    estimator.train(table_fn(batch_size=8), hooks=[hook])
    assert hook.calls == [("begin", 0), ("begin", 2), ("end", 3)]


def test_a_stream_is_one_epoch(estimator):
    hook = Recorder()
    estimator.train(lambda: batches(5), hooks=[hook])
    assert hook.calls == [("begin", 0), ("end", 5)]


@pytest.mark.parametrize("step", [3, 5, 7])
def test_boundaries_stay_where_they_are_in_the_middle_of_the_input(estimator, step):
    input_fn = table_fn(batch_size=8, num_epochs=4, shuffle=True)  # 3 steps an epoch
    with pytest.raises(OSError, match="broken"):
        estimator.train(input_fn, hooks=[At(step, raising(OSError("broken")))])
    hook = Recorder()
    estimator.train(input_fn, hooks=[hook])
    ends = [end for end in (3, 6, 9, 12) if end > step]
    begins = [step, *ends[:-1]]
    expected = zip(begins, ends, strict=True)
    assert hook.calls == [c for b, e in expected for c in (("begin", b), ("end", e))]


def test_epochs_end_where_a_hook_has_a_begin_of_its_own(estimator):
    class Beginning(Recorder):
        def begin(self, run):
            self.calls.append(("run", run.global_step))

    hook = Beginning()
    estimator.train(table_fn(batch_size=8, num_epochs=2), hooks=[hook])
    epochs = [("begin", 0), ("end", 3), ("begin", 3), ("end", 6)]
    assert hook.calls == [("run", 0), *epochs]
