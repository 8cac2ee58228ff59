# SPDX-License-Identifier: Apache-2.0
import contextlib
import itertools
import logging
import os
import signal
import sys
import threading
import warnings

import numpy as np
import pytest

from skest import DNNClassifier, Estimator, LinearRegressor, RunConfig
from skest._interrupts import (
    INTERRUPTED,
    answering_interrupts_afterwards,
    do_until_interrupt,
    stopping_on_interrupt,
)
from skest.feature_columns import numeric_column
from skest.hooks import EarlyStoppingHook
from tests import _forkserver
from tests._models import (
    At,
    Recorder,
    assert_same_checkpoint,
    batches,
    model_fn,
    raising,
    table_fn,
)


def ctrl_c(run=None):
    signal.raise_signal(signal.SIGINT)


def test_the_first_asks_and_the_second_raises(caplog):
    before, asked = signal.getsignal(signal.SIGINT), []
    with caplog.at_level(logging.WARNING, "skest"), stopping_on_interrupt(asked.append):
        ctrl_c()
        assert asked == [INTERRUPTED]
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
    assert asked == [INTERRUPTED]
    assert signal.getsignal(signal.SIGINT) is before
    assert "training stops after this step" in caplog.text


def within_training(work, asked):
    with stopping_on_interrupt(asked):
        work()


@pytest.mark.parametrize("within", [within_training, do_until_interrupt])
def test_work_is_broken_off(within):
    before, asked = signal.getsignal(signal.SIGINT), []

    def broken_off():
        ctrl_c()
        asked.append("not reached")

    def work():
        inside = signal.getsignal(signal.SIGINT)
        do_until_interrupt(lambda: None, asked.append)
        with pytest.raises(OSError, match="another"):
            do_until_interrupt(raising(OSError("another")), asked.append)
        assert signal.getsignal(signal.SIGINT) is inside
        assert asked == []
        do_until_interrupt(broken_off, asked.append)
        assert asked == [INTERRUPTED]
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()

    within(work, raising(AssertionError))
    assert signal.getsignal(signal.SIGINT) is before


def swallowed():
    with contextlib.suppress(KeyboardInterrupt):
        ctrl_c()


def replaced():
    try:
        ctrl_c()
    except KeyboardInterrupt:
        raise RuntimeError("could not determine the shape") from None


@pytest.mark.parametrize("work", [swallowed, replaced])
def test_a_ctrl_c_that_other_code_has_hidden_counts(work):
    before, asked = signal.getsignal(signal.SIGINT), []
    within_training(lambda: do_until_interrupt(work, asked.append), asked.append)
    assert asked == [INTERRUPTED]
    assert signal.getsignal(signal.SIGINT) is before


def press_before_operation(number, function, *arguments):
    """Call a function, with Ctrl-C before its n-th operation; tell if it has so many."""
    operations = itertools.count()

    def trace(frame, event, arg):
        frame.f_trace_opcodes = True
        if event == "opcode" and next(operations) == number:
            sys.settrace(None)
            ctrl_c()
        return trace

    tracing = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(tracing)
    return next(operations) > number


def test_ctrl_c_at_any_moment_asks_once():
    before = signal.getsignal(signal.SIGINT)
    for number in itertools.count():
        asked = []
        with stopping_on_interrupt(asked.append):
            was_pressed = press_before_operation(
                number, do_until_interrupt, lambda: None, asked.append
            )
        assert asked == [INTERRUPTED] * was_pressed
        assert signal.getsignal(signal.SIGINT) is before
        if not was_pressed:
            break
    assert number > 50


