# SPDX-License-Identifier: Apache-2.0
import dataclasses
import json
import logging
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest

from skest import (
    DNNClassifier,
    Estimator,
    EvalSpec,
    KeepBest,
    RunConfig,
    TrainSpec,
    train_and_evaluate,
)
from skest.checkpoints.format import read_checkpoint
from skest.checkpoints.store import read_eval_results
from skest.core.files import list_versions
from skest.export import BestExporter, Exporter, FinalExporter, LatestExporter
from skest.hooks import Hook, StopAtStepHook, stop_if_higher_hook
from tests._models import At, Mean, assert_same_checkpoint, model_fn, table_fn

ENDLESS = table_fn(num_epochs=None)
EVAL = table_fn(batch_size=5)

CHECKPOINT = {"format": "checkpoint"}  # the quickest to write


def make(model_dir=None, every=10, **config):
    config = RunConfig(random_seed=0, save_checkpoints_steps=every, **config)
    return Estimator(model_fn, model_dir, config)


class Asked(Exporter):
    """Notes what it is asked, and exports if `answer` says so."""

    def __init__(self, answer=lambda step, final: None):
        super().__init__("asked")
        self.calls, self.answer = [], answer

    def export(self, eval_result, is_the_final_export, **others):
        step = eval_result["global_step"]
        self.calls.append((step, is_the_final_export))
        return self.answer(step, is_the_final_export)


def evaluated(estimator, name=None):
    return list(read_eval_results(estimator.eval_dir(name)))


# When it evaluates


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"throttle_secs": 0}, [10, 20, 30, 35]),
        ({}, [10, 35]),
        ({"eval_every_steps": 15}, [15, 30, 35]),
    ],
)
def test_when_it_evaluates(tmp_path, options, expected):
    estimator = make(tmp_path, keep_checkpoint_max=None)
    metrics, exports = train_and_evaluate(
        estimator, TrainSpec(ENDLESS, 35), EvalSpec(EVAL, **options)
    )
    assert evaluated(estimator) == expected
    assert metrics == estimator.evaluate(EVAL)
    assert exports == []
    steps = {int(path.name[5:]) for path in tmp_path.glob("ckpt-*")}
    assert steps == {0, 10, 20, 30, 35, *expected}


def test_training_is_that_without_evaluations(tmp_path):
    estimator = make(tmp_path)
    spec = EvalSpec(EVAL, eval_every_steps=3)
    train_and_evaluate(estimator, TrainSpec(ENDLESS, 10), spec)
    assert_same_checkpoint(
        estimator.checkpoint, make().train(ENDLESS, max_steps=10).checkpoint
    )


def test_without_a_directory():
    estimator = make()
    metrics, exports = train_and_evaluate(
        estimator, TrainSpec(ENDLESS, 6), EvalSpec(EVAL, eval_every_steps=2)
    )
    assert metrics == estimator.evaluate(EVAL)
    assert (metrics["global_step"], exports) == (6, [])
    assert train_and_evaluate(estimator, TrainSpec(ENDLESS, 6), EvalSpec(EVAL)) == (
        metrics,
        [],
    )


# What it returns and exports


def test_several_evaluations(tmp_path):
    estimator = make(tmp_path)
    specs = [
        EvalSpec(
            EVAL, throttle_secs=0, exporters=LatestExporter("latest", **CHECKPOINT)
        ),
        EvalSpec(table_fn(n_rows=8), name="small", eval_every_steps=8),
    ]
    metrics, exports = train_and_evaluate(estimator, TrainSpec(ENDLESS, 20), specs)
    assert (evaluated(estimator), evaluated(estimator, "small")) == (
        [8, 10, 16, 20],  # also what was saved for the other one
        [8, 16, 20],
    )
    assert metrics[0] == estimator.evaluate(EVAL)
    assert metrics[1] == estimator.evaluate(table_fn(n_rows=8)) != metrics[0]
    assert exports == [[list_versions(tmp_path / "export" / "latest")[-1]], []]
    again = train_and_evaluate(make(tmp_path), TrainSpec(ENDLESS, 20), specs)
    assert again == (metrics, exports)


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        ({"max_steps": 15}, [(10, False), (15, True)]),
        # The end of training is found out behind the evaluation of its last step.
        ({"input_fn": table_fn(num_epochs=2)}, [(10, False), (10, True)]),
        ({"hooks": StopAtStepHook(12), "max_steps": 30}, [(10, False), (12, True)]),
        ({"saving_listeners": None, "hooks": StopAtStepHook(10)}, [(10, True)]),
    ],
)
def test_the_final_export(tmp_path, arguments, asked):
    exporter = Asked()
    train_and_evaluate(
        make(tmp_path),
        TrainSpec(**{"input_fn": ENDLESS, **arguments}),
        EvalSpec(EVAL, throttle_secs=0, exporters=exporter),
    )
    assert exporter.calls == asked


