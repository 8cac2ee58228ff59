# SPDX-License-Identifier: Apache-2.0
import copy
import functools
import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import log_loss, roc_auc_score
from skorch.callbacks import (
    BatchScoring,
    Callback,
    EarlyStopping,
    EpochScoring,
    EpochTimer,
    Freezer,
    GradientNormClipping,
    LRScheduler,
)

import skest
from skest.adapters.skorch import SkorchCallbackHook, skorch_model_fn
from skest.heads import SampledSoftmaxHead
from skest.inputs import ArrayDataset
from tests.adapters._nets import (
    IRIS,
    IRIS_32,
    predictions,
    small_net,
    table_fn,
    variables,
)
from tests.adapters.conftest import make

CANCER = load_breast_cancer(return_X_y=True)


def fit(*callbacks, data=IRIS, model=skest.DNNClassifier, verbose=0, **params):
    """Return a fitted estimator and its hook."""
    hook = SkorchCallbackHook(callbacks, verbose=verbose)
    given = {"max_iter": 6, "batch_size": 32, "n_iter_no_change": np.inf, **params}
    return make(model, hooks=[hook], **given).fit(*data), hook


# The callbacks, unmodified, each with its effect


def test_scores_of_probabilities():
    def own(net, X, y):
        assert net.classes_.tolist() == [0, 1]
        return roc_auc_score(y, net.predict_proba(X)[:, 1])

    X, y = CANCER
    hook = SkorchCallbackHook(
        [
            EpochScoring("roc_auc", lower_is_better=False),
            EpochScoring("neg_log_loss", lower_is_better=False),
            EpochScoring(own),
            EpochScoring(None),
        ]
    )
    model = skest.DNNClassifier((8,), max_iter=3, early_stopping=True, hooks=[hook])
    model.fit(X, y, X_val=X[:200], y_val=y[:200])
    proba = model.predict_proba(X[:200])
    best = hook.history[int(np.argmax(model.validation_scores_))]  # what `fit` returns
    assert best["roc_auc"] == best["own"] == roc_auc_score(y[:200], proba[:, 1])
    assert best["neg_log_loss"] == pytest.approx(-log_loss(y[:200], proba))
    assert best["valid_loss"] == pytest.approx(log_loss(y[:200], proba))
    assert best["score"] == model.score(X[:200], y[:200])


# How the hook behaves


class Events(Callback):
    def __init__(self, stop_at=None):
        self.stop_at, self.calls = stop_at, []
        steps = ("batch_begin", "grad_computed", "batch_end")
        for name in ("train_begin", "epoch_begin", *steps, "epoch_end", "train_end"):
            setattr(self, f"on_{name}", functools.partial(self._note, name))

    def _note(self, name, net, *args, training=None, **kwargs):
        self.calls.append(name + {True: " t", False: " v", None: ""}[training])
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt


STEP = ["batch_begin t", "grad_computed t", "batch_end t"]


def test_events_come_as_in_skorch():
    events = Events()
    fit(events, early_stopping=True, max_iter=2, batch_size=100)
    epoch = ["epoch_begin", *STEP, *STEP, "batch_begin v", "batch_end v", "epoch_end"]
    assert events.calls == ["train_begin", *epoch, *epoch, "train_end"]


@pytest.mark.parametrize("stop_at", [1, 3, 12])
def test_a_callback_can_stop_anywhere(stop_at):
    events = Events(stop_at)
    model, _ = fit(events, early_stopping=True, max_iter=5, batch_size=100)
    assert len(events.calls) == stop_at + 1
    assert events.calls[-1] == "train_end"
    assert model.n_iter_ == (0 if stop_at == 1 else 1 if stop_at < 12 else 2)


def test_every_training_begins_a_history():
    events = Events()
    model, hook = fit(events, max_iter=2)
    first = hook.history
    model.fit(*IRIS)
    assert len(hook.history) == 2
    assert hook.history is not first
    model.partial_fit(*IRIS)
    assert hook.history[:, "epoch"] == [1]
    assert events.calls.count("train_begin") == 3


def test_a_hook_holds_no_network_after_training():
    model, hook = fit(EpochScoring("accuracy"), GradientNormClipping(1.0))
    assert not any(isinstance(v, torch.nn.Module) for v in vars(hook).values())
    for copied in (copy.deepcopy(hook), pickle.loads(pickle.dumps(hook))):
        assert copied.history == hook.history
    loaded = pickle.loads(pickle.dumps(model))
    assert loaded.hooks[0].history == hook.history
    assert len(loaded.fit(*IRIS).hooks[0].history) == 6


