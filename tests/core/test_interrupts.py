# SPDX-License-Identifier: Apache-2.0
import os
import signal

import numpy as np
import pytest

from skest import DNNClassifier, Estimator, RunConfig
from skest.hooks import EarlyStoppingHook, Hook
from tests._models import (
    At,
    Recorder,
    assert_same_checkpoint,
    model_fn,
    raising,
    table_fn,
)


def ctrl_c(run=None):
    signal.raise_signal(signal.SIGINT)


def test_a_handler_of_the_program_stays_in_force():
    heard, before = [], signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        estimator = Estimator(model_fn).train(table_fn(), [At(2, ctrl_c)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [1]
    assert estimator.stop_reason == "the input ended"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_processes_stay():
    """Ctrl-C also reaches those that load data: the step needs them."""

    def fork(run):
        child = os.fork()
        if child == 0:
            try:
                ctrl_c()
                os._exit(7)
            finally:
                os._exit(1)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    statuses = []
    Estimator(model_fn).train(table_fn(), [At(2, fork)])
    assert statuses == [7]


@pytest.mark.parametrize("with_dir", [False, True])
def test_training_returns_at_a_whole_step_and_goes_on(tmp_path, with_dir):
    """Three steps, Ctrl-C and two steps are five steps, bit for bit."""
    config = RunConfig(random_seed=0, model_dir=tmp_path if with_dir else None)
    params = {"network": "torch_dropout", "optimizer": "adam"}
    estimator, recorder = Estimator(model_fn, None, config, params), Recorder()
    result = estimator.train(table_fn(num_epochs=2), [At(3, ctrl_c), recorder])
    assert result is estimator
    assert recorder.calls[-1] == "end"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert estimator.checkpoint.global_step == 3
    assert estimator.stop_reason == "interrupted by Ctrl-C"
    estimator.train(table_fn(num_epochs=2))
    assert estimator.stop_reason == "the input ended"
    whole = Estimator(model_fn, None, config.replace(model_dir=None), params)
    whole.train(table_fn(num_epochs=2))
    assert_same_checkpoint(estimator.checkpoint, whole.checkpoint)


def test_fit_returns_what_it_has_learned():
    x = np.random.default_rng(0).normal(size=(100, 2))
    classifier = DNNClassifier(batch_size=10, hooks=[At(13, ctrl_c)], random_state=0)
    with pytest.warns(UserWarning, match="DNNClassifier was interrupted .* 13 steps"):
        classifier.fit(x, x[:, 0] > 0)
    assert (classifier.n_steps_, classifier.n_iter_) == (13, 2)
    assert classifier.predict(x).shape == (100,)


def test_the_second_ctrl_c_saves_and_raises(tmp_path):
    estimator = Estimator(model_fn, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        estimator.train(table_fn(), [At(3, ctrl_c), At(3, ctrl_c)])
    assert estimator.checkpoint.global_step == 3
    assert estimator.stop_reason == "interrupted by Ctrl-C"


def test_stop_reasons(tmp_path):
    estimator = Estimator(model_fn, tmp_path)
    reasons = []

    def note(run=None):
        reasons.append(estimator.stop_reason)

    note()
    estimator.train(table_fn(), [At(2, note)])
    note()
    with pytest.raises(OSError, match="broken"):
        estimator.train(table_fn(), [At(7, note), At(8, raising(OSError("broken")))])
    note()
    estimator.train(table_fn(), steps=1)
    note()
    with pytest.raises(ValueError, match="refused"):
        estimator.train(table_fn(), [EarlyStoppingHook(raising(ValueError("refused")))])
    note()
    assert reasons == [
        *(None, None, "the input ended", None),
        *("OSError: broken", "reached step 9", "ValueError: refused"),
    ]
    # Of another checkpoint that is made the latest, nothing is known.
    estimator.checkpoint = Estimator(model_fn).train(table_fn(), steps=4).checkpoint
    assert estimator.stop_reason is None


class AtEnd(Hook):
    def end(self, run):
        ctrl_c()


def test_ctrl_c_behind_the_last_step_saves_and_raises(tmp_path):
    estimator = Estimator(model_fn, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        estimator.train(table_fn(), [AtEnd()])
    assert estimator.checkpoint.global_step == 5
    assert estimator.stop_reason == "interrupted by Ctrl-C"
