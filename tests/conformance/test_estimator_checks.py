# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's own checks, with no expected failures."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import (
    check_estimator,
    estimator_checks_generator,
    parametrize_with_checks,
)

from skest import (
    BaselineClassifier,
    BaselineEstimator,
    BaselineRegressor,
    DNNClassifier,
    DNNEstimator,
    DNNLinearCombinedClassifier,
    DNNLinearCombinedEstimator,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearEstimator,
    LinearRegressor,
    ModelFnClassifier,
    ModelFnRegressor,
    MultiHeadEstimator,
    RNNClassifier,
    RNNRegressor,
)
from skest.canned.sdca import LinearSDCA
from skest.heads import PoissonRegressionHead, RegressionHead
from tests.adapters import _model_fns as model_fns

# Small networks, and as many epochs as the checks need, at a learning rate for so few: a
# run takes minutes. The defaults, "auto" for DNNs, are checked below. Steps are replayed
# where there are 60 and more (in mini-batches, and of some regressors) and with "graph".
ADAGRAD = {"optimizer": "adagrad", "learning_rate": 0.2}
DNN_ADAGRAD = {f"dnn_{name}": value for name, value in ADAGRAD.items()}
ESTIMATORS = [
    BaselineClassifier(),
    BaselineRegressor(),
    DNNClassifier((16,), **ADAGRAD, max_iter=15),
    DNNRegressor((16,), **ADAGRAD, max_iter=20),
    LinearClassifier(max_iter=60),
    LinearRegressor(),
    DNNLinearCombinedClassifier((16,), **DNN_ADAGRAD, max_iter=15),
    DNNLinearCombinedRegressor((16,), **DNN_ADAGRAD, max_iter=60),
    RNNClassifier(16, learning_rate=0.1, max_iter=20),
    RNNRegressor(16, max_iter=60),
    BaselineEstimator(),
    DNNEstimator(hidden_units=(16,), **ADAGRAD, max_iter=15),
    LinearEstimator(PoissonRegressionHead()),
    DNNLinearCombinedEstimator(dnn_hidden_units=(16,), **DNN_ADAGRAD, max_iter=15),
    MultiHeadEstimator((16,), **ADAGRAD, max_iter=15),
    # Without an end before the optimum: the order of the rows, which weights replace in
    # one of the checks, matters until there.
    LinearClassifier(optimizer="sdca", max_iter=80, n_iter_no_change=np.inf),
]


# What ``make test`` has not the time for.
MORE = [
    LinearRegressor(loss="huber"),
    DNNRegressor((16,), loss="quantile", **ADAGRAD, max_iter=20, execution="graph"),
    DNNEstimator(RegressionHead(), (16,), **ADAGRAD, max_iter=20),
    # Mini-batches, drawn in proportion to the weights.
    DNNClassifier((16,), **ADAGRAD, batch_size=8, sampling="weighted", max_iter=20),
    DNNRegressor(
        (16,),
        **ADAGRAD,
        batch_size=8,
        sampling="weighted",
        dtype="float32",
        max_iter=20,
    ),
    DNNClassifier(
        (16,),
        dtype="float32",
        dropout=0.2,
        batch_norm=True,
        sampling="weighted",
        **ADAGRAD,
        max_iter=40,
    ),
    LinearRegressor(
        optimizer=LinearSDCA(l2=10.0), max_iter=80, n_iter_no_change=np.inf
    ),
]


WITH_MODEL_FN = [
    ModelFnClassifier(model_fns.with_head, max_iter=40),
    ModelFnRegressor(model_fns.with_head, max_iter=60),
    ModelFnClassifier(model_fns.classes, max_iter=40),
    ModelFnRegressor(model_fns.numbers, max_iter=60),
]

# What a class can fail alone: its own parameters, and what its training learns. How input
# is read and refused is the same code for all, which two of them go through by day.
OF_EVERY_ESTIMATOR = {
    "check_class_weight_classifiers",
    "check_classifier_data_not_an_array",
    "check_classifiers_classes",
    "check_classifiers_multilabel_output_format_decision_function",
    "check_classifiers_multilabel_output_format_predict",
    "check_classifiers_multilabel_output_format_predict_proba",
    "check_classifiers_multilabel_representation_invariance",
    "check_classifiers_one_label_sample_weights",
    "check_classifiers_train",
    "check_decision_proba_consistency",
    "check_estimator_cloneable",
    "check_estimators_partial_fit_n_features",
    "check_estimators_pickle",
    "check_estimators_unfitted",
    "check_fit_idempotent",
    "check_get_params_invariance",
    "check_methods_subset_invariance",
    "check_no_attributes_set_in_init",
    "check_non_transformer_estimators_n_iter",
    "check_parameters_default_constructible",
    "check_regressor_multioutput",
    "check_regressors_int",
    "check_regressors_train",
    "check_sample_weight_equivalence_on_dense_data",
    "check_sample_weight_equivalence_on_sparse_data",
}
IN_FULL = {DNNClassifier, DNNRegressor}


def by_day_and_night(estimators, in_full=()):
    """Return all checks; those of input at night, except for `in_full`."""
    return [
        pytest.param(
            each,
            check,
            id=f"{type(each).__name__}-{check.func.__name__}",
            marks=()
            if each_in_full or check.func.__name__ in OF_EVERY_ESTIMATOR
            else pytest.mark.nightly,
        )
        for estimator in estimators
        for each_in_full in [type(estimator) in in_full]
        for each, check in estimator_checks_generator(estimator)
    ]


@pytest.mark.parametrize(
    ("estimator", "check"), by_day_and_night(ESTIMATORS + WITH_MODEL_FN, IN_FULL)
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.nightly
@parametrize_with_checks(MORE, xfail_strict=True)
def test_scikit_learn_checks_of_more(estimator, check):
    check(estimator)


def with_defaults(estimator):
    """An estimator of the same class; a model function has no default."""
    given = {"model_fn": getattr(estimator, "model_fn", None)}
    return type(estimator)(**{name: value for name, value in given.items() if value})


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    {type(e): with_defaults(e) for e in ESTIMATORS + WITH_MODEL_FN}.values(),
    ids=lambda estimator: type(estimator).__name__,
)
def test_scikit_learn_checks_with_default_parameters(estimator):
    results = check_estimator(estimator, on_skip=None)
    assert {result["status"] for result in results} == {"passed"}
