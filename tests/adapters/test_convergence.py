# SPDX-License-Identifier: Apache-2.0
"""How a fit ends that improvement was to end, and what it says if `max_iter` did."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import Ridge
from sklearn.metrics import root_mean_squared_error
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import skest
from skest.exceptions import NanLossDuringTrainingError
from tests._models import At

NAMES = ["DNNClassifier", "LinearRegressor"]


def fit(name="DNNClassifier", partial=False, **settings):
    X = np.random.default_rng(0).normal(size=(30, 2))
    y = (X[:, 0] > 0).astype(int)
    own = {"optimizer": "adam", "learning_rate": 0.01, "n_iter_no_change": 5}
    model = getattr(skest, name)(
        **{**own, "max_iter": 3, "random_state": 0, **settings}
    )
    return model.partial_fit(X, y) if partial else model.fit(X, y)


@pytest.mark.parametrize("name", NAMES)
def test_max_iter_without_convergence(name):
    with pytest.warns(
        ConvergenceWarning, match=f"{name} has not .*max_iter=3"
    ) as found:
        fit(name)
    assert found[0].filename == __file__


@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
def test_no_warning_where_it_ends_as_it_was_meant_to():
    for settings in [
        {"max_iter": 50, "tol": 10.0},  # it has converged
        {"n_iter_no_change": np.inf},
        {"max_steps": 2},
        {"learning_rate": lambda step: 0.1 / (1 + step)},
        {"lr_scheduler": lambda own: torch.optim.lr_scheduler.StepLR(own, 2)},
        {"hooks": [At(1, lambda run: run.request_stop("enough"))]},
        {"partial": True},
    ]:
        fit(**settings)


@pytest.mark.parametrize("seed", range(3))
def test_linear_regression_is_as_good_as_least_squares(seed):
    n_train = 2001  # a last batch of a single row would weigh it as much as 200
    random = np.random.default_rng(seed)
    levels = random.integers(12, size=(3000, 6))
    X = "c" + pd.DataFrame(levels.astype(str)).add_prefix("x")
    effects = random.normal(size=(6, 12))
    y = effects[np.arange(6), levels].sum(1) + 0.5 * random.normal(size=3000)
    ours, theirs = (
        root_mean_squared_error(
            y[n_train:], m.fit(X[:n_train], y[:n_train]).predict(X[n_train:])
        )
        for m in (
            skest.LinearRegressor(random_state=seed),
            make_pipeline(OneHotEncoder(), Ridge()),
        )
    )
    assert ours < 1.01 * theirs


@pytest.mark.parametrize("early_stopping", [False, True])
def test_what_was_chosen_trains_the_same_again(early_stopping):
    X = np.random.default_rng(0).normal(size=(621, 3))
    chosen = {"random_state": 0, "early_stopping": early_stopping}
    model = skest.LinearRegressor(**chosen).fit(X, X[:, 0])
    size = model.auto_params_["batch_size"]
    assert size == (186 if early_stopping else 156)  # of 558, or all
    again = skest.LinearRegressor(**{**model.auto_params_, **chosen}).fit(X, X[:, 0])
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert skest.LinearRegressor(optimizer="sdca").fit(X, X[:, 0]).n_steps_ % 4 == 0


@pytest.mark.parametrize("estimator", [skest.DNNClassifier, skest.DNNRegressor])
def test_a_network_that_ends_in_nan_is_refused(estimator):
    X = np.random.default_rng(0).normal(size=(100, 5))
    y = (X[:, 0] > 0).astype(int)
    model = estimator(
        (8,), optimizer="sgd", learning_rate=1e30, batch_size=100, random_state=0
    )
    for max_iter, message in ((1, "held out are NaN or"), (9, "step . is NaN")):
        model.set_params(max_iter=max_iter, early_stopping=True, dtype="float32")
        with pytest.raises(NanLossDuringTrainingError, match=f"{message}.* Lower the"):
            model.fit(X, y)
