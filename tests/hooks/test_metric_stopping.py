# SPDX-License-Identifier: Apache-2.0
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skest import Estimator, RunConfig
from skest.checkpoints.results import write_eval_result
from skest.hooks import (
    CheckpointListener,
    Run,
    stop_if_higher_hook,
    stop_if_lower_hook,
    stop_if_no_decrease_hook,
    stop_if_no_increase_hook,
)
from skest.hooks.early_stopping import _no_progress
from tests._models import model_fn, table_fn
from tests.hooks.test_base import SPEC

EVERY_STEP = {"run_every_secs": None, "run_every_steps": 1}
MAKERS = [
    (stop_if_higher_hook, 1.0),
    (stop_if_lower_hook, 1.0),
    (stop_if_no_increase_hook, 10),
    (stop_if_no_decrease_hook, 10),
]


@pytest.fixture
def estimator(tmp_path):
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
def test_thresholds(estimator, make, values, expected):
    record(estimator.eval_dir(), **values)
    assert reason(make(estimator, "m", 0.5), step=2) == expected


def test_a_peak_of_an_older_training_does_not_count(estimator):
    record(estimator.eval_dir(), s10=0.9, s20=0.1)
    hook = stop_if_higher_hook(estimator, "m", 0.5)
    assert reason(hook, step=20, start=20) is None
    assert reason(hook, step=20, start=10) is not None
    assert reason(hook, step=20) is not None


def test_evaluations_of_a_future_that_was_left_do_not_count(estimator):
    record(estimator.eval_dir(), s10=0.1, s30=0.9)
    hook = stop_if_higher_hook(estimator, "m", 0.5)
    assert reason(hook, step=20) is None
    assert reason(hook, step=30) is not None


def test_results_that_are_deleted_or_replaced_are_read_anew(estimator):
    hook = stop_if_higher_hook(estimator, "m", 0.5)
    assert reason(hook, step=10) is None
    record(estimator.eval_dir(), s10=0.9)
    assert reason(hook, step=10) is not None
    assert reason(hook, step=10) is not None
    (estimator.eval_dir() / "10.json").unlink()
    record(estimator.eval_dir(), s10=0.1)
    assert reason(hook, step=10) is None


@pytest.mark.parametrize(
    ("make", "values", "stops"),
    [
        (stop_if_no_increase_hook, {}, False),
        (stop_if_no_increase_hook, {"s10": 1}, False),
        (stop_if_no_increase_hook, {"s10": 1, "s20": 2, "s39": 1}, False),
        (stop_if_no_increase_hook, {"s10": 1, "s20": 2, "s40": 2}, True),
        (stop_if_no_increase_hook, {"s10": 2, "s30": 1, "s31": 3}, False),
        (stop_if_no_decrease_hook, {"s10": 1, "s20": 2, "s30": 3}, True),
        (stop_if_no_decrease_hook, {"s10": math.nan, "s20": 2, "s39": 3}, False),
        (stop_if_no_decrease_hook, {"s10": math.nan, "s30": math.nan}, True),
    ],
)
def test_progress(estimator, make, values, stops):
    record(estimator.eval_dir(), **values)
    assert (reason(make(estimator, "m", 20), step=100) is not None) == stops


def test_the_reason_says_since_when(estimator):
    record(estimator.eval_dir(), s10=3.0, s20=1.0, s50=2.0)
    assert reason(stop_if_no_decrease_hook(estimator, "m", 30), step=50) == (
        "early stopping: 'm' did not decrease from step 20 to step 50"
    )


@pytest.mark.parametrize(("make", "limit"), MAKERS)
def test_min_steps_and_eval_dir(estimator, tmp_path, make, limit):
    other = tmp_path / "elsewhere"
    record(other, s10=0.0, s20=2.0, s40=0.0, s60=2.0, s70=0.0, s80=2.0, s90=2.0)
    assert reason(make(estimator, "m", limit), step=99) is None
    assert reason(make(estimator, "m", limit, other), step=99) is not None
    assert reason(make(estimator, "m", limit, other, min_steps=95), step=99) is None


@given(
    st.dictionaries(st.integers(0, 100), st.floats(), min_size=1),
    st.integers(1, 50),
)
def test_no_increase_is_no_decrease_of_the_negative(values, max_steps):
    values = dict(sorted(values.items()))
    negative = {step: -value for step, value in values.items()}
    up = _no_progress(max_steps, lambda a, b: a > b, "x")(values, 0)
    down = _no_progress(max_steps, lambda a, b: a < b, "x")(negative, 0)
    assert up == down
    # By the definition: the first of the highest values is too old.
    numbers = [v for v in values.values() if not math.isnan(v)]
    best = next((s for s, v in values.items() if v in numbers and v == max(numbers)), 0)
    best = best if numbers else min(values)
    assert (up is not None) == (max(values) - best >= max_steps)


def test_stops_a_training_that_is_evaluated(estimator):
    def evaluate(run):
        write_eval_result(
            estimator.eval_dir(), {"global_step": run.global_step, "m": 1.0}
        )

    class Evaluates(CheckpointListener):
        after_save = staticmethod(evaluate)

    hook = stop_if_no_increase_hook(estimator, "m", 4, **EVERY_STEP)
    config = RunConfig(save_checkpoints_steps=2)
    estimator = Estimator(model_fn, estimator.model_dir, config)
    estimator.train(
        table_fn(num_epochs=None), [hook], steps=100, saving_listeners=[Evaluates()]
    )
    assert estimator.checkpoint.global_step == 4
    assert "did not increase from step 0 to step 4" in estimator.stop_reason


@pytest.mark.parametrize(("make", "limit"), MAKERS)
def test_a_metric_that_is_not_there(estimator, make, limit):
    record(estimator.eval_dir(), s10=1.0)
    with pytest.raises(ValueError, match="is 'auc', but .* have 'global_step', 'm'"):
        reason(make(estimator, "auc", limit), step=20)
    # Evaluations from before it was added do not matter.
    write_eval_result(estimator.eval_dir(), {"global_step": 20, "auc": 0.75})
    assert reason(make(estimator, "auc", 0.75 if limit == 1.0 else 10), 20) is None


@pytest.mark.parametrize(("make", "limit"), MAKERS)
def test_wrong_arguments(estimator, make, limit):
    with pytest.raises(TypeError, match="'estimator' must be a skest.Estimator"):
        make("estimator", "m", limit)
    with pytest.raises(ValueError, match="Give it a model_dir, or pass 'eval_dir'"):
        make(Estimator(model_fn), "m", limit)
    with pytest.raises(ValueError, match="'min_steps' of the hook must be an integer"):
        make(estimator, "m", limit, min_steps=-1)
    with pytest.raises(ValueError, match="Exactly one of 'run_every_secs'"):
        make(estimator, "m", limit, run_every_steps=1)


@pytest.mark.parametrize("make", [stop_if_higher_hook, stop_if_lower_hook])
def test_a_threshold_is_a_number(estimator, make):
    with pytest.raises(TypeError, match="'threshold' must be a number; got '1'"):
        make(estimator, "m", "1")
    assert make(estimator, "m", np.float32(1))


@pytest.mark.parametrize("make", [stop_if_no_increase_hook, stop_if_no_decrease_hook])
def test_a_wait_is_a_positive_number_of_steps(estimator, make):
    with pytest.raises(ValueError, match="'max_steps_without_.*' of the hook must be"):
        make(estimator, "m", 0)
