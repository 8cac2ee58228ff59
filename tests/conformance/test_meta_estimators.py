# SPDX-License-Identifier: Apache-2.0
"""The estimators work inside scikit-learn's meta-estimators, on the data it comes with."""

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_linnerud
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_selection import RFE, SelectFromModel
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import PartialDependenceDisplay, permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, brier_score_loss, roc_auc_score
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    TunedThresholdClassifierCV,
    learning_curve,
)
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import (
    ClassifierChain,
    MultiOutputClassifier,
    MultiOutputRegressor,
    RegressorChain,
)
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier

import skest
from skest import feature_columns as fc

ADAGRAD = {"optimizer": "adagrad", "learning_rate": 0.05, "early_stopping": False}
CLASSIFIER = skest.DNNClassifier((16,), **ADAGRAD, max_iter=20, random_state=0)
REGRESSOR = skest.DNNRegressor((16,), **ADAGRAD, max_iter=30, random_state=0)
PLAIN = {"early_stopping": False, "n_members": 1}
WIDE = skest.DNNLinearCombinedClassifier((16,), **PLAIN, max_iter=20, random_state=0)
LINEAR = skest.LinearClassifier(max_iter=20, random_state=0)


@pytest.fixture(scope="module")
def cancer():
    return load_breast_cancer(return_X_y=True)


@pytest.fixture(scope="module")
def cancer_frame():
    """Numbers, and categories that were cut from some of them."""
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    X = X.iloc[:, :8].copy()
    X["size"] = pd.cut(X.pop("mean area"), 4, labels=["xs", "s", "m", "l"])
    X["texture"] = pd.cut(X.pop("mean texture"), 3, labels=["a", "b", "c"]).astype(str)
    return X, y.map({0: "malignant", 1: "benign"})


@pytest.fixture(scope="module")
def diabetes():
    return load_diabetes(return_X_y=True)


@pytest.fixture(scope="module")
def iris():
    return load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def wrong_labels(cancer):
    """Labels of which a part is wrong, and weights of zero for these."""
    X, y = cancer
    is_wrong = np.random.default_rng(0).random(len(y)) < 0.6
    return X, np.where(is_wrong, 1 - y, y), 1.0 - is_wrong, y


# Composition


def test_column_transformer(cancer_frame):
    X, y = cancer_frame
    encode = make_column_transformer(
        (OneHotEncoder(), ["size", "texture"]), remainder=StandardScaler()
    )
    names = fc.categorical_column_with_vocabulary_list("size")
    columns = make_column_transformer((fc.indicator_column(names), ["size"]))
    piped = [make_pipeline(t, clone(CLASSIFIER)) for t in (encode, columns)]
    for model in [*piped, clone(WIDE)]:
        assert model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.85


def test_calibration(wrong_labels):
    X, y, weight, y_true = wrong_labels
    for ensemble in (True, False):
        model = CalibratedClassifierCV(CLASSIFIER, cv=2, ensemble=ensemble)
        model.fit(X, y, sample_weight=weight)
        probability = model.predict_proba(X)[:, 1]
        assert brier_score_loss(y_true, probability) < 0.07  # 0.23 without knowledge


def test_tuned_threshold(cancer):
    X, y = cancer
    rows = np.flatnonzero((y == 1) | (np.arange(len(y)) % 6 == 0))
    X, y = X[rows, 1:3], y[rows]  # few malignant ones, little to tell them by
    model = TunedThresholdClassifierCV(CLASSIFIER, cv=3, scoring="balanced_accuracy")
    tuned = balanced_accuracy_score(y, model.fit(X, y).predict(X))
    plain = balanced_accuracy_score(y, model.estimator_.predict(X))
    assert tuned > plain
    assert model.best_threshold_ != 0.5


def test_transformed_target(diabetes):
    X, y = diabetes
    model = TransformedTargetRegressor(REGRESSOR, func=np.log, inverse_func=np.exp)
    assert model.fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.3
    assert (model.predict(X) > 0).all()


def test_frozen_estimator(cancer):
    X, y = cancer
    fitted = clone(CLASSIFIER).fit(X[::2], y[::2])
    frozen = FrozenEstimator(fitted)
    assert clone(frozen).fit(X, 1 - y).estimator is fitted
    model = CalibratedClassifierCV(frozen).fit(X[1::2], y[1::2])
    assert roc_auc_score(y, model.predict_proba(X)[:, 1]) > 0.98


# Ensembles


def test_stacking_and_voting(iris, wrong_labels):
    X, y = iris
    model = StackingClassifier(
        [("dnn", CLASSIFIER), ("bayes", GaussianNB())], LogisticRegression(), cv=2
    ).fit(X, y)
    assert model.transform(X).shape == (150, 6)
    assert model.score(X, y) > 0.9
    X, y, weight, y_true = wrong_labels
    members = [("dnn", CLASSIFIER), ("linear", LINEAR)]
    voting = VotingClassifier(members, voting="soft").fit(X, y, sample_weight=weight)
    assert voting.score(X, y_true) > 0.9


def test_bagging(wrong_labels, diabetes):
    X, y, weight, y_true = wrong_labels
    model = BaggingClassifier(LINEAR, 5, max_samples=0.5, random_state=0)
    assert model.fit(X, y, sample_weight=weight).score(X, y_true) > 0.9
    X, y = diabetes
    bags = BaggingRegressor(REGRESSOR, 6, random_state=0).fit(X, y)
    assert bags.score(X, y) > 0.3
    assert len({m.random_state for m in bags.estimators_}) == 6


