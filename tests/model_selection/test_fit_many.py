# SPDX-License-Identifier: Apache-2.0
"""Estimators that are fitted together are those that are fitted alone."""

import logging
import os
import signal
import threading
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.exceptions import ConvergenceWarning

from skest import (
    DNNClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearRegressor,
)
from skest.exceptions import NanLossDuringTrainingError
from skest.hooks import Hook
from skest.model_selection import fit_many

ALONE = "is trained alone"
# Where a hidden layer is no multiple of a cache line, and neither is the last batch.
PLAIN = {"batch_size": 32, "max_iter": 4, "learning_rate": 0.01, "random_state": 0}
RATES = {"learning_rate": [0.01, 0.002]}
DNN = DNNClassifier((9, 16), optimizer="adamw", **PLAIN)
REGRESSOR = DNNRegressor((9,), optimizer="adamw", **PLAIN)


@pytest.fixture(autouse=True)
def few_steps_are_enough(monkeypatch):
    monkeypatch.setattr("skest.engine.crew._WORTH_STACKING", 0)


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 5)).astype(np.float32)
    return X, X[:, 0] - X[:, 1] * X[:, 2]


def folds(n_rows, n_folds=3):
    held_out = np.arange(n_rows) % n_folds
    return [np.flatnonzero(held_out != k) for k in range(n_folds)]


def candidates(estimator, **values):
    """Estimators that differ in the values of some parameters."""
    n = len(next(iter(values.values())))
    own = [{name: of[i] for name, of in values.items()} for i in range(n)]
    return [clone(estimator).set_params(**params) for params in own]


def as_function(value):
    """A rate for each step, which knows no more steps."""
    return value.__getitem__ if isinstance(value, list) else value


def lone_fits(estimators, X, y, rows, weight=None):
    fitted = []
    for estimator, own in zip(estimators, rows, strict=True):
        part = X.iloc[own] if isinstance(X, pd.DataFrame) else X[own]
        given = () if weight is None else (weight[own],)
        fitted.append(clone(estimator).fit(part, y[own], *given))
    return fitted


def assert_equal(fitted, lone):
    assert type(fitted) is type(lone)
    a, b = fitted.estimator_.checkpoint, lone.estimator_.checkpoint
    assert a.global_step == b.global_step
    assert a.variables.keys() == b.variables.keys()
    for name, value in a.variables.items():
        np.testing.assert_allclose(value, b.variables[name], rtol=1e-5, atol=1e-5)
    for name in ("loss_curve_", "validation_scores_", "best_validation_score_"):
        mine, others = getattr(fitted, name), getattr(lone, name)
        assert (mine is None) == (others is None)
        if mine is not None:
            np.testing.assert_allclose(mine, others, rtol=1e-5, atol=1e-6)
    assert fitted.n_iter_ == lone.n_iter_


def check(estimators, X, y, rows, caplog, weight=None, **options):
    """Fit together and alone, and compare; return what was fitted together."""
    with caplog.at_level(logging.INFO, "skest"):
        fitted = fit_many(estimators, X, y, rows=rows, sample_weight=weight, **options)
    assert ALONE not in caplog.text
    assert "one after the other" not in caplog.text
    for mine, lone in zip(
        fitted, lone_fits(estimators, X, y, rows, weight), strict=True
    ):
        assert_equal(mine, lone)
    return fitted


