# SPDX-License-Identifier: Apache-2.0
"""What train, evaluate and predict do; see also test_estimator_state.py."""

import functools
import logging

import numpy as np
import pytest
import torch
from torch import nn

from skest import Estimator, EstimatorSpec, ModeKeys, RunConfig
from skest.canned import dnn_model_fn
from skest.exceptions import CheckpointMismatchError, NotFittedError
from skest.hooks import Hook
from skest.inputs import Pipeline
from tests._models import At, Recorder, batches, model_fn, squared_loss, table, table_fn

STEP = ["before_step", "after_step"]


class CountedModelFn:
    """The model function, with a record of the calls."""

    def __init__(self):
        self.modes = []

    def __call__(self, features, labels, mode, params):
        self.modes.append(mode)
        return model_fn(features, labels, mode, params)


@pytest.fixture(scope="module")
def trained():
    return Estimator(model_fn, config=RunConfig(random_seed=0)).train(table_fn())


def step_of(estimator):
    return estimator.checkpoint.global_step


# Construction


def test_wrong_arguments_are_refused():
    for arguments, error, message in [
        (
            {"model_dir": "a", "config": RunConfig(model_dir="b")},
            ValueError,
            "'model_dir' is given twice, .*'a' here and 'b' in 'config'",
        ),
        (
            {"model_dir": "gs://b/m"},
            ValueError,
            "'model_dir' must be a path on this ma",
        ),
        (
            {"model_fn": functools.partial(dnn_model_fn, feature_columns=[])},
            TypeError,
            "dnn_model_fn has no argument 'feature_columns'; it has head, columns, hid",
        ),
        ({"config": {"random_seed": 1}}, TypeError, "must be a RunConfig; got dict"),
        ({"params": [1]}, TypeError, "'params' must be a dict; got list"),
        ({"model_fn": 3}, TypeError, "'model_fn' must be a function; got int"),
        ({"model_fn": torch.nn.Linear(2, 1)}, TypeError, "got the module Linear. Make"),
        ({"model_fn": torch.nn.Linear}, TypeError, "got the module Linear. Make"),
        ({"model_fn": lambda mode: 0}, ValueError, "must take the argument 'features'"),
        ({"model_fn": lambda features: 0}, ValueError, "take the argument 'mode'"),
        (
            {"model_fn": lambda features, mode, foo, bar: 0},
            ValueError,
            "has the argument.s. 'foo', 'bar', but only features, .*functools.partial",
        ),
        (
            {"model_fn": lambda features, mode: 0, "params": {"a": 1}},
            ValueError,
            "'params' are given, but model_fn does not take",
        ),
    ]:
        with pytest.raises(error, match=message):
            Estimator(**{"model_fn": model_fn, **arguments})


def test_params_are_copied_for_everyone():
    seen = []

    def greedy_model_fn(features, labels, mode, params):
        seen.append(params["list"])
        params["list"].append("changed by model_fn")
        return model_fn(features, labels, mode, {})

    def input_fn(params):
        params["list"].append("changed by input_fn")
        return table_fn()()

    params = {"list": [1]}
    estimator = Estimator(greedy_model_fn, params=params)
    params["list"].append("changed by the caller")
    estimator.params["list"].append("changed by the caller")
    estimator.train(input_fn, steps=1).evaluate(input_fn)
    assert estimator.params == {"list": [1]}
    assert [received[0] for received in seen] == [1, 1]
    assert seen[0] is not seen[1]


# What model_fn and input_fn get and return


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        (3, TypeError, "must return an EstimatorSpec; got int"),
        (
            EstimatorSpec(ModeKeys.EVAL, network=nn.Linear(3, 1), loss=squared_loss),
            ValueError,
            "called with mode 'train', but returned an EstimatorSpec of mode 'eval'",
        ),
    ],
)
def test_wrong_returns_of_model_fn_are_refused(returned, error, message):
    estimator = Estimator(lambda features, labels, mode: returned)
    with pytest.raises(error, match=message):
        estimator.train(table_fn())
    assert estimator.checkpoint is None