# Again


def exporters():
    return [
        BestExporter("best", **CHECKPOINT),
        LatestExporter("latest", **CHECKPOINT),
        FinalExporter("final", **CHECKPOINT),
    ]


def run(model_dir, max_steps=20, hooks=(), eval_hooks=(), name=None):
    options = {"name": name, "hooks": eval_hooks, "exporters": exporters()}
    return train_and_evaluate(
        make(model_dir),
        TrainSpec(ENDLESS, max_steps, hooks),
        EvalSpec(EVAL, throttle_secs=0, **options),
    )


def test_a_finished_training_returns_its_results_again(tmp_path):
    first = run(tmp_path / "a")
    assert all(path.is_dir() for path in first[1])
    versions = sorted((tmp_path / "a").rglob("manifest.json"))
    assert run(tmp_path / "a") == run(tmp_path / "a", max_steps=5) == first
    assert sorted((tmp_path / "a").rglob("manifest.json")) == versions
    # The directory may have been moved.
    (tmp_path / "a").rename(tmp_path / "b")
    metrics, exports = run(tmp_path / "b")
    assert metrics == first[0]
    assert all(path.is_dir() for path in exports)


class ByFeature(Mean):
    """A metric that computes an array."""

    def compute(self):
        return np.full((2, 3), super().compute(), np.float32)


def test_arrays_among_the_metrics_are_returned_and_not_recorded(tmp_path):
    def with_array(features, labels, mode, params):
        spec = model_fn(features, labels, mode, params)
        return replace(spec, eval_metrics={"mean": Mean(), "by": ByFeature()})

    def again(metric):
        return train_and_evaluate(
            Estimator(with_array, tmp_path),
            TrainSpec(ENDLESS, 5),
            EvalSpec(EVAL, exporters=BestExporter(metric=metric, **CHECKPOINT)),
        )

    for metrics, exports in (again("mean"), again("mean")):
        np.testing.assert_allclose(metrics["by"], np.full((2, 3), metrics["mean"]))
        assert exports[0].is_dir()
    estimator = Estimator(with_array, tmp_path)
    recorded = read_eval_results(estimator.eval_dir())[5]
    assert list(recorded) == ["global_step", "loss", "mean"]
    by_array = stop_if_higher_hook(estimator, "by", 1.0)
    with pytest.raises(ValueError, match="'by', but the evaluations .* Arrays .* rec"):
        estimator.train(ENDLESS, [by_array], steps=1)
    config = RunConfig(keep_best=KeepBest(1, "by"))
    with pytest.raises(
        ValueError, match="'by' of evaluations, but it is an array, .* 'global"
    ):
        Estimator(with_array, tmp_path, config).evaluate(EVAL)
    shutil.rmtree(tmp_path / "export")
    with pytest.raises(ValueError, match="compares the 'by' .* is an array, .* 'mean'"):
        again("by")


def without_metrics(evaluations):
    return {key: {**value, "metrics": None} for key, value in evaluations.items()}


@pytest.mark.parametrize(
    "edit",
    [
        lambda _: None,
        lambda _: [],
        lambda _: {"": []},
        lambda _: {"": {"metrics": {}, "exports": {"asked": 7}}},
        without_metrics,
    ],
)
def test_a_record_that_somebody_has_edited_is_made_anew(tmp_path, edit, caplog):
    metrics, _ = run(tmp_path)
    record = tmp_path / "train_and_evaluate.json"
    content = json.loads(record.read_text())
    edited = edit(content["evaluations"])
    record.write_text(json.dumps({**content, "evaluations": edited}))
    assert run(tmp_path)[0] == metrics
    assert evaluated(make(tmp_path)) == [10, 20]
    (said,) = {r.getMessage() for r in caplog.records if r.levelname == "WARNING"}
    assert said.startswith(f"{record} is not used (")


