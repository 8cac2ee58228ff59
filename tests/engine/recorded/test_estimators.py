# SPDX-License-Identifier: Apache-2.0
"""Replayed fits give what eager ones give, bit for bit, for every head and option."""

import functools
import logging

import numpy as np
import pandas as pd
import pytest
import torch

import skest
import skest.engine.training
from skest import feature_columns as fc
from skest.engine.recorded.choice import make_step
from skest.heads import SampledSoftmaxHead
from skest.optimizers import OPTIMIZERS

N_ROWS = 130
FIT = {"max_iter": 4, "batch_size": 50, "random_state": 0, "early_stopping": False}
rng = np.random.default_rng(0)
X = rng.normal(size=(N_ROWS, 4)).astype(np.float32)
Y = {
    "binary": (X[:, 0] > 0).astype(int),
    "classes": X[:, :3].argmax(axis=1),
    "many": rng.integers(0, 30, N_ROWS),
    "labels": (X[:, :3] > 0).astype(int),
    "number": X[:, 0] ** 2 + X[:, 1],
    "numbers": X[:, :2] ** 2,
    "count": rng.poisson(3, N_ROWS),
    "share": 1 / (1 + np.exp(-X[:, 0])),
    "two": pd.DataFrame({"a": X[:, 0] > 0, "b": X[:, 1]}),
}
TABLE = pd.DataFrame(
    {
        "a": X[:, 0],
        "b": np.where(X[:, 1] > 1, np.nan, X[:, 1]),
        "few": rng.integers(0, 5, N_ROWS).astype(str),
        "more": rng.integers(0, 90, N_ROWS).astype(str),
        "many": rng.integers(0, 10**6, N_ROWS).astype(str),
    }
)
Net = functools.partial(skest.DNNClassifier, (6, 4))
Wide = functools.partial(skest.DNNLinearCombinedClassifier, (6, 4))
Number = functools.partial(skest.DNNRegressor, (6, 4))
halving = functools.partial(torch.optim.lr_scheduler.StepLR, step_size=5, gamma=0.5)
EVERYTHING = {
    "dropout": 0.3,
    "batch_norm": True,
    "clip_norm": 0.1,
    "weight_decay": 0.01,
    "optimizer": "adamw",
}

SHARED = fc.shared_embeddings(
    [
        fc.categorical_column_with_hash_bucket(name, 40)
        for name in ("few", "more", "many")
    ],
    3,
)

A = fc.numeric_column("a")
CODES = [
    fc.piecewise_linear_column(A, "tree:9", 4),
    fc.piecewise_linear_column(A, "quantiles:9", None, "hat"),
    fc.piecewise_linear_column(A, "distinct:9", 4, "onehot"),
    fc.periodic_column(A, 3, 2),
]

CASES = {
    **{f"net, {o}": (Net, {"optimizer": o}, X, "binary") for o in OPTIMIZERS},
    **{f"net, {a}": (Net, {"activation": a}, X, "binary") for a in ("gelu", "selu")},
    "wide, adagrad": (Wide, {"dnn_optimizer": "adagrad"}, TABLE, "binary"),
    "float64": (Net, {}, X.astype(np.float64), "binary"),
    "classes": (Net, {}, X, "classes"),
    "labels": (Net, {}, X, "labels"),
    "everything": (Net, EVERYTHING, X, "classes"),
    "rate": (Net, {"learning_rate": lambda step: 0.1 * 0.9**step}, X, "binary"),
    "scheduler": (Net, {"lr_scheduler": halving, "learning_rate": 0.05}, X, "binary"),
    "codes": (Net, {"feature_columns": CODES}, TABLE, "binary"),
    "wide codes": (
        skest.LinearClassifier,
        {"feature_columns": CODES[:3]},
        TABLE,
        "binary",
    ),
    "shared table": (Net, {"feature_columns": SHARED}, TABLE, "binary"),
    "two optimizers": (
        Net,
        {"optimizer": [("*bias", "sgd"), ("*", "adam")]},
        X,
        "binary",
    ),
    "huber": (Number, {"loss": "huber"}, X, "number"),
    "quantile": (Number, {"loss": "quantile", "quantile": 0.9}, X, "number"),
    "poisson": (Number, {"loss": "poisson"}, X, "count"),
    "logistic": (Number, {"loss": "logistic"}, X, "share"),
    "numbers": (Number, {}, X, "numbers"),
    "wide, number": (skest.DNNLinearCombinedRegressor, {}, TABLE, "number"),
    "wide, penalties": (Wide, {"l1": 0.1, "l2": 0.1}, TABLE, "binary"),
    "wide, clipped": (Wide, {"clip_norm": 0.1}, TABLE, "classes"),
    "linear": (skest.LinearClassifier, {}, TABLE, "classes"),
    "baseline": (skest.BaselineClassifier, {}, X, "classes"),
    "heads": (skest.MultiHeadEstimator, {}, TABLE, "two"),
    "sampled": (skest.DNNEstimator, {"head": SampledSoftmaxHead(30, 5)}, X, "many"),
}