def test_boosting(iris):
    """Boosting lives on sample weights: each member looks at what others got wrong."""
    X, y = iris
    weak = skest.DNNClassifier((2,), **ADAGRAD, max_iter=8, random_state=0)
    boosted = AdaBoostClassifier(weak, n_estimators=8, random_state=0).fit(X, y)
    assert boosted.score(X, y) > clone(weak).fit(X, y).score(X, y)
    assert len(set(boosted.estimator_weights_)) > 1


# Several classes, several targets


def test_several_classes(iris):
    X, y = iris
    names = load_iris().target_names[y]
    one_for_each = OneVsRestClassifier(clone(LINEAR).set_params(max_iter=60))
    assert len(one_for_each.fit(X, names).estimators_) == 3
    assert one_for_each.score(X, names) > 0.85


def test_several_outputs(iris):
    X, y = load_linnerud(return_X_y=True)
    for meta in (MultiOutputRegressor, RegressorChain):
        model = meta(clone(REGRESSOR).set_params(learning_rate=0.2)).fit(X, y)
        assert model.predict(X).shape == y.shape
        assert model.score(X, y) > 0.3
    X, kinds = iris
    labels = np.column_stack([kinds == 0, kinds > 1]).astype(int)
    for meta in (MultiOutputClassifier, ClassifierChain):
        model = meta(LINEAR).fit(X, labels)
        assert model.score(X, labels) > 0.7
        assert np.shape(model.predict_proba(X))[-1] == 2


def test_self_training(cancer):
    X, y = cancer
    known = np.random.default_rng(0).random(len(y)) < 0.1
    model = SelfTrainingClassifier(CLASSIFIER, threshold=0.9)
    model.fit(X, np.where(known, y, -1))
    assert (model.labeled_iter_ > 0).sum() > 100
    assert model.score(X[~known], y[~known]) > 0.9


# Search and validation


GRID = {"learning_rate": [1e-6, 0.05], "hidden_units": [(4,), (16,)]}
HALVING = {"factor": 2, "cv": 2, "random_state": 0}
BY_EPOCHS = {"resource": "max_iter", "min_resources": 4, "max_resources": 16}
SEARCHES = {
    "grid": lambda model, n_jobs: GridSearchCV(model, GRID, cv=2, n_jobs=n_jobs),
    "halving by epochs": lambda model, n_jobs: HalvingGridSearchCV(
        model, GRID, **BY_EPOCHS, **HALVING, n_jobs=n_jobs
    ),
    "halving by rows": lambda model, n_jobs: HalvingGridSearchCV(
        model, GRID, min_resources=100, **HALVING, n_jobs=n_jobs
    ),
}


def check_search(search, X, y):
    search.fit(X, y)
    assert search.best_score_ > 0.9 > 0.75 > np.nanmin(scores_of(search))
    assert search.score(X, y) > 0.9
    assert is_classifier(search)
    assert search.best_params_["learning_rate"] > 1e-3


def scores_of(search):
    return search.cv_results_["mean_test_score"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SEARCHES)
def test_search_in_processes(kind, cancer):
    """Two processes find what one does."""
    in_turn, side_by_side = (SEARCHES[kind](CLASSIFIER, n) for n in (None, 2))
    check_search(side_by_side, *cancer)
    np.testing.assert_allclose(
        scores_of(side_by_side), scores_of(in_turn.fit(*cancer)), rtol=1e-12
    )
    if kind == "halving by epochs":
        assert side_by_side.n_resources_ == [4, 8, 16]
        assert side_by_side.best_estimator_.n_iter_ == 16


def test_fits_in_threads_of_joblib(cancer):
    """Fits from several threads at once give what fits in turn give."""
    in_turn = SEARCHES["grid"](CLASSIFIER, None).fit(*cancer)
    with joblib.parallel_config(backend="threading", n_jobs=3):
        search = SEARCHES["grid"](CLASSIFIER, None)
        check_search(search, *cancer)
    np.testing.assert_array_equal(scores_of(search), scores_of(in_turn))


def test_curve_of_calls_to_partial_fit(cancer):
    X, y = cancer
    model = clone(CLASSIFIER).set_params(batch_size=32)
    _, train, test = learning_curve(
        model, X, y, cv=3, train_sizes=[0.2, 1.0], exploit_incremental_learning=True
    )
    assert train.shape == (2, 3)
    assert test.mean(axis=1)[1] > 0.85


# Selection and inspection


def test_selection_by_coefficients(cancer):
    X, y = cancer
    noise = np.random.default_rng(0).normal(size=(len(y), 10))
    X = StandardScaler().fit_transform(np.hstack([X[:, :5], noise]))
    by_rank = RFE(LINEAR, n_features_to_select=4, step=3).fit(X, y)
    by_size = SelectFromModel(LINEAR, max_features=4, threshold=-np.inf).fit(X, y)
    for selector in (by_rank, by_size):
        assert np.flatnonzero(selector.get_support()).max() < 5
    with pytest.raises(ValueError, match="coef_"):
        RFE(CLASSIFIER).fit(X, y)


def test_inspection(diabetes):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    X, y = diabetes
    names = np.array(load_diabetes().feature_names)
    model = clone(REGRESSOR).fit(X, y)
    importance = permutation_importance(model, X, y, n_repeats=2, random_state=0)
    assert {"bmi", "s5"} <= set(names[np.argsort(importance.importances_mean)[-4:]])
    shown = PartialDependenceDisplay.from_estimator(model, X, [2], grid_resolution=5)
    of_bmi = shown.pd_results[0]["average"][0]
    assert of_bmi[-1] > of_bmi[0] + 20  # the greater the mass, the worse the disease
    matplotlib.pyplot.close("all")
