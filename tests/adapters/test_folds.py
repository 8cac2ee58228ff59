# SPDX-License-Identifier: Apache-2.0
"""Few rows: the networks of the folds predict together with the one of all rows."""

import os
import pickle
import signal

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import log_loss, mean_poisson_deviance

from skest import (
    DNNClassifier,
    DNNEstimator,
    DNNLinearCombinedClassifier,
    DNNRegressor,
    MultiHeadEstimator,
    RunConfig,
)
from skest.export import load
from skest.heads import RegressionHead
from skest.hooks import ProgressBarHook

FEW = {"max_iter": 3, "n_members": 2, "random_state": 0}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"age": rng.uniform(0, 80, 100), "town": rng.choice(list("abcdef"), 100)}
    )
    X.loc[::9, "age"] = np.nan
    return X, np.where(rng.logistic(size=100) < (X["town"] < "c") * 4 - 2, "yes", "no")


@pytest.fixture(scope="module")
def classifier(table):
    return DNNClassifier((8,), **FEW).fit(*table)


def alone(model):
    """The estimator with the network of all rows only."""
    single = pickle.loads(pickle.dumps(model))
    single.fold_estimators_ = ()
    return single


def members_of(model):
    return [alone(model), *model.fold_estimators_]


def test_probabilities_are_their_mean(classifier, table):
    X, _ = table
    assert len(classifier.fold_estimators_) == 5
    each = np.array([m.predict_proba(X) for m in members_of(classifier)])
    assert np.ptp(each, axis=0).max() > 1e-3  # they differ
    found = classifier.predict_proba(X)
    np.testing.assert_allclose(found, each.mean(axis=0), rtol=1e-5)
    answers = classifier.classes_[found.argmax(axis=1)]
    np.testing.assert_array_equal(classifier.predict(X), answers)
    np.testing.assert_allclose(
        classifier.predict_log_proba(X), np.log(found), rtol=1e-4, atol=1e-6
    )
    decisions = classifier.decision_function(X)
    np.testing.assert_array_equal(decisions > 0, answers == "yes")


def test_is_evaluated_as_it_predicts(classifier, table):
    X, y = table
    weight = np.linspace(0.2, 3, len(y))
    for weights in (None, weight):
        metrics = classifier.evaluate(X, y, weights)
        proba = classifier.predict_proba(X)
        expected = log_loss(y, proba.astype(float), sample_weight=weights)
        assert metrics["average_loss"] == pytest.approx(expected, rel=1e-4)
        score = classifier.score(X, y, weights)
        assert metrics["accuracy"] == pytest.approx(score, rel=1e-5)


def test_is_exported_as_one_graph(classifier, table, tmp_path):
    X, _ = table
    served = load(classifier.export(tmp_path)).run(X, "predict")
    np.testing.assert_allclose(
        served["probabilities"], classifier.predict_proba(X), rtol=1e-4
    )


def test_is_saved_whole(classifier, table):
    X, _ = table
    again = pickle.loads(pickle.dumps(classifier))
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))
    assert "those of 5 folds" in again.summary()


@pytest.mark.parametrize("how", ["partial_fit", "warm_start"])
def test_training_goes_on_with_the_network_of_all_rows(classifier, table, how):
    model, single = pickle.loads(pickle.dumps(classifier)), alone(classifier)
    for each in (model, single):
        if how == "partial_fit":
            each.partial_fit(*table)
        else:
            each.set_params(warm_start=True).fit(*table)
    assert not model.fold_estimators_
    np.testing.assert_array_equal(
        model.predict_proba(table[0]), single.predict_proba(table[0])
    )


def test_is_not_done_where_one_part_is_held_out_or_none(table):
    X, y = table
    for early_stopping in (True, False):
        model = DNNClassifier((4,), early_stopping=early_stopping, **FEW).fit(X, y)
        assert not model.fold_estimators_
    numbers = np.random.default_rng(0).normal(size=(1000, 1))
    for n_rows, n_folds in ((59, 0), (60, 5), (999, 5), (1000, 0)):
        model = DNNRegressor((4,), **FEW).fit(numbers[:n_rows], numbers[:n_rows, 0])
        assert len(model.fold_estimators_) == n_folds


def test_noise_in_few_rows_is_not_learned():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(570, 6)), rng.integers(0, 2, 570)
    model = DNNClassifier(n_members=1, random_state=0).fit(X[:70], y[:70])
    # log 2 = 0.693 is the least; in 100 epochs without a look at other rows, 1.
    assert log_loss(y[70:], model.predict_proba(X[70:])) < 0.75


def test_only_the_training_on_all_rows_leaves_files(table, tmp_path):
    X, y = table
    model = DNNClassifier((4,), config=RunConfig(model_dir=tmp_path), **FEW).fit(X, y)
    files = sorted(tmp_path.rglob("*"))
    assert model.evaluate(X, y)["accuracy"] == pytest.approx(model.score(X, y))
    assert sorted(tmp_path.rglob("*")) == files
    assert list(tmp_path.iterdir()) == [model.model_dir_]