def test_exports_that_are_gone_are_made_again(tmp_path):
    metrics, _ = run(tmp_path)
    shutil.rmtree(tmp_path / "export")
    again, exports = run(tmp_path)
    assert again == metrics
    assert all(path.is_dir() for path in exports)
    shutil.rmtree(exports[2])
    assert run(tmp_path)[1][2].is_dir()


def test_results_of_another_evaluation_are_not_returned(tmp_path, caplog):
    def again(**options):
        caplog.clear()
        with caplog.at_level(logging.INFO, "skest"):
            spec = EvalSpec(EVAL, **{"steps": 2, **options})
            result, _ = train_and_evaluate(make(tmp_path), TrainSpec(ENDLESS, 5), spec)
        return result, "results of an earlier call are returned" in caplog.text

    two, _ = again()
    assert again() == (two, True)
    one = make(tmp_path).evaluate(EVAL, 1)
    assert one != two
    assert again(steps=1) == (one, False)
    assert again(steps=1) == (one, True)
    assert again(steps=1, name="other") == (one, False)
    assert again(steps=1, throttle_secs=0, name="other") == (one, True)


def test_an_input_that_ended_is_not_gone_through_again(tmp_path):
    def again(max_steps=None, num_epochs=2, **options):
        return train_and_evaluate(
            make(tmp_path),
            TrainSpec(table_fn(num_epochs=num_epochs), max_steps),
            EvalSpec(EVAL, exporters=FinalExporter("final", **CHECKPOINT), **options),
        )

    metrics, exports = again()
    assert metrics["global_step"] == 10
    assert again() == (metrics, exports)
    shutil.rmtree(exports[0])
    metrics, exports = again()  # what is missing is made without training
    assert metrics["global_step"] == 10
    assert exports[0].is_dir()
    other, _ = again(steps=1)
    assert other["global_step"] == 10
    assert again(max_steps=1000)[0]["global_step"] == 20  # more is asked for
    assert again(max_steps=1000)[0]["global_step"] == 20
    make(tmp_path).train(table_fn())
    assert again(max_steps=1000)[0]["global_step"] == 35


# Ctrl-C


def ctrl_c(run):
    signal.raise_signal(signal.SIGINT)


