# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's own checks, with no expected failures."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

import skest
from skest.canned.sdca import LinearSDCA
from skest.heads import PoissonRegressionHead, RegressionHead
from tests.adapters import _model_fns as model_fns

# Small networks, and as many epochs as the checks need, at a learning rate for so few: a
# run takes minutes. Every class as constructed, "auto" for DNNs, is checked below. Steps
# are replayed where there are 60 and more (in mini-batches, and of some regressors) and
# with "graph".
ADAGRAD = {"optimizer": "adagrad", "learning_rate": 0.2}
DNN_ADAGRAD = {f"dnn_{name}": value for name, value in ADAGRAD.items()}
ESTIMATORS = [
    skest.BaselineRegressor(),
    skest.DNNClassifier((16,), **ADAGRAD, max_iter=15),
    skest.LinearClassifier(max_iter=20),
    skest.DNNLinearCombinedRegressor((16,), **DNN_ADAGRAD, max_iter=60),
    skest.MultiHeadEstimator((16,), **ADAGRAD, max_iter=15),
]


# What ``make test`` has not the time for.
MORE = [
    skest.BaselineClassifier(),
    skest.DNNRegressor((16,), **ADAGRAD, max_iter=20),
    skest.LinearRegressor(),
    skest.DNNLinearCombinedClassifier((16,), **DNN_ADAGRAD, max_iter=15),
    skest.RNNClassifier(16, learning_rate=0.1, max_iter=20),
    skest.RNNRegressor(16, max_iter=60),
    skest.BaselineEstimator(),
    skest.DNNEstimator(hidden_units=(16,), **ADAGRAD, max_iter=15),
    skest.LinearEstimator(PoissonRegressionHead()),
    skest.DNNLinearCombinedEstimator(
        dnn_hidden_units=(16,), **DNN_ADAGRAD, max_iter=15
    ),
    # Without an end before the optimum: the order of the rows, which weights replace in
    # one of the checks, matters until there.
    skest.LinearClassifier(optimizer="sdca", max_iter=80, n_iter_no_change=np.inf),
    skest.LinearRegressor(loss="huber"),
    skest.DNNRegressor(
        (16,), loss="quantile", **ADAGRAD, max_iter=20, execution="graph"
    ),
    skest.DNNEstimator(RegressionHead(), (16,), **ADAGRAD, max_iter=20),
    # Mini-batches, drawn in proportion to the weights.
    skest.DNNClassifier(
        (16,), **ADAGRAD, batch_size=8, sampling="weighted", max_iter=20
    ),
    skest.DNNRegressor(
        (16,),
        **ADAGRAD,
        batch_size=8,
        sampling="weighted",
        dtype="float32",
        max_iter=20,
    ),
    skest.DNNClassifier(
        (16,),
        dtype="float32",
        dropout=0.2,
        batch_norm=True,
        sampling="weighted",
        **ADAGRAD,
        max_iter=40,
    ),
    skest.LinearRegressor(
        optimizer=LinearSDCA(l2=10.0), max_iter=80, n_iter_no_change=np.inf
    ),
    skest.ModelFnClassifier(model_fns.with_head, max_iter=40),
    skest.ModelFnRegressor(model_fns.with_head, max_iter=60),
    skest.ModelFnClassifier(model_fns.classes, max_iter=40),
    skest.ModelFnRegressor(model_fns.numbers, max_iter=60),
]


@parametrize_with_checks(ESTIMATORS, xfail_strict=True)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def assert_all_pass(estimator, but=frozenset()):
    """Assert that an estimator passes every check, but some, which it has to fail."""
    results = check_estimator(
        estimator,
        on_skip=None,
        on_fail=None,
        expected_failed_checks=dict.fromkeys(but, "see WITHOUT"),
    )
    others = [result for result in results if result["status"] != "passed"]
    assert {result["check_name"] for result in others} == but, others
    assert all(isinstance(result["exception"], AssertionError) for result in others)


# One test for all checks: thousands of them take seconds to collect, night or day.
@pytest.mark.nightly
@pytest.mark.parametrize("estimator", MORE, ids=lambda e: type(e).__name__)
def test_scikit_learn_checks_of_more(estimator):
    assert_all_pass(estimator)


def with_defaults(estimator):
    """An estimator of the same class; a model function has no default."""
    given = {"model_fn": getattr(estimator, "model_fn", None)}
    return type(estimator)(**{name: value for name, value in given.items() if value})


# One of those whose defaults are the same.
NIGHTLY = (
    *(skest.BaselineEstimator, skest.DNNClassifier, skest.DNNEstimator),
    *(skest.DNNLinearCombinedEstimator, skest.DNNLinearCombinedRegressor),
    *(skest.LinearEstimator, skest.MultiHeadEstimator, skest.RNNRegressor),
    *(skest.ModelFnClassifier, skest.ModelFnRegressor),
)


@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(
            with_defaults(e),
            id=name,
            marks=pytest.mark.nightly if type(e) in NIGHTLY else pytest.mark.slow,
        )
        for name, e in {type(e).__name__: e for e in [*ESTIMATORS, *MORE]}.items()
    ],
)
def test_scikit_learn_checks_with_default_parameters(estimator):
    assert_all_pass(estimator)
