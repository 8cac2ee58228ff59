# SPDX-License-Identifier: Apache-2.0
"""Many estimators are fitted as each by its own fit."""

import os
import signal

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.dummy import DummyRegressor

from skest import DNNRegressor
from skest.exceptions import NanLossDuringTrainingError
from skest.hooks import Hook
from skest.model_selection import fit_many

PLAIN = {"batch_size": 32, "max_iter": 4, "learning_rate": 0.01, "random_state": 0}
REGRESSOR = DNNRegressor((9,), optimizer="adamw", **PLAIN)
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 5)).astype(np.float32)
    return X, X[:, 0] - X[:, 1] * X[:, 2]


def folds(n_rows, n_folds=3):
    held_out = np.arange(n_rows) % n_folds
    return [np.flatnonzero(held_out != k) for k in range(n_folds)]


def seeds(n):
    return [clone(REGRESSOR).set_params(random_state=i) for i in range(n)]


def assert_equal(fitted, estimator, X, y, rows, weight=None):
    """What was fitted is what its own fit makes of the rows."""
    weight = None if weight is None else weight[rows]
    part = X.iloc[rows] if isinstance(X, pd.DataFrame) else X[rows]
    lone = clone(estimator).fit(part, y[rows], weight)
    np.testing.assert_array_equal(fitted.predict(X), lone.predict(X))
    assert fitted.loss_curve_ == lone.loss_curve_


def test_the_same_as_alone(table):
    X, y = table
    X = pd.DataFrame(X, columns=list("abcde")).assign(kind=np.where(y > 1, "a", "b"))
    weight = np.linspace(0.5, 2, len(y))
    estimators, rows = seeds(3), folds(len(X))
    fitted = fit_many(estimators, X, y, rows=rows, sample_weight=weight)
    for each in zip(fitted, estimators, rows, strict=True):
        assert_equal(each[0], each[1], X, y, each[2], weight)


def test_the_arguments_stay_as_they_are_and_all_rows_are_the_default(table):
    X, y = table
    estimators = [*seeds(2), DummyRegressor()]
    *fitted, _ = fit_many(estimators, X, y)
    assert [model.random_state for model in fitted] == [0, 1]
    assert not any(hasattr(estimator, "estimator_") for estimator in estimators)
    assert fit_many([], X, y) == []


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
    assert_equal(fitted, REGRESSOR, X, y, np.arange(len(y)))
    with pytest.raises(ValueError, match="learning_rate"):
        fit_many(estimators, X, y)


def test_a_time_limit_leaves_what_is_done(table):
    X, y = table
    long = clone(REGRESSOR).set_params(max_iter=10**6, n_iter_no_change=np.inf)
    found = fit_many([long, long], X, y, time_limit=0.3)
    assert all(isinstance(error, TimeoutError) for error in found)


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
        (
            {"rows": [[0, 1], [-1, 0]]},
            r"rows\[1\] has row -1, but .* numbered from 0 to",
        ),
        ({"rows": [[0, 1], []]}, r"for each estimator; got rows\[1\] of type"),
        ({"n_jobs": 0}, "n_jobs == 0"),
        ({"time_limit": 0}, "'time_limit' of fit_many .* greater than 0"),
        (
            {"rows": [None] * 2, "sample_weight": [1.0]},
            "inconsistent numbers of samples",
        ),
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
def test_processes(table):
    wrong = clone(REGRESSOR).set_params(learning_rate=-1.0)
    estimators = seeds(4)
    everything = np.arange(len(table[0]))
    rows = [*folds(len(everything)), everything]
    options = {"rows": [*rows, None], "on_error": "return", "n_jobs": 2}
    *fitted, error = fit_many([*estimators, wrong], *table, **options)
    assert isinstance(error, ValueError)
    for mine, own, of in zip(fitted, estimators, rows, strict=True):
        assert_equal(mine, own, *table, of)
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
