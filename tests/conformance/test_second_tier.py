# SPDX-License-Identifier: Apache-2.0
"""The checks that scikit-learn has, but runs on its own estimators only."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import recall_score
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks

import skest
from skest import feature_columns as fc
from tests.conformance.test_configurations import WITHOUT
from tests.conformance.test_estimator_checks import ESTIMATORS, MORE


def named(estimator, check):
    name = type(estimator).__name__
    return pytest.param(estimator, check, id=f"{name}-{check.removeprefix('check_')}")


def one_of_each(estimators):
    """Return the first estimator of every class."""
    return list({type(e): e for e in reversed(estimators)}.values())


EACH = one_of_each([*ESTIMATORS, *MORE])
CLASSIFIERS = [e for e in EACH if is_classifier(e)]
OF_ALL = [
    "check_all_zero_sample_weights_error",
    "check_dataframe_column_names_consistency",
    "check_inplace_ensure_writeable",
    "check_param_validation",
    "check_valid_tag_types",
]
PREDICTORS = [named(e, check) for e in ESTIMATORS for check in OF_ALL]
PREDICTORS += [named(e, "check_param_validation") for e in EACH if e not in ESTIMATORS]
PREDICTORS += [
    named(WITHOUT[title][0], "check_dataframe_column_names_consistency")
    for title in ("early stopping", "early stopping numbers")  # they predict in fit
]
PREDICTORS += [
    named(e, "check_class_weight_balanced_linear_classifier")
    for e in CLASSIFIERS
    if hasattr(type(e), "coef_")
]

# Checks of transformers have arrays, and frames whose columns have other names: what
# both have are positions. The matrices of columns that are only categorical are sparse,
# which frames do not take.
NUMBER = fc.numeric_column(0, normalizer="standard")
BUCKETS = fc.bucketized_column(NUMBER, "quantiles:4")
CROSS = fc.crossed_column(
    [BUCKETS, fc.bucketized_column(fc.numeric_column(1), [0.0])], 10
)
TRANSFORMERS = [
    fc.numeric_column(0, default_value="mean", indicate_missing="auto"),
    fc.FeatureColumns([("scaled", NUMBER), ("crossed", CROSS)]),
]
OF_FRAMES = [
    "check_global_output_transform_pandas",
    "check_global_set_output_transform_polars",
    "check_set_output_transform_pandas",
    "check_set_output_transform_polars",
    "check_transformer_get_feature_names_out_pandas",
]
OF_TRANSFORMERS = [
    "check_inplace_ensure_writeable",
    "check_set_output_transform",
    "check_transformer_get_feature_names_out",
    "check_valid_tag_types",
]
MATRIX = fc.SparseMatrixColumn()  # reads arrays and sparse matrices
OF_COLUMNS = [
    named(t, check) for t in TRANSFORMERS for check in (*OF_TRANSFORMERS, *OF_FRAMES)
]
OF_COLUMNS += [
    named(t, check)
    for t in (CROSS, MATRIX, fc.indicator_column(MATRIX))
    for check in OF_TRANSFORMERS
]
OF_COLUMNS += [
    named(t, "check_get_feature_names_out_error")
    for t in (BUCKETS, MATRIX, fc.FeatureColumns([NUMBER, MATRIX]))
    # the names of others are known before fit
]


@pytest.mark.parametrize(("estimator", "check"), [*PREDICTORS, *OF_COLUMNS])
def test_check(estimator, check):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        getattr(estimator_checks, check)(type(estimator).__name__, estimator)
    assert not [w for w in caught if "was fitted without" in str(w.message)]


def test_all_public_estimators_are_checked():
    names = {type(e).__name__ for e in EACH}
    public = {name for name in skest.__all__ if hasattr(getattr(skest, name), "fit")}
    assert names == public


@pytest.mark.parametrize(
    "classifier", [e for e in ESTIMATORS if is_classifier(e)], ids=repr
)
def test_balanced_classes(classifier):
    """Weights of the classes find more of a rare one, which overlaps with the other."""
    X, y = load_breast_cancer(return_X_y=True)
    rare = np.flatnonzero(y == 0)[::6]
    rows = np.concatenate([rare, np.flatnonzero(y == 1)])
    X, y = StandardScaler().fit_transform(X[rows, 1:2]), y[rows]
    plain = clone(classifier).set_params(random_state=0, max_iter=40).fit(X, y)
    balanced = clone(plain).set_params(class_weight="balanced").fit(X, y)
    recall = [recall_score(y, m.predict(X), pos_label=0) for m in (plain, balanced)]
    assert recall[0] < 0.3 < 0.6 < recall[1]