@pytest.fixture
def steps(monkeypatch):
    """Collect the steps of all fits."""
    made = []

    def make(*arguments, **options):
        made.append(make_step(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(skest.engine.training, "make_step", make)
    return made


def fitted(make, options, features, labels, execution, **fit):
    config = skest.RunConfig(execution=execution, log_step_count_steps=None)
    return make(**options, **FIT, config=config).fit(features, labels, **fit)


def assert_same(first, second):
    ours, theirs = first.estimator_.checkpoint, second.estimator_.checkpoint
    for part in ("variables", "optimizer"):
        mine, others = getattr(ours, part), getattr(theirs, part)
        assert mine.keys() == others.keys()
        for name, value in mine.items():
            np.testing.assert_array_equal(
                value, others[name], err_msg=name, strict=True
            )
    assert first.loss_curve_ == second.loss_curve_


@pytest.mark.parametrize("case", CASES)
def test_a_replayed_fit_is_the_eager_one(case, steps):
    make, options, features, target = CASES[case]
    models = [
        fitted(make, options, features, Y[target], execution)
        for execution in ("eager", "graph")
    ]
    assert steps[1].n_replayed == 8 - 2
    assert_same(*models)


def test_early_stopping_keeps_the_best_state(steps):
    options = {"dropout": 0.2, "optimizer": "adam", "learning_rate": 0.01}
    given = {"X_val": X[:30], "y_val": Y["binary"][:30]}
    models = []
    for execution in ("eager", "graph"):
        config = skest.RunConfig(execution=execution, log_step_count_steps=None)
        fit = {**FIT, "early_stopping": True, "max_iter": 30, "n_iter_no_change": 3}
        model = Net(**options, **fit, config=config).fit(X, Y["binary"], **given)
        models.append(model)
    assert models[0].validation_scores_ == models[1].validation_scores_
    assert_same(*models)


def test_a_fit_goes_on_from_an_earlier_one(steps):
    models = []
    options = {"warm_start": True, "dnn_dropout": 0.2}
    for execution in ("eager", "graph"):
        model = fitted(Wide, options, TABLE, Y["binary"], execution)
        models.append(model.fit(TABLE, Y["binary"]))
    assert steps[-1].n_replayed > 5
    assert_same(*models)


def test_auto_replays_long_fits_of_known_code_only(steps, caplog):
    caplog.set_level(logging.INFO, "skest")
    config = skest.RunConfig(log_step_count_steps=None)
    fit = {**FIT, "config": config, "n_iter_no_change": np.inf}
    Net(**fit).fit(X, Y["binary"])
    Net(**{**fit, "max_iter": 30}).fit(X, Y["binary"])
    own = {"activation": lambda x: x.clamp(min=0), "max_iter": 30}
    Net(**{**fit, **own}).fit(X, Y["binary"])
    replayed = [getattr(step, "n_replayed", 0) for step in steps]
    assert replayed[0] == replayed[2] == 0
    assert replayed[1] > 50
    reports = [r.message for r in caplog.records if "eager" in r.message]
    assert reports == [
        "Training steps are taken eagerly: 'DNN' is not known to compute with tensors "
        "only; execution='graph' records it."
    ]