def test_labels_need_a_place():
    def unlabelled(features, mode):
        network = nn.Linear(3, 1)
        return EstimatorSpec(
            mode,
            network=network,
            loss=lambda labels, logits, features: logits.mean(),
            predictions=lambda z: {"z": z},
            optimizer=torch.optim.SGD(network.parameters(), lr=0.1),
        )

    estimator = Estimator(unlabelled)
    with pytest.raises(ValueError, match="returns labels, but model_fn does not take"):
        estimator.train(table_fn())
    estimator.train(table_fn(labels=False))
    with pytest.raises(ValueError, match="returns labels, but model_fn does not take"):
        estimator.evaluate(table_fn())
    # Prediction ignores labels, whoever takes them.
    assert len(list(estimator.predict(table_fn()))) == 20


def test_wrong_input_functions_are_refused(trained):
    for input_fn, error, message in [
        (3, TypeError, "'input_fn' must be a function"),
        (lambda foo: None, TypeError, "input_fn requires 'foo'"),
        (table, TypeError, "must return an ArrayDataset or .*got tuple"),
        (lambda: table()[0], TypeError, "must return an ArrayDataset or .*got ndarray"),
        (lambda: [(1, 2, 3)], ValueError, "pair .features, labels.; got a tuple of 3"),
    ]:
        for call in ["train", "evaluate", "predict"]:
            with pytest.raises(error, match=message):
                list(getattr(trained, call)(input_fn) or ())


# train


def test_wrong_arguments_of_train_are_refused():
    for arguments, error, message in [
        ({"steps": 1, "max_steps": 2}, ValueError, "Only .* 'steps' and 'max_steps'"),
        ({"steps": 0}, ValueError, "'steps' of train .* at least 1; got 0"),
        ({"max_steps": 0}, ValueError, "'max_steps' of .* at least 1; got 0"),
        ({"steps": 2.0}, TypeError, "'steps' of train must be an integer .*got 2.0"),
        ({"hooks": [1]}, TypeError, "'hooks' .* instances of skest.hooks.Hook; got 1"),
        (
            {"saving_listeners": [Hook()]},
            TypeError,
            "'saving_listeners' must be instances of skest.hooks.CheckpointListener",
        ),
    ]:
        estimator = Estimator(model_fn)
        with pytest.raises(error, match=message):
            estimator.train(table_fn(), **arguments)
        assert estimator.checkpoint is None


def test_an_empty_input_trains_nothing(caplog):
    with caplog.at_level(logging.WARNING, "skest"):
        estimator = Estimator(model_fn).train(lambda: iter(()))
    assert estimator.checkpoint is None
    assert "Training made no steps: the input has no batch" in caplog.text


# evaluate