CASES = {
    "adam, folds": (DNN, {**RATES, "optimizer": ["adam"] * 2}),
    "auto": (DNN, {**RATES, "optimizer": ["auto"] * 2, "weight_decay": [0, 0.1]}),
    "not recorded": (
        DNN,
        {"optimizer": [torch.optim.NAdam, torch.optim.Adamax, "adam"]},
    ),
    "dropout and seeds": (DNN, {"dropout": [0.3] * 2, "random_state": [1, 2]}),
    "clipped": (DNN, {"clip_norm": [0.1, None], "batch_norm": [True] * 2}),
    "schedule of steps": (
        DNN,
        {"learning_rate": [[0.01] * 12, [0.02] * 21], "max_steps": [11, None]},
    ),
    "members": (DNN, {**RATES, "n_members": [3] * 2, "dropout": [0.1] * 2}),
    "max_steps": (DNN, {"max_steps": [3, 7, None], "optimizer": ["adagrad"] * 3}),
    "half end earlier": (DNN, {"max_iter": [1, 1, 6, 6], "dropout": [0.1] * 4}),
    "activations": (DNN, {"activation": ["gelu", "tanh", "gelu"]}),
    "stopping": (
        DNN,
        {
            "early_stopping": [True] * 3,
            "n_iter_no_change": [1, 2, 1],
            "max_iter": [12] * 3,
            "learning_rate": [0.05, 0.01, 0.3],
        },
    ),
    "regression": (REGRESSOR, {"loss": ["squared_error", "huber"]}),
    "linear regression": (LinearRegressor(**PLAIN), {**RATES, "l2": [0.0, 0.1]}),
    "wide and deep": (
        DNNLinearCombinedRegressor((8,), batch_size=32, max_iter=3, random_state=0),
        {"dnn_learning_rate": RATES["learning_rate"], "early_stopping": [False] * 2},
    ),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("case", CASES)
def test_the_same_as_alone(table, case, caplog):
    X, y = table
    estimator, values = CASES[case]
    values = {name: [as_function(v) for v in of] for name, of in values.items()}
    if hasattr(estimator, "predict_proba"):
        y = (y > 0).astype(int)
    estimators = candidates(estimator, **values)
    check(estimators, X, y, (2 * folds(len(X)))[: len(estimators)], caplog)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_hundred_steps_of_several_classes_with_weights(table, caplog):
    X, y = table
    y = np.digitize(y, [-1, 1])
    weight = np.random.default_rng(0).uniform(0.5, 2, len(y))
    estimators = candidates(DNN, learning_rate=[0.01, 0.02], max_iter=[20] * 2)
    check(estimators, X, y, [np.arange(len(y))] * 2, caplog, weight)


@pytest.mark.slow
def test_the_recipe_with_its_own_folds(table, caplog):
    X, y = table
    estimators = candidates(DNNRegressor((8,), max_iter=2), random_state=[0, 1])
    check(estimators, X, y, [np.arange(110)] * 2, caplog)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_mixed_table(caplog):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "size": rng.normal(size=120),
            "kind": rng.choice(list("abcde"), 120),
            "place": rng.choice([f"place {i}" for i in range(40)], 120),
        }
    )
    y = (X["kind"] < "c").to_numpy().astype(int)
    check(candidates(DNN, **RATES), X, y, folds(120)[1:], caplog)