class CtrlC(ProgressBarHook):
    """Presses Ctrl-C in a training; it is a bar, for other hooks see no folds."""

    def __init__(self, training):
        self.training = training
        self.n_begun = 0

    def begin(self, run):
        self.n_begun += 1

    def after_step(self, run, loss):
        if self.n_begun == self.training:
            os.kill(os.getpid(), signal.SIGINT)

    def end(self, run):
        pass


def test_an_interrupted_fit_keeps_what_the_folds_have_learned(table):
    X, y = table
    ctrl_c = CtrlC(training=3)
    with pytest.warns(UserWarning, match="was interrupted"):
        model = DNNClassifier((4,), hooks=(ctrl_c,), **FEW).fit(X, y)
    assert ctrl_c.n_begun == 3
    assert len(model.fold_estimators_) == 2
    each = [m.predict_proba(X) for m in members_of(model)]
    np.testing.assert_allclose(model.predict_proba(X), np.mean(each, 0), rtol=1e-5)


def test_no_training_on_all_rows_follows_one_that_is_interrupted():
    X = np.random.default_rng(0).normal(size=(1000, 2))
    ctrl_c = CtrlC(training=1)
    with pytest.warns(UserWarning, match="was interrupted"):
        model = DNNClassifier((4,), hooks=(ctrl_c,), **FEW).fit(X, X[:, 0] > 0)
    assert (ctrl_c.n_begun, model.n_steps_) == (1, 1)


@pytest.mark.parametrize("loss", ["squared_error", "poisson"])
def test_numbers_are_averaged(loss, table):
    X, y = table
    counts = np.random.default_rng(0).poisson(np.where(y == "yes", 5, 1)).astype(float)
    rate = {"learning_rate": 0.02, "max_iter": 8}
    model = DNNRegressor((8,), loss=loss, **FEW | rate).fit(X, counts)
    mean = np.mean([m.predict(X) for m in members_of(model)], axis=0)
    np.testing.assert_allclose(model.predict(X), mean, rtol=1e-5)
    if loss == "poisson":
        # The head leaves out what does not depend on the prediction.
        assert mean_poisson_deviance(counts, mean) < mean_poisson_deviance(
            counts, np.full(len(counts), counts.mean())
        )


def test_each_of_several_heads_has_its_mean(table, tmp_path):
    X, y = table
    targets = pd.DataFrame({"kind": np.where(X["town"] == "f", "f", y), "row": X.index})
    heads = {"kind": "classification", "row": "regression"}
    model = MultiHeadEstimator(heads=heads, hidden_units=(8,), **FEW).fit(X, targets)
    members = members_of(model)
    assert len(members) == 6
    kinds = np.mean([m.predict_proba(X)[0] for m in members], axis=0)
    np.testing.assert_allclose(model.predict_proba(X)[0], kinds, rtol=1e-5)
    rows = np.mean([m.predict(X)["row"] for m in members], axis=0)
    np.testing.assert_allclose(model.predict(X)["row"], rows, rtol=1e-5)
    metrics = model.evaluate(X, targets)
    squares = np.mean((rows - targets["row"]) ** 2)
    assert metrics["average_loss/row"] == pytest.approx(squares, rel=1e-4)
    served = load(model.export(tmp_path)).run(X, "predict")
    np.testing.assert_allclose(served["kind/probabilities"], kinds, rtol=1e-4)


@pytest.mark.parametrize("frame", ["numbers", "mixed"])
def test_columns_with_values_in_one_fold_only(frame, tmp_path, table):
    X, y = table
    n = len(X)
    rare = {"number": [2.5], "town_before": ["a"], "tags": [["u", "v"]]}
    rare["moved"] = [pd.Timestamp("2026-01-31 10:00")]
    if frame == "numbers":
        X, rare = X[["age"]], {"number": [2.5]}
    X = X.assign(
        **{key: [None] * 7 + cell + [None] * (n - 8) for key, cell in rare.items()}
    )
    X["number"] = X["number"].astype(float)
    model = DNNLinearCombinedClassifier((8,), **FEW).fit(X, y)
    assert len(members_of(model)) == 6
    expected = model.predict_proba(X)
    served = load(model.export(tmp_path)).predict_proba(X)
    np.testing.assert_allclose(served, expected, rtol=1e-4)
    # To the fold that has not seen it, the number says nothing.
    gone = X.assign(number=np.nan)
    same = [
        np.array_equal(m.predict_proba(X), m.predict_proba(gone))
        for m in model.fold_estimators_
    ]
    assert same.count(True) == 1


def test_a_loss_sees_the_features_of_training(table):
    seen = set()

    def loss_fn(labels, logits, features):
        seen.add(tuple(features))
        return (logits - labels) ** 2

    X = table[0][["age"]].fillna(0)
    model = DNNEstimator(RegressionHead(loss_fn=loss_fn), (4,), **FEW).fit(X, X["age"])
    assert model.fold_estimators_
    mse = np.mean((model.predict(X) - X["age"]) ** 2)
    assert model.evaluate(X, X["age"])["average_loss"] == pytest.approx(mse, rel=1e-4)
    assert seen == {("age",)}