def test_gradients_of_row_tables_are_clipped_and_named(table):
    names = []

    class Look(Callback):
        def on_grad_computed(self, net, named_parameters, **kwargs):
            for name, parameter in named_parameters:
                assert not parameter.grad.is_sparse
                assert parameter.grad.shape == parameter.shape
                names.append(name)

    X, y = table
    X = X.assign(code=[f"code {i}" for i in range(len(X))])
    model = make(skest.DNNLinearCombinedClassifier, max_steps=3, batch_size=50)
    model.set_params(hooks=[SkorchCallbackHook([GradientNormClipping(0.1), Look()])])
    model.fit(X, y)
    by_parameter = clone(model).set_params(hooks=(), clip_norm=0.1).fit(X, y)
    unclipped = clone(model).set_params(hooks=()).fit(X, y)
    assert set(names) == set(variables(model))
    for name, value in variables(by_parameter).items():
        torch.testing.assert_close(variables(model)[name], value)
    assert unclipped.loss_ != model.loss_


@pytest.mark.parametrize(
    "model, y, scores",
    [
        (skest.MultiHeadEstimator(), {"a": IRIS[1], "b": IRIS[0][:, 0]}, []),
        (skest.LinearRegressor(optimizer="sdca"), IRIS[1] * 1.0, ["r2"]),
        (skest.BaselineClassifier(), IRIS[1], ["accuracy"]),
        (
            skest.DNNEstimator(SampledSoftmaxHead(3, num_sampled=2)),
            IRIS[1],
            ["accuracy"],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_model_is_validated(model, y, scores):
    hook = SkorchCallbackHook([EpochScoring(score) for score in scores])
    model.set_params(max_iter=2, early_stopping=True, hooks=[hook]).fit(IRIS[0], y)
    for key in ("train_loss", "valid_loss", *scores):
        assert np.isfinite(hook.history[:, key]).all()


# With a model function, and against skorch itself


def callbacks(prefix=""):
    return [
        EpochScoring("accuracy", on_train=True, lower_is_better=False),
        EpochScoring("neg_log_loss", on_train=True, name="log", lower_is_better=False),
        BatchScoring(
            "accuracy", on_train=True, name="of_batches", lower_is_better=False
        ),
        GradientNormClipping(0.5),
        LRScheduler("StepLR", step_size=3, gamma=0.5),
        Freezer(f"{prefix}0.weight", at=5),
        EarlyStopping("train_loss", patience=3, threshold=0.05, load_best=True),
    ]


def test_training_and_history_are_those_of_skorch():
    X, y = IRIS_32
    net = small_net(max_epochs=12, callbacks=callbacks()).fit(X, y)
    hook = SkorchCallbackHook(callbacks("module."), verbose=0)
    estimator = skest.Estimator(skorch_model_fn(small_net()))
    estimator.train(table_fn(num_epochs=12), hooks=[hook])
    for name, value in net.module_.state_dict().items():
        torch.testing.assert_close(variables(estimator)[f"module.{name}"], value)
    keys = ("epoch", "train_loss", "train_loss_best", "event_lr", "accuracy", "log")
    for key in (*keys, "accuracy_best", "of_batches", "train_batch_count"):
        assert hook.history[:, key] == pytest.approx(net.history[:, key], rel=1e-5), key
    batches = [
        history[-1, "batches", :, "train_loss"]
        for history in (hook.history, net.history)
    ]
    assert batches[0] == pytest.approx(batches[1], rel=1e-5)


def test_validation_rows_of_a_model_function():
    X, y = IRIS_32
    validation = ArrayDataset(X[::3], y[::3], batch_size=20)
    hook = SkorchCallbackHook(
        [EpochScoring("accuracy", use_caching=False)], validation=validation
    )
    estimator = skest.Estimator(skorch_model_fn(small_net()))
    estimator.train(table_fn(num_epochs=3), hooks=[hook])
    results = estimator.evaluate(lambda: ArrayDataset(X[::3], y[::3], batch_size=50))
    assert hook.history[-1, "valid_loss"] == pytest.approx(results["loss"], rel=1e-5)
    class_ids = predictions(estimator, "class_ids", X[::3])[:, 0]
    assert hook.history[-1, "accuracy"] == (class_ids == y[::3]).mean()


def test_the_hook_is_for_training():
    estimator = skest.Estimator(skorch_model_fn(small_net())).train(table_fn())
    with pytest.raises(ValueError, match="for training; got a run of mode 'eval'"):
        estimator.evaluate(table_fn(), hooks=[SkorchCallbackHook()])


def test_wrong_arguments_of_the_hook():
    SkorchCallbackHook([EpochTimer, ("named", EpochTimer())])
    with pytest.raises(TypeError, match="'callbacks' .* callbacks of skorch.*'print'"):
        SkorchCallbackHook(["print"])
    with pytest.raises(TypeError, match="'validation' .* a .*ArrayDataset; got tuple"):
        SkorchCallbackHook(validation=IRIS)