def test_evaluate(trained):
    results = trained.evaluate(table_fn())
    x, y = table()
    weight = trained.get_variable_value("weight")
    bias = trained.get_variable_value("bias")
    z = x @ weight[0] + bias
    losses = ((z - y) ** 2).reshape(5, 4).mean(axis=1)
    assert list(results) == ["global_step", "loss", "mean"]
    assert results["global_step"] == 5
    assert results["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert results["mean"] == pytest.approx(z.mean(), rel=1e-5)
    assert trained.evaluate(table_fn(), steps=2)["loss"] == pytest.approx(
        losses[:2].mean(), rel=1e-5
    )
    assert trained.evaluate(table_fn(), steps=99, name="test") == results


def test_evaluate_checks(trained):
    with pytest.raises(ValueError, match="'steps' of evaluate .* at least 1; got 0"):
        trained.evaluate(table_fn(), steps=0)
    with pytest.raises(TypeError, match="'hooks' must be instances"):
        trained.evaluate(table_fn(), hooks=[1])
    # tf.estimator returns zeros for it.
    with pytest.raises(ValueError, match="input of evaluate has no batch"):
        trained.evaluate(lambda: iter(()))


# predict


def test_predict_keys(trained):
    for keys, names in [(None, ["y", "twice"]), ("twice", ["twice"]), (["y"], ["y"])]:
        assert list(next(trained.predict(table_fn(), predict_keys=keys))) == names


def test_unknown_predict_keys_are_refused(trained):
    with pytest.raises(ValueError, match=r"'predict_keys' .* 'z', but .*'y', 'twice'"):
        next(trained.predict(table_fn(), predict_keys=["z"]))


def test_predict_is_lazy_and_ends_with_the_input(trained):
    taken = []

    def input_fn():
        for batch in batches():
            taken.append(1)
            yield batch[0]

    predictions = trained.predict(input_fn)
    assert taken == []
    for _ in range(5):
        next(predictions)
    assert len(taken) == 2
    assert len(list(predictions)) == 15
    assert list(trained.predict(lambda: iter(()))) == []


def test_hooks_of_predict(trained):
    hook = Recorder()
    list(trained.predict(table_fn(), hooks=[hook]))
    assert hook.calls == ["begin", *5 * STEP, "end"]
    assert hook.losses == 5 * [None]
    stop = At(5, lambda run: run.request_stop("enough"))
    assert len(list(trained.predict(table_fn(), hooks=[stop]))) == 4


# Without a checkpoint


@pytest.mark.parametrize("with_dir", [False, True])
def test_an_untrained_estimator_says_so(tmp_path, with_dir):
    counted = CountedModelFn()
    estimator = Estimator(counted, tmp_path / "m" if with_dir else None)
    where = f" in '{tmp_path}" if with_dir else r"\."
    for call in (
        lambda: estimator.evaluate(table_fn()),
        lambda: estimator.predict(table_fn()),  # at once, not at the first next
        lambda: estimator.get_variable_names(),
        lambda: estimator.get_variable_value("weight"),
    ):
        with pytest.raises(NotFittedError, match=f"has no checkpoint{where}.*Call tr"):
            call()
    assert counted.modes == []
    assert estimator.checkpoint is None
    assert estimator.latest_checkpoint() is None


# Variables


def test_variables(tmp_path):
    estimator = Estimator(model_fn, tmp_path, params={"optimizer": "adagrad"})
    estimator.train(table_fn())
    assert estimator.get_variable_names() == [
        "bias",
        "bias/step",
        "bias/sum",
        "global_step",
        "weight",
        "weight/step",
        "weight/sum",
    ]
    assert estimator.get_variable_value("global_step") == 5
    value = estimator.get_variable_value("weight")
    value += 1
    assert not np.array_equal(value, estimator.get_variable_value("weight"))
    with pytest.raises(ValueError, match="no variable 'w'; there are bias, bias/step"):
        estimator.get_variable_value("w")


@pytest.mark.parametrize("call", ["train", "evaluate", "predict"])
def test_a_checkpoint_of_another_network_is_refused(tmp_path, call):
    Estimator(model_fn, tmp_path).train(table_fn())
    estimator = Estimator(model_fn, tmp_path, params={"network": "batch_norm"})
    with pytest.raises(CheckpointMismatchError, match="These .* differ:\n  batch_n"):
        list(getattr(estimator, call)(table_fn()))
    assert step_of(Estimator(model_fn, tmp_path)) == 5


def test_another_optimizer_is_refused():
    estimator = Estimator(model_fn, params={"optimizer": "adagrad"}).train(table_fn())
    other = Estimator(model_fn, params={"optimizer": "adam"})
    other.checkpoint = estimator.checkpoint
    with pytest.raises(CheckpointMismatchError, match=r"expected Adam.*is of Adagrad"):
        other.train(table_fn())
    assert other.evaluate(table_fn()) == estimator.evaluate(table_fn())


def test_an_evaluation_of_an_endless_input_needs_steps(trained):
    stop = At(5, lambda run: run.request_stop("seen enough"))
    for endless in [
        lambda: table_fn(num_epochs=None)(),
        lambda: Pipeline(batches()).repeat(),
        lambda: Pipeline(table_fn(num_epochs=None)()).prefetch(1),
    ]:
        with pytest.raises(ValueError, match="has no end, and 'steps' is None"):
            trained.evaluate(endless)
        assert trained.evaluate(endless, steps=2)["global_step"] > 0
        assert trained.evaluate(endless, hooks=[stop])["global_step"] > 0


@pytest.mark.parametrize("kind", [float, np.float64, torch.tensor])
def test_rows_that_are_not_batched_are_refused(kind):
    rows = Pipeline([(kind(float(i)), float(i)) for i in range(9)])
    with pytest.raises(ValueError, match=r"got the single value \d.*needs .batch"):
        Estimator(model_fn).train(lambda: rows)
