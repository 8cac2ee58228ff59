# SPDX-License-Identifier: Apache-2.0
import math
import re

import numpy as np
import pytest

from skest import Estimator, RunConfig
from skest.checkpoints.store import write_eval_result
from skest.hooks import (
    Run,
    make_early_stopping_hook,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from tests._models import model_fn, table_fn
from tests.hooks.test_base import SPEC


def test_a_function_of_the_users_stops_training(tmp_path):
    answers = iter([False, False, False, True])

    def out_of_time():
        return next(answers)

    estimator = Estimator(model_fn, tmp_path)
    hook = make_early_stopping_hook(
        estimator, out_of_time, run_every_secs=None, run_every_steps=1
    )
    estimator.train(table_fn(num_epochs=None), [hook])
    assert estimator.checkpoint.global_step == 3
    assert estimator.stop_reason == "early stopping: out_of_time() was true"


# By a metric of evaluations

MAKERS = [
    (stop_if_higher_hook, 1.0),
    (stop_if_lower_hook, 1.0),
    (stop_if_no_increase_hook, 10),
    (stop_if_no_decrease_hook, 10),
]


@pytest.fixture
def evaluated(tmp_path):
    return Estimator(model_fn, tmp_path)


def reason(hook, step, start=0):
    """What the hook says at the beginning of a run; None if training may go on."""
    run = Run(SPEC, RunConfig(), global_step=start)
    run.global_step = step
    hook.begin(run)
    return run.stop_reason


def record(directory, **values):
    """Record values of the metric "m" by global step, as ``s10=0.5``."""
    for step, value in values.items():
        write_eval_result(directory, {"global_step": int(step[1:]), "m": value})


@pytest.mark.parametrize(
    ("make", "values", "expected"),
    [
        (stop_if_higher_hook, {"s1": 0.5}, None),
        (
            stop_if_higher_hook,
            {"s1": 0.6},
            "early stopping: 'm' was 0.6 at step 1, higher than 0.5",
        ),
        (stop_if_lower_hook, {"s1": 0.5}, None),
        (
            stop_if_lower_hook,
            {"s1": 2.0, "s2": 0.25},
            "early stopping: 'm' was 0.25 at step 2, lower than 0.5",
        ),
        (stop_if_higher_hook, {"s1": math.nan}, None),
    ],
)
def test_thresholds(evaluated, make, values, expected):
    record(evaluated.eval_dir(), **values)
    assert reason(make(evaluated, "m", 0.5), step=2) == expected


def test_a_peak_of_an_older_training_does_not_count(evaluated):
    record(evaluated.eval_dir(), s10=0.9, s20=0.1)
    hook = stop_if_higher_hook(evaluated, "m", 0.5)
    assert reason(hook, step=20, start=20) is None
    assert reason(hook, step=20, start=10) is not None
    assert reason(hook, step=20) is not None


def test_evaluations_of_a_future_that_was_left_do_not_count(evaluated):
    record(evaluated.eval_dir(), s10=0.1, s30=0.9)
    hook = stop_if_higher_hook(evaluated, "m", 0.5)
    assert reason(hook, step=20) is None
    assert reason(hook, step=30) is not None


@pytest.mark.parametrize(
    ("make", "values", "expected"),
    [
        (stop_if_no_increase_hook, {"s10": 1, "s20": 2, "s39": 1}, None),
        (stop_if_no_increase_hook, {"s10": 1, "s20": 2, "s40": 2}, "increase .* 20 to"),
        (stop_if_no_increase_hook, {"s10": 2, "s30": 1, "s31": 3}, None),
        (stop_if_no_decrease_hook, {"s10": 1, "s20": 2, "s30": 3}, "decrease .* 10 to"),
        (stop_if_no_decrease_hook, {"s10": math.nan, "s20": 2, "s39": 3}, None),
        (stop_if_no_decrease_hook, {"s10": math.nan, "s30": math.nan}, "decrease"),
    ],
)
def test_progress(evaluated, make, values, expected):
    record(evaluated.eval_dir(), **values)
    found = reason(make(evaluated, "m", 20), step=100)
    if expected is None:
        assert found is None
    else:
        assert re.search(f"'m' did not {expected}", found)


def test_min_steps_and_eval_dir(evaluated, tmp_path):
    for make, limit in MAKERS:
        other = tmp_path / "elsewhere"
        record(other, s10=0.0, s20=2.0, s40=0.0, s60=2.0, s70=0.0, s80=2.0, s90=2.0)
        assert reason(make(evaluated, "m", limit), step=99) is None
        assert reason(make(evaluated, "m", limit, other), step=99) is not None
        assert reason(make(evaluated, "m", limit, other, min_steps=95), step=99) is None


@pytest.mark.parametrize(("make", "limit"), MAKERS)
def test_a_metric_that_is_not_there(evaluated, make, limit):
    record(evaluated.eval_dir(), s10=1.0)
    with pytest.raises(ValueError, match="is 'auc', but .* have 'global_step', 'm'"):
        reason(make(evaluated, "auc", limit), step=20)
    # Evaluations from before it was added do not matter.
    write_eval_result(evaluated.eval_dir(), {"global_step": 20, "auc": 0.75})
    assert reason(make(evaluated, "auc", 0.75 if limit == 1.0 else 10), 20) is None


def test_wrong_arguments(evaluated):
    for make, limit in MAKERS:
        with pytest.raises(TypeError, match="'estimator' must be a skest.Estimator"):
            make("estimator", "m", limit)
        with pytest.raises(ValueError, match="Give it a model_dir, or pass 'eval_dir'"):
            make(Estimator(model_fn), "m", limit)
        with pytest.raises(ValueError, match="'min_steps' of the hook must .* integer"):
            make(evaluated, "m", limit, min_steps=-1)
        with pytest.raises(ValueError, match="Exactly one of 'run_every_secs'"):
            make(evaluated, "m", limit, run_every_steps=1)
    for make in [stop_if_higher_hook, stop_if_lower_hook]:
        with pytest.raises(TypeError, match="'threshold' must be a number; got '1'"):
            make(evaluated, "m", "1")
        assert make(evaluated, "m", np.float32(1))
    for make in [stop_if_no_increase_hook, stop_if_no_decrease_hook]:
        with pytest.raises(ValueError, match="'max_steps_without_.*' .* hook must be"):
            make(evaluated, "m", 0)
