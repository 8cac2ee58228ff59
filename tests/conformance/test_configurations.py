# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's checks of estimators that are not as they are constructed.

`BY_DAY` and `MORE` pass every check, and none is expected to fail. `WITHOUT` names, for
each configuration that cannot pass them all, the checks that it is spared, why, and what
is tested in their place; none is spared in vain, for it has to fail them.
All but `BY_DAY` is checked at night, by ``make test-nightly``.
"""

import numpy as np
import pytest
from scipy.sparse import csr_array, issparse
from sklearn.utils.estimator_checks import parametrize_with_checks

from skest import (
    DNNClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearRegressor,
    RNNRegressor,
)
from skest import feature_columns as fc
from tests.conformance.test_estimator_checks import assert_all_pass


def sparse(X):
    """Return matrices of numbers in CSR form, and what is to be refused as it is."""
    array = None if issparse(X) else np.asarray(X)
    is_matrix = array is not None and array.ndim == 2 and array.dtype.kind in "fiu"
    return csr_array(array) if is_matrix and array.size else X


class ReadsSparse:
    """Reads every array as a sparse matrix, in which NaN is refused."""

    def _check_features(self, X, *, reset):
        return super()._check_features(sparse(X), reset=reset)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = False
        return tags


class SparseClassifier(ReadsSparse, DNNClassifier):
    pass


class SparseRegressor(ReadsSparse, LinearRegressor):
    pass


def columns(*more):
    """Return columns for arrays of any width: all numbers, and vectors of the first."""
    number = fc.numeric_column(0, normalizer="standard")
    buckets = fc.bucketized_column(number, "quantiles:8")
    vectors = fc.embedding_column(buckets, dimension=3)
    return [fc.indicator_column(fc.SparseMatrixColumn()), vectors, *more]


WIDE = [fc.SparseMatrixColumn(), fc.bucketized_column(fc.numeric_column(0), [0.0, 1.0])]
ADAGRAD = {"optimizer": "adagrad", "learning_rate": 0.05}
DNN_ADAGRAD = {f"dnn_{name}": value for name, value in ADAGRAD.items()}
SMALL = {"hidden_units": (16,), "max_iter": 40, **ADAGRAD}
LONGER = {"hidden_units": (16,), "max_iter": 100, **ADAGRAD}
NOISY = {"dropout": 0.2, "batch_norm": True}
DRAWN = {"sampling": "weighted"}
FLOAT32 = {"dtype": "float32"}
GRAPH = {"execution": "graph"}
ADAM = {"optimizer": "adam", "learning_rate": 0.01}

# Rows drawn in proportion to their weights: then training does not tell a weight
# from a repetition, whatever is random or rounded in it.
BY_DAY = DNNRegressor(**LONGER, **DRAWN, **NOISY)
MORE = {
    "embedding": DNNClassifier(**SMALL, feature_columns=columns()),
    "sparse": SparseClassifier(**SMALL),
    "balanced": DNNClassifier(**SMALL, class_weight="balanced"),
    "graph": DNNClassifier(**SMALL, **GRAPH),
    "float64": DNNClassifier(**SMALL, dtype="float64"),
    "float64 numbers": DNNRegressor(**LONGER, dtype="float64"),
    "sparse numbers": SparseRegressor(),
    "balanced linear": LinearClassifier(max_iter=60, class_weight="balanced"),
    "wide and deep numbers": DNNLinearCombinedRegressor(
        (16,),
        **DNN_ADAGRAD,
        max_iter=60,
        linear_feature_columns=WIDE,
        dnn_feature_columns=columns(),
    ),
    "crossed linear": LinearClassifier(feature_columns=WIDE, max_iter=60),
    "adam numbers": DNNRegressor(**(LONGER | ADAM)),
    "adamw": DNNClassifier(
        **(SMALL | ADAM | {"optimizer": "adamw"}), weight_decay=1e-3
    ),
    "momentum": DNNClassifier(**(SMALL | {"optimizer": "momentum"})),
    "ftrl": DNNClassifier(**(SMALL | {"optimizer": "ftrl", "learning_rate": 0.1})),
    "warm start linear": LinearClassifier(warm_start=True),
    "eager": DNNClassifier(**SMALL, execution="eager"),
    "drawn noisy graph numbers": DNNRegressor(**LONGER, **DRAWN, **NOISY, **GRAPH),
    "drawn float32 numbers": RNNRegressor(16, max_iter=60, **DRAWN, **FLOAT32),
    "drawn early stopping": DNNRegressor(
        (16,), **ADAGRAD, **DRAWN, early_stopping=True
    ),
}

_EQUIVALENCE = "check_sample_weight_equivalence_on_{}_data"
WEIGHTS = {_EQUIVALENCE.format("dense"), _EQUIVALENCE.format("sparse")}
# Sums of weighted rows are rounded in another way than those of repeated rows. They are
# compared with the tolerance of float32 in test_sample_weight.py.
ROUNDED = {
    "float32": DNNClassifier(**SMALL, **FLOAT32),
    "float32 linear": LinearClassifier(max_iter=60, **FLOAT32),
    "float32 wide and deep": DNNLinearCombinedRegressor(
        (16,), **DNN_ADAGRAD, max_iter=60, **FLOAT32
    ),
}
# The random numbers of training are not drawn for the same rows. Predictions are compared
# in the mean over many seeds in test_sample_weight.py.
RANDOM = {
    "dropout": DNNClassifier(**LONGER, dropout=0.2),
    "noisy numbers": DNNRegressor(**LONGER, **NOISY),
    "mini-batches": DNNClassifier(**SMALL, batch_size=8),
    "mini-batches numbers": DNNRegressor(**SMALL, batch_size=8),
    "mini-batches adam": DNNClassifier(**(SMALL | ADAM), batch_size=8),
}
WITHOUT = {
    **{name: (estimator, WEIGHTS) for name, estimator in (ROUNDED | RANDOM).items()},
    # Copies of a row come to both sides of the split, which a weight cannot do.
    "early stopping": (DNNClassifier((16,), **ADAGRAD, early_stopping=True), WEIGHTS),
    "early stopping numbers": (
        DNNRegressor((16,), **ADAGRAD, early_stopping=True),
        WEIGHTS,
    ),
    # They fit one object twice and expect the same, where a warm start goes on. What it
    # does is compared with one longer fit in adapters/test_fit.py.
    "warm start": (
        DNNClassifier(**SMALL, warm_start=True),
        {
            "check_classifiers_multilabel_representation_invariance",
            "check_supervised_y_2d",
        },
    ),
    "warm start numbers": (
        DNNRegressor(**LONGER, warm_start=True),
        {"check_supervised_y_2d"},
    ),
}


@parametrize_with_checks([BY_DAY], xfail_strict=True)
def test_every_check(estimator, check):
    check(estimator)


@pytest.mark.nightly
@pytest.mark.parametrize("title", MORE)
def test_every_check_of_more(title):
    assert_all_pass(MORE[title])


@pytest.mark.nightly
@pytest.mark.parametrize("title", WITHOUT)
def test_all_checks_but_those_spared(title):
    estimator, spared = WITHOUT[title]
    assert_all_pass(estimator, but=spared)
