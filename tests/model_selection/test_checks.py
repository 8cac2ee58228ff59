# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's checks, where those of its own searches and ensembles pass, too."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from skest import LinearClassifier, LinearRegressor
from skest.model_selection import (
    EnsembleClassifier,
    GridSearchCV,
    HalvingRandomSearchCV,
    RandomizedSearchCV,
)

CLASSES, NUMBERS = (
    kind(max_iter=60, random_state=0) for kind in (LinearClassifier, LinearRegressor)
)
L2 = {"l2": [0.0, 0.001]}
OPTIONS = {"cv": 2, "error_score": "raise"}
OF_ALL_WEIGHTS_ZERO = {
    "check_classifiers_one_label_sample_weights": "A split has one class, which is said."
}
# scikit-learn expects these of its own searches.
OF_SEARCHES = {
    "check_estimators_nan_inf": "An error in a search comes from a fit of a split.",
    "check_supervised_y_2d": "A fit warns for each split.",
}


def expected(estimator):
    """Return what fails for scikit-learn's own, with the same estimators in them."""
    failing = {}
    if hasattr(estimator, "estimator"):
        failing |= OF_SEARCHES
        if isinstance(estimator, GridSearchCV) or estimator.ensemble:
            del failing["check_supervised_y_2d"]
    if isinstance(estimator, GridSearchCV | EnsembleClassifier):
        failing |= OF_ALL_WEIGHTS_ZERO
    return failing


@pytest.mark.nightly
@parametrize_with_checks(
    [
        GridSearchCV(CLASSES, L2, **OPTIONS),
        RandomizedSearchCV(
            NUMBERS, L2, n_iter=2, ensemble=2, random_state=0, **OPTIONS
        ),
        HalvingRandomSearchCV(NUMBERS, L2, min_resources=20, random_state=0, **OPTIONS),
        EnsembleClassifier([("a", CLASSES), ("b", CLASSES)]),
    ],
    expected_failed_checks=expected,
    xfail_strict=True,
)
def test_check(estimator, check):
    check(estimator)
