# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's own checks, with no expected failures."""

import pytest
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from skest import (
    BaselineClassifier,
    BaselineRegressor,
    DNNClassifier,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearRegressor,
    RNNClassifier,
    RNNRegressor,
)

# Small networks and fewer epochs than the defaults, so that a run takes minutes. The
# defaults themselves are checked below.
ESTIMATORS = [
    BaselineClassifier(),
    BaselineRegressor(),
    DNNClassifier((16,), max_iter=40),
    DNNRegressor((16,), max_iter=60),
    LinearClassifier(max_iter=60),
    LinearRegressor(),
    DNNLinearCombinedClassifier((16,), max_iter=40),
    DNNLinearCombinedRegressor((16,), max_iter=60),
    RNNClassifier(16, max_iter=40),
    RNNRegressor(16, max_iter=60),
    LinearRegressor(loss="huber"),
    DNNRegressor((16,), loss="quantile", max_iter=60),
]


@parametrize_with_checks(ESTIMATORS, xfail_strict=True)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator", {type(e): type(e)() for e in ESTIMATORS}.values(), ids=repr
)
def test_scikit_learn_checks_with_default_parameters(estimator):
    results = check_estimator(estimator, on_skip=None)
    assert {result["status"] for result in results} == {"passed"}