def test_the_arguments_stay_as_they_are_and_all_rows_are_the_default(table):
    X, y = table
    estimators = candidates(REGRESSOR, learning_rate=[0.01, 0.1], max_iter=[1, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = fit_many(estimators, X, y, max_members=1)
    assert [model.learning_rate for model in fitted] == [0.01, 0.1]
    assert not any(hasattr(estimator, "estimator_") for estimator in estimators)
    assert fit_many([], X, y) == []


class Watching(Hook):
    """A hook that may look at the model after every step."""

    def after_step(self, run, loss):
        """Look."""


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_what_must_be_alone_is_fitted_alone_and_says_why(table, caplog):
    X, y = table
    y = (y > 0).astype(int)
    estimators = [
        clone(DNN).set_params(hooks=[Watching()], execution="graph"),
        DummyClassifier(),
        clone(DNN),
    ]
    with caplog.at_level(logging.INFO, "skest"):
        hooked, dummy, plain = fit_many(estimators, X, y)
    assert "trained alone: Watching may look at it after every step" in caplog.text
    assert dummy.predict(X[:2]).shape == (2,)
    (lone,) = lone_fits([DNN], X, y, [np.arange(len(y))])
    assert_equal(hooked, lone)
    assert_equal(plain, lone)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_errors_are_returned_in_place_and_harm_no_others(table):
    X, y = table
    estimators = [
        clone(REGRESSOR).set_params(learning_rate=-1.0),
        clone(REGRESSOR).set_params(learning_rate=1e30, optimizer="sgd"),
        clone(REGRESSOR),
    ]
    estimators.append(clone(REGRESSOR).set_params(learning_rate=lambda step: 7 - step))
    wrong, diverged, fitted, ending = fit_many(estimators, X, y, on_error="return")
    assert isinstance(wrong, ValueError)
    assert "learning_rate" in str(wrong)
    assert isinstance(diverged, NanLossDuringTrainingError)
    assert "step 8" in str(ending)
    assert_equal(fitted, lone_fits([REGRESSOR], X, y, [np.arange(len(y))])[0])
    with pytest.raises(ValueError, match="learning_rate"):
        fit_many(estimators, X, y)


def test_a_time_limit_leaves_what_is_done(table):
    X, y = table
    long = clone(REGRESSOR).set_params(max_iter=10**6, n_iter_no_change=np.inf)
    before = threading.active_count()
    found = fit_many([long, long], X, y, time_limit=0.3)
    assert all(isinstance(error, TimeoutError) for error in found)
    assert threading.active_count() == before


class CtrlC(Hook):
    """Somebody presses Ctrl-C after the third step."""

    def after_step(self, run, loss):
        """Send the signal, which the main thread gets."""
        if run.global_step == 3:
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_leaves_what_is_done(table):
    long = clone(REGRESSOR).set_params(max_iter=10**6, n_iter_no_change=np.inf)
    pressing = clone(long).set_params(hooks=[CtrlC()], execution="graph")
    found = fit_many([pressing, long], *table, on_error="return")
    assert all(isinstance(error, KeyboardInterrupt) for error in found)
    with pytest.raises(KeyboardInterrupt):
        fit_many([pressing, long], *table)


def test_a_single_estimator_is_refused():
    with pytest.raises(TypeError, match="sequence of estimators; got one, a DNN"):
        fit_many(DNNRegressor(), [[0.0]], [0.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_error": "ignore"}, "'on_error' must be 'raise' or 'return'"),
        ({"rows": [[0, 1]]}, "'rows' must have an entry for each of the 2 estimators"),
        ({"rows": [[0, 1], [0, 999]]}, "rows.1. has row 999, but .* table has .* rows"),
        ({"rows": [[0, 1], []]}, r"the numbers of some rows; got rows\[1\] of type"),
        ({"n_jobs": 0}, "n_jobs == 0"),
        ({"max_members": 0}, "'max_members' .* of at least 1"),
    ],
)
def test_wrong_arguments(table, options, message):
    with pytest.raises(ValueError, match=message):
        fit_many([REGRESSOR, REGRESSOR], *table, **options)


class CtrlCOfTheCaller(Hook):
    """Somebody presses Ctrl-C where `fit_many` was called."""

    def after_step(self, run, loss):
        """Send the signal to the process that started this one."""
        if run.global_step == 3:
            os.kill(os.getppid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_processes(table):
    wrong = clone(REGRESSOR).set_params(learning_rate=-1.0)
    estimators = candidates(REGRESSOR, random_state=[0, 1, 2, 3])
    everything = np.arange(len(table[0]))
    rows = [*folds(len(everything)), everything]
    options = {"rows": [*rows, None], "on_error": "return", "n_jobs": 2}
    *fitted, error = fit_many([*estimators, wrong], *table, **options)
    assert isinstance(error, ValueError)
    for mine, lone in zip(fitted, lone_fits(estimators, *table, rows), strict=True):
        assert_equal(mine, lone)
    with pytest.raises(ValueError, match="learning_rate"):
        fit_many([*estimators, wrong], *table, n_jobs=2)
    long = clone(REGRESSOR).set_params(max_iter=10**6, n_iter_no_change=np.inf)
    found = fit_many([long, long], *table, time_limit=1, n_jobs=2)
    assert all(isinstance(error, TimeoutError) for error in found)
    pressing = clone(long).set_params(hooks=[CtrlCOfTheCaller()], execution="graph")
    found = fit_many([pressing, long], *table, on_error="return", n_jobs=2)
    assert all(isinstance(error, KeyboardInterrupt) for error in found)


def test_lines_of_many_trainings_have_names(table, capsys):
    model = DNNRegressor((4,), optimizer="adamw", learning_rate=0.01, max_iter=1)
    model.set_params(verbose=1)
    fit_many([model, clone(model).set_params(verbose=0), model], *table)
    said = capsys.readouterr().out.splitlines()
    assert {line[:14] for line in said} == {"Model 1 of 3: ", "Model 3 of 3: "}
    assert [line[:23] for line in said if "Epoch" in line] == [
        f"Model {i} of 3: Epoch 1/1" for i in (1, 3)
    ]