def test_short_work_is_done_before_ctrl_c_is_answered():
    before, asked, done = signal.getsignal(signal.SIGINT), [], []

    def work():
        with answering_interrupts_afterwards():
            ctrl_c()
            ctrl_c()  # both are one
            done.append(1)
        done.append(2)

    within_training(work, asked.append)
    assert (asked, done) == ([INTERRUPTED], [1, 2])
    do_until_interrupt(work, asked.append)
    assert (asked, done) == ([INTERRUPTED] * 2, [1, 2, 1])
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_and_an_error_of_short_work():
    with (
        pytest.raises(KeyboardInterrupt) as caught,
        answering_interrupts_afterwards(),
    ):
        ctrl_c()
        raise OSError("the disk is gone")
    assert "the disk is gone" in str(caught.value.__context__)


@pytest.mark.parametrize("within", [within_training, do_until_interrupt])
def test_a_handler_of_the_program_stays_in_force(within):
    heard, before = [], signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    try:
        within(ctrl_c, raising(AssertionError))
    finally:
        signal.signal(signal.SIGINT, before)
    assert heard == [1]


def test_other_threads_change_nothing():
    handlers = []

    def train():
        hook = At(1, lambda run: handlers.append(signal.getsignal(signal.SIGINT)))
        Estimator(model_fn).train(table_fn(), [hook])

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert handlers == [before]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_processes_stay(capfd):
    with stopping_on_interrupt(raising(AssertionError)):
        child = os.fork()
        if child == 0:
            try:
                ctrl_c()
                os._exit(7)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("with_dir", [False, True])
def test_training_returns_at_a_whole_step_and_goes_on(tmp_path, with_dir):
    """Three steps, Ctrl-C and two steps are five steps, bit for bit."""
    config = RunConfig(random_seed=0, model_dir=tmp_path if with_dir else None)
    params = {"network": "torch_dropout", "optimizer": "adam"}
    estimator, recorder = Estimator(model_fn, None, config, params), Recorder()
    result = estimator.train(table_fn(num_epochs=2), [At(3, ctrl_c), recorder])
    assert result is estimator
    assert recorder.calls[-1] == "end"
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


def test_fit_warns_also_if_it_goes_back_to_its_best_epoch():
    x = np.random.default_rng(0).normal(size=(100, 2))
    classifier = DNNClassifier(
        batch_size=10, hooks=[At(23, ctrl_c)], random_state=0, early_stopping=True
    )
    with pytest.warns(UserWarning, match="interrupted by Ctrl-C after 23 steps"):
        classifier.fit(x, x[:, 0] > 0)
    classifier.set_params(hooks=())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        classifier.fit(x, x[:, 0] > 0)


def test_train_of_a_stream_warns():
    columns = [numeric_column("x", shape=3)]
    model = LinearRegressor(feature_columns=columns, hooks=[At(2, ctrl_c)])
    with pytest.warns(UserWarning, match="LinearRegressor was interrupted .* 2 steps"):
        model.train(lambda: [({"x": x}, y) for x, y in batches()])
    assert model.n_steps_ == 2


def test_the_second_ctrl_c_saves_and_raises(tmp_path):
    estimator = Estimator(model_fn, tmp_path)
    with pytest.raises(KeyboardInterrupt):
        estimator.train(table_fn(), [At(3, ctrl_c), At(3, ctrl_c)])
    assert estimator.checkpoint.global_step == 3
    assert estimator.stop_reason == "interrupted by Ctrl-C"


@pytest.mark.parametrize("with_dir", [False, True])
def test_stop_reasons(tmp_path, with_dir):
    estimator = Estimator(model_fn, tmp_path if with_dir else None)
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


def killed(model_dir):
    hook = At(7, lambda run: os.kill(os.getpid(), signal.SIGKILL))
    Estimator(model_fn, model_dir).train(table_fn(), [hook])


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_nobody_knows_why_a_killed_training_ended(tmp_path):
    estimator = Estimator(model_fn, tmp_path).train(table_fn())
    assert estimator.stop_reason == "the input ended"
    context = _forkserver.context()
    process = context.Process(target=killed, args=(tmp_path,))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert estimator.checkpoint.global_step == 5
    assert estimator.stop_reason is None
