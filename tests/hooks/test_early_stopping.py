# SPDX-License-Identifier: Apache-2.0
import pytest

from skest import Estimator, RunConfig
from skest.hooks import EarlyStoppingHook, make_early_stopping_hook
from tests._models import assert_same_checkpoint, model_fn, table_fn

ENDLESS = table_fn(num_epochs=None)


@pytest.fixture
def estimator(tmp_path):
    config = RunConfig(random_seed=0, save_checkpoints_steps=2)
    return Estimator(model_fn, tmp_path, config)


@pytest.mark.parametrize(
    ("run_every_steps", "asked"), [(1, range(8)), (3, [0, 1, 4, 7]), (100, [0, 1])]
)
def test_how_often_the_rule_is_asked(estimator, run_every_steps, asked):
    steps = []
    hook = EarlyStoppingHook(
        lambda run: steps.append(run.global_step),
        run_every_secs=None,
        run_every_steps=run_every_steps,
    )
    estimator.train(ENDLESS, [hook], steps=7)
    assert steps == list(asked)


def test_stops_behind_the_checkpoint_of_the_step(estimator):
    there = []

    def reason(run):
        there.append(estimator.checkpoint and estimator.checkpoint.global_step)
        return "enough" if run.global_step == 4 else None

    hook = EarlyStoppingHook(reason, run_every_secs=None, run_every_steps=1)
    estimator.train(ENDLESS, [hook], steps=10)
    assert estimator.checkpoint.global_step == there[-1] == 4
    assert estimator.stop_reason == "enough"


def test_a_function_of_the_users_stops_training(estimator):
    answers = iter([False, False, False, True])

    def out_of_time():
        return next(answers)

    hook = make_early_stopping_hook(
        estimator, out_of_time, run_every_secs=None, run_every_steps=1
    )
    estimator.train(ENDLESS, [hook])
    assert estimator.checkpoint.global_step == 3
    assert estimator.stop_reason == "early stopping: out_of_time() was true"


def test_a_hook_is_added_to_and_removed_from_a_training(tmp_path, estimator):
    estimator.train(ENDLESS, steps=3)
    hook = make_early_stopping_hook(estimator, lambda: True)
    before = estimator.checkpoint
    estimator.train(ENDLESS, [hook], steps=3)  # asked before the first step
    assert_same_checkpoint(estimator.checkpoint, before)
    estimator.train(ENDLESS, steps=3)
    assert estimator.checkpoint.global_step == 6
    assert estimator.stop_reason == "reached step 6"


@pytest.mark.parametrize(
    "arguments", [{"run_every_steps": 1}, {"run_every_secs": None}]
)
def test_exactly_one_interval(estimator, arguments):
    with pytest.raises(ValueError, match="Pass run_every_secs=None to count steps"):
        make_early_stopping_hook(estimator, lambda: False, **arguments)


def test_an_interval_must_be_positive(estimator):
    with pytest.raises(ValueError, match="'every_secs' must be positive; got 0"):
        make_early_stopping_hook(estimator, lambda: False, run_every_secs=0)


def test_wrong_types(estimator):
    with pytest.raises(TypeError, match="'estimator' must be a skest.Estimator"):
        make_early_stopping_hook(None, lambda: False)
    with pytest.raises(TypeError, match="'should_stop_fn' must be a function"):
        make_early_stopping_hook(estimator, True)
