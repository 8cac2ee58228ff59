# SPDX-License-Identifier: Apache-2.0
"""Weights and validation rows reach training through scikit-learn's meta-estimators.

A routed fit must give the very model of a fit by hand, and another one than without.
"""

import numpy as np
import pytest
from sklearn import config_context
from sklearn.base import clone, is_regressor
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.multioutput import MultiOutputClassifier, MultiOutputRegressor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler

from tests.adapters._families import FAMILIES, rows_for
from tests.adapters._nets import assert_same_variables

FOLDS = KFold(2)


@pytest.fixture(autouse=True)
def routing():
    with config_context(enable_metadata_routing=True):
        yield


# The methods that take weights are those of a base; one estimator of each.
@pytest.fixture(params=["LinearClassifier", "DNNRegressor"])
def estimator(request):
    return clone(FAMILIES[request.param])


def test_weights_and_validation_rows_through_a_pipeline(estimator):
    X, y, weight = rows_for(estimator)
    val = rows_for(estimator, n_rows=30, seed=1)
    estimator.set_params(early_stopping=True, n_iter_no_change=10)
    estimator.set_fit_request(
        sample_weight=True, X_val=True, y_val=True, sample_weight_val=True
    )
    pipeline = Pipeline(
        [
            ("scale", StandardScaler().set_fit_request(sample_weight=False)),
            ("m", estimator),
        ],
        transform_input=["X_val"],
    )
    given = dict(zip(("X_val", "y_val", "sample_weight_val"), val, strict=True))
    routed = pipeline.fit(X, y, sample_weight=weight, **given)["m"]

    scaler = StandardScaler().fit(X)
    scaled, given["X_val"] = scaler.transform(X), scaler.transform(val[0])
    by_hand = clone(estimator).fit(scaled, y, weight, **given)
    assert_same_variables(routed, by_hand)
    assert routed.validation_scores_ == by_hand.validation_scores_

    given["sample_weight_val"] = None
    without = clone(estimator).fit(scaled, y, **given)
    assert routed.loss_ != without.loss_
    assert routed.validation_scores_ != without.validation_scores_


def test_weights_through_a_search(estimator):
    X, y, weight = rows_for(estimator)
    estimator.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
    search = GridSearchCV(estimator, {"max_iter": [2]}, cv=FOLDS)
    search.fit(X, y, sample_weight=weight)
    assert_same_variables(
        search.best_estimator_,
        clone(estimator).set_params(max_iter=2).fit(X, y, weight),
    )
    scores = []
    for train, test in FOLDS.split(X):
        model = clone(search.best_estimator_).fit(X[train], y[train], weight[train])
        scores.append(model.score(X[test], y[test], weight[test]))
    assert search.best_score_ == pytest.approx(np.mean(scores), rel=1e-12)


def test_weights_through_partial_fit(estimator):
    X, y, weight = rows_for(estimator)
    targets = np.stack([y, y[::-1]], axis=1)
    estimator.set_partial_fit_request(sample_weight=True)
    if is_regressor(estimator):
        several = MultiOutputRegressor(estimator)
        several.partial_fit(X, targets, sample_weight=weight)
    else:
        several = MultiOutputClassifier(estimator)
        classes = [np.array([0, 1])] * 2
        several.partial_fit(X, targets, classes=classes, sample_weight=weight)
    by_hand = clone(estimator).partial_fit(X, targets[:, 1], sample_weight=weight)
    assert_same_variables(several.estimators_[1], by_hand)
    without = clone(estimator).partial_fit(X, targets[:, 1])
    assert by_hand.loss_ != without.loss_