def test_ctrl_c_returns_what_there_is(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    metrics, exports = run(tmp_path, hooks=[At(13, ctrl_c)])
    estimator = make(tmp_path)
    assert signal.getsignal(signal.SIGINT) is before
    assert estimator.checkpoint.global_step == 13
    assert estimator.stop_reason == "interrupted by Ctrl-C"
    assert metrics["global_step"] == 10
    assert [path is None for path in exports] == [False, False, True]
    metrics, exports = run(tmp_path)  # goes on
    assert metrics["global_step"] == 20
    assert {read_checkpoint(path).global_step for path in exports[1:]} == {20}


def test_ctrl_c_in_the_last_step_leaves_the_end_to_the_next_call(tmp_path):
    in_last_step = Hook()
    in_last_step.before_step = lambda run: run.global_step == 19 and ctrl_c(run)
    assert run(tmp_path, hooks=[in_last_step])[0]["global_step"] == 10
    assert make(tmp_path).checkpoint.global_step == 20
    metrics, exports = run(tmp_path)
    assert metrics["global_step"] == 20
    assert exports[2] is not None


class InEvaluation(Hook):
    """Presses Ctrl-C in the first batches of the evaluation of a step."""

    def __init__(self, step, n_times=1):
        self.step, self.left = step, n_times

    def after_step(self, run, loss):
        if run.global_step == self.step and self.left:
            self.left -= 1
            ctrl_c(run)


def evaluated_with(hooks, model_dir):
    return run(model_dir, 30, eval_hooks=hooks, name="own")


def test_ctrl_c_in_an_evaluation_ends_training_behind_it(tmp_path):
    metrics, exports = evaluated_with(InEvaluation(20), tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert metrics["global_step"] == 20
    assert [path is None for path in exports] == [False, False, True]
    assert make(tmp_path).stop_reason == "interrupted by Ctrl-C"
    assert evaluated_with((), tmp_path)[0]["global_step"] == 30
    assert evaluated(make(tmp_path), "own") == [10, 20, 30]
    whole = make().train(ENDLESS, max_steps=30)
    assert_same_checkpoint(make(tmp_path).checkpoint, whole.checkpoint)


@pytest.mark.parametrize(("step", "n_times"), [(20, 2), (30, 1)])
def test_ctrl_c_breaks_off_an_evaluation(tmp_path, step, n_times):
    """The second one in training, and the first one behind its end."""
    with pytest.raises(KeyboardInterrupt):
        evaluated_with(InEvaluation(step, n_times), tmp_path)
    assert make(tmp_path).checkpoint.global_step == step
    metrics, exports = evaluated_with((), tmp_path)
    assert metrics["global_step"] == 30
    assert {read_checkpoint(path).global_step for path in exports[1:]} == {30}


# Errors


def test_wrong_arguments():
    for arguments, error, match in [
        ((None, TrainSpec(EVAL), EvalSpec(EVAL)), TypeError, "'estimator' must be a"),
        (
            (DNNClassifier(), TrainSpec(EVAL), EvalSpec(EVAL)),
            TypeError,
            r"got DNNClassifier\. Canned models are model functions here, such as",
        ),
        ((make(), EVAL, EvalSpec(EVAL)), TypeError, "'train_spec' must be a skest.Tra"),
        ((make(), TrainSpec(EVAL), EVAL), TypeError, "'eval_spec' must be a skest.Eva"),
        ((make(), TrainSpec(EVAL), []), ValueError, "at least one EvalSpec; got none"),
        (
            (make(), TrainSpec(EVAL), [EvalSpec(EVAL), EvalSpec(EVAL)]),
            ValueError,
            "more than one EvalSpec with the name None",
        ),
        (
            (make(), TrainSpec(EVAL), EvalSpec(EVAL, exporters=exporters() * 2)),
            ValueError,
            "more than one exporter with the name 'best'",
        ),
        (
            (make(), TrainSpec(EVAL), EvalSpec(EVAL, exporters=exporters())),
            ValueError,
            "Exporters write to 'model_dir', and 'estimator' has none",
        ),
        (
            (make(), TrainSpec(lambda: []), EvalSpec(EVAL)),
            ValueError,
            "the input of 'train_spec' has no batch",
        ),
    ]:
        with pytest.raises(error, match=match):
            train_and_evaluate(*arguments)


# The specifications

INPUT_FN = table_fn()


def test_are_frozen_and_need_a_function():
    for spec in [TrainSpec, EvalSpec]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            spec(INPUT_FN).input_fn = None
        # Not what it holds: data may be long.
        said = f"'input_fn' of {spec.__name__} must be a func.*; got list. Wrap data"
        with pytest.raises(TypeError, match=said):
            spec([1, 2])


def test_numbers_and_names():
    for spec, field, values, error in [
        (TrainSpec, "max_steps", [0, -1], ValueError),
        (TrainSpec, "max_steps", [1.5, True], TypeError),
        (EvalSpec, "steps", [0, -1], ValueError),
        (EvalSpec, "steps", ["1"], TypeError),
        (EvalSpec, "eval_every_steps", [0], ValueError),
        (EvalSpec, "start_delay_secs", [-1, float("nan")], ValueError),
        (EvalSpec, "throttle_secs", [-1], ValueError),
        (EvalSpec, "throttle_secs", [None], TypeError),
        (EvalSpec, "name", [""], ValueError),
        (EvalSpec, "name", [3], TypeError),
    ]:
        for value in values:
            with pytest.raises(error, match=f"'{field}' of {spec.__name__} must"):
                spec(INPUT_FN, **{field: value})


def test_early_stopping_that_waits_for_another_evaluation_is_told(tmp_path):
    estimator = Estimator(model_fn, tmp_path)
    hook = stop_if_higher_hook(estimator, "loss", 0.0)
    train = TrainSpec(table_fn(), max_steps=1, hooks=hook)
    with pytest.warns(UserWarning, match="where no EvalSpec writes, but in .*eval_val"):
        train_and_evaluate(estimator, train, EvalSpec(table_fn(), name="val"))
