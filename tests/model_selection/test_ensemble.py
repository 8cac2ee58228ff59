# SPDX-License-Identifier: Apache-2.0
"""Ensembles of models that a search has trained anyway."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import VotingClassifier, VotingRegressor
from sklearn.exceptions import DataConversionWarning
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.metrics import log_loss, mean_squared_error
from sklearn.model_selection import KFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from skest import DNNClassifier, DNNRegressor, LinearRegressor
from skest.exceptions import ExportError
from skest.model_selection import (
    EnsembleClassifier,
    EnsembleRegressor,
    GridSearchCV,
    HalvingGridSearchCV,
    RandomizedSearchCV,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
# Without folds: here every training counts six times otherwise.
PLAIN = {"learning_rate": 0.01, "max_iter": 5, "early_stopping": False}
MODEL = DNNClassifier((8,), **PLAIN, random_state=0)
GRID = [
    {"hidden_units": [(4,)], "learning_rate": [0.003]},
    {"hidden_units": [(16,)], "learning_rate": [0.003, 0.03]},
]


@pytest.fixture(scope="module")
def table():
    """Words and numbers, and three classes."""
    rng = np.random.default_rng(0)
    word, number = rng.choice(["a", "b", "c"], 150), rng.normal(size=150)
    X = pd.DataFrame({"word": word, "number": number, "n": rng.integers(0, 9, 150)})
    return X, np.where(number > 0.5, "high", np.where(word == "a", "a", "other"))


def held_out(search, X, y, method):
    """The mean of the predictions of the members for the rows that they have not seen."""
    ensemble, n_splits = search.best_estimator_, search.n_splits_
    total, weights = 0.0, ensemble.weights[::n_splits]
    for i, weight in enumerate(weights):
        found = [None] * len(y)
        for k, (_, test) in enumerate(KFold(n_splits).split(X)):
            member = ensemble.estimators_[i * n_splits + k]
            for row, value in zip(
                test, getattr(member, method)(X.iloc[test]), strict=True
            ):
                found[row] = value
        total = total + weight * np.array(found)
    return total / sum(weights)


@pytest.mark.parametrize("scoring", [None, "neg_log_loss", ["accuracy", "roc_auc_ovr"]])
def test_the_score_of_the_ensemble_is_of_rows_it_has_not_seen(scoring, table):
    X, y = table
    refit = scoring[0] if isinstance(scoring, list) else True
    cv = KFold(3)
    search = GridSearchCV(MODEL, GRID, cv=cv, scoring=scoring, refit=refit, ensemble=4)
    search.fit(X, y)
    mean = held_out(search, X, y, "predict_proba")
    classes = search.classes_
    by_split = [
        -log_loss(y[test], mean[test], labels=classes)
        if scoring == "neg_log_loss"
        else np.mean(classes[mean[test].argmax(axis=1)] == y[test])
        for _, test in cv.split(X)
    ]
    assert search.ensemble_score_ == pytest.approx(np.mean(by_split), rel=1e-6)
    assert (
        search.best_score_
        == search.cv_results_[
            f"mean_test_{refit if scoring and refit is not True else 'score'}"
        ].max()
    )


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_better_than_its_candidates_for_rows_held_out(kind, table):
    X, y = table
    classes = kind == "classes"
    numbers = DNNRegressor((8,), **PLAIN, random_state=0)
    model, y = (MODEL, y) if classes else (numbers, X["n"] * 3.0)
    scoring = "neg_log_loss" if classes else "neg_mean_squared_error"
    grid = GRID if classes else {"hidden_units": [(4,), (16,)]}
    cv = KFold(3)
    search = GridSearchCV(model, grid, cv=cv, scoring=scoring, ensemble=8).fit(X, y)
    ensemble = search.best_estimator_
    assert type(ensemble) is (EnsembleClassifier if classes else EnsembleRegressor)
    if classes:
        loss = log_loss(y, held_out(search, X, y, "predict_proba"))
    else:
        loss = mean_squared_error(y, held_out(search, X, y, "predict"))
    assert loss <= -search.best_score_ + 1e-6  # probabilities are float32
    assert ensemble.single_.get_params()["hidden_units"] in [(4,), (16,)]
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.predict(X), ensemble.predict(X))
    default = clone(search).set_params(scoring=None).fit(X, y)
    assert default.best_estimator_.weights == ensemble.weights


@pytest.mark.parametrize("scoring", ["roc_auc_ovr", ["accuracy", "neg_log_loss"]])
def test_the_score_of_the_search_decides(scoring, table):
    refit = "neg_log_loss" if isinstance(scoring, list) else True
    options = {"n_iter": 2, "cv": 2, "random_state": 0, "ensemble": True}
    search = RandomizedSearchCV(MODEL, GRID, scoring=scoring, refit=refit, **options)
    search.fit(*table)
    assert search.predict_proba(table[0]).shape == (150, 3)
    assert sorted(search.classes_) == sorted(set(table[1]))


def test_other_estimators_pipelines_and_halving(table):
    X, y = load_iris(return_X_y=True)
    model = make_pipeline(StandardScaler(), MODEL)
    grid = {"dnnclassifier": [MODEL, LogisticRegression()]}
    search = GridSearchCV(model, grid, cv=3, ensemble=4).fit(X, y)
    assert search.score(X, y) > 0.9
    with pytest.raises(
        ExportError, match="without steps before them; got Pipeline.*do what"
    ):
        search.best_estimator_.export("nowhere")
    halving = HalvingGridSearchCV(MODEL, GRID, cv=2, factor=2, ensemble=True)
    assert len(halving.fit(*table).best_estimator_.estimators_) % 2 == 0


def test_failed_candidates_and_rare_classes(table):
    X, y = table
    y = y.astype(object)
    y[-1] = "once"
    with pytest.warns(UserWarning):
        search = GridSearchCV(MODEL, {"hidden_units": [(4,), "x"]}, cv=3, ensemble=True)
        search.fit(X, y)
    members = search.best_estimator_.estimators_
    assert len(members) == 2  # the third was trained without that row
    with pytest.warns(UserWarning, match="There is no ensemble:.* no part has all"):
        GridSearchCV(
            MODEL, {}, cv=[(np.arange(100), np.arange(100, 150))], ensemble=2
        ).fit(X, y)


def test_members_have_the_numbers_of_their_candidates(table):
    X, y = table
    first = np.arange(150) < 75
    masks = [(first, ~first), (~first, first)]
    pipeline = Pipeline([("model", MODEL)])
    # One fails, and one has no probabilities.
    ridge = RidgeClassifier(alpha=1e9)
    grid = [{"model__hidden_units": ["x", (8,)]}, {"model": [ridge]}]
    with pytest.warns(
        UserWarning, match=r"lacks the candidates \[2\]: without predict"
    ):
        search = GridSearchCV(pipeline, grid, cv=masks, ensemble=np.True_)
        search.fit(X[["number"]], y)
    names = [name for name, _ in search.best_estimator_.estimators]
    assert names == ["candidate 1, split 0", "candidate 1, split 1"]
    ridge.set_params(alpha=1.0)
    poor = clone(MODEL).set_params(max_iter=1, learning_rate=1e-6)
    with pytest.warns(UserWarning, match="no ensemble: the best candidate has no pred"):
        search = GridSearchCV(pipeline, {"model": [poor, ridge]}, ensemble=True)
        search.fit(X[["number"]], y)
    assert type(search.best_estimator_[-1]) is RidgeClassifier


def needs_epochs(model, X, y):
    return {"n_iter": model.n_iter_}


def test_a_score_that_needs_more_than_predictions(table):
    options = {"cv": 2, "ensemble": 2, "scoring": needs_epochs}
    search = GridSearchCV(MODEL, {}, refit="n_iter", **options)
    message = "no ensemble.* a scorer may use predictions only; .* has no 'n_iter_'"
    with pytest.warns(UserWarning, match=message):
        search.fit(*table)
    assert type(search.best_estimator_) is DNNClassifier
    search.set_params(refit=lambda results: 0).fit(*table)
    assert type(search.best_estimator_) is EnsembleClassifier  # by the loss


@pytest.mark.parametrize("dtype", ["boolean", "int64[pyarrow]", "category"])
def test_classes_are_those_of_a_single_estimator(dtype, table):
    X, y = table
    y = pd.Series(y == "high").astype(dtype)
    search = GridSearchCV(MODEL, {}, cv=2, ensemble=True).fit(X, y)
    single = search.best_estimator_.single_
    for ensemble in (search, EnsembleClassifier([("a", MODEL)]).fit(X, y)):
        assert ensemble.classes_.dtype == single.classes_.dtype
        np.testing.assert_array_equal(ensemble.classes_, single.classes_)
        assert ensemble.predict(X).dtype == single.predict(X).dtype
        assert ensemble.score(X, y) > 0.5


def test_a_column_of_numbers(table):
    X, y = table[0][["number"]], table[0]["n"].to_numpy(float)
    search = GridSearchCV(Ridge(), {"alpha": [0.1, 1.0]}, cv=2, ensemble=True)
    expected = clone(search).fit(X, y)
    for column in (y.reshape(-1, 1), pd.DataFrame(y)):
        with pytest.warns(DataConversionWarning):
            search.fit(X, column)
        np.testing.assert_array_equal(search.predict(X), expected.predict(X))
        assert search.ensemble_score_ == expected.ensemble_score_


def test_sums_of_probabilities_are_1_for_every_scorer(table):
    def loss(model, X, y):
        sums.append(model.predict_proba(X).sum(axis=1))
        return -log_loss(y, model.predict_proba(X))

    sums = []
    GridSearchCV(MODEL, {}, cv=2, scoring=loss, ensemble=2).fit(*table)
    for of_ensemble in sums[2:]:  # the first are of the candidate
        np.testing.assert_allclose(of_ensemble, 1, atol=1e-15)


def test_what_cannot_be_averaged_is_refused_before_training(table):
    X, y = table
    with pytest.raises(ValueError, match="one class for each row.* got DNNClassifier"):
        GridSearchCV(MODEL, GRID, ensemble=True).fit(X, np.eye(3)[X["n"] % 3])
    with pytest.raises(ValueError, match="got DNNRegressor and several numbers for"):
        GridSearchCV(DNNRegressor(), {}, ensemble=True).fit(X, X[["number", "n"]])
    with pytest.raises(ValueError, match="needs a classifier.* got KMeans without y"):
        GridSearchCV(KMeans(), {}, ensemble=True).fit(X[["number"]])
    with pytest.raises(ValueError, match="it needs 'refit'; got ensemble=True"):
        GridSearchCV(MODEL, GRID, ensemble=True, refit=False).fit(X, y)
    with pytest.raises(ValueError, match="'ensemble' parameter of GridSearchCV"):
        GridSearchCV(MODEL, GRID, ensemble=0).fit(X, y)


EXPORTED = {
    "classes": (DNNClassifier((8,), max_iter=2, random_state=0), "classes"),
    "numbers": (DNNRegressor((8,), **PLAIN, random_state=0), "numbers"),
    "counts": (LinearRegressor(loss="poisson", max_iter=2, random_state=0), "numbers"),
}


@pytest.mark.parametrize("title", EXPORTED)
def test_export_to_one_file(title, table, tmp_path):
    pytest.importorskip("onnxruntime")
    from skest.export import load

    model, kind = EXPORTED[title]
    X, y = table
    y = y if kind == "classes" else X["n"].to_numpy(float)
    search = GridSearchCV(model, {"max_iter": [1, 2]}, cv=2, ensemble=5).fit(X, y)
    ensemble = search.best_estimator_
    loaded = load(ensemble.export(tmp_path))
    assert loaded.predict(X).shape == y.shape
    if kind == "classes":
        found, expected = loaded.predict_proba(X), ensemble.predict_proba(X)
        assert (loaded.predict(X) == ensemble.predict(X)).all()
    else:
        found, expected = loaded.predict(X), ensemble.predict(X)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    assert ensemble.onnx_graph().graph.input[0].name == "word"


def test_export_of_members_that_were_fitted_by_it(table, tmp_path):
    """They have learned numbers of classes, and those dropped do not count."""
    pytest.importorskip("onnxruntime")
    from skest.export import load

    X, _ = table
    y = np.array(["low", "mid", "top"])[X["n"] % 3]
    members = [("a", MODEL), ("b", "drop"), ("c", clone(MODEL).set_params(max_iter=2))]
    ensemble = EnsembleClassifier(members, weights=[1, 5, 2]).fit(X, y)
    loaded = load(ensemble.export(tmp_path))
    assert (loaded.predict(X) == ensemble.predict(X)).all()
    np.testing.assert_allclose(
        loaded.predict_proba(X), ensemble.predict_proba(X), atol=1e-5
    )


def test_seeds_trained_together(table):
    X, y = table
    seeds = [(f"seed {i}", clone(MODEL).set_params(random_state=i)) for i in range(3)]
    ours = EnsembleClassifier(seeds).fit(X, y, sample_weight=np.ones(len(y)))
    theirs = VotingClassifier(seeds, voting="soft")
    theirs.fit(X, y, sample_weight=np.ones(len(y)))
    found = ours.predict_proba(X)
    np.testing.assert_allclose(found, theirs.predict_proba(X), atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1, atol=1e-15)
    assert clone(ours).get_params().keys() == ours.get_params().keys()
    plain = DNNRegressor((4,), max_iter=2, early_stopping=False)
    numbers = [(str(i), clone(plain).set_params(random_state=i)) for i in (0, 1)]
    X, y = load_diabetes(return_X_y=True)
    found = EnsembleRegressor(numbers, weights=[1, 2]).fit(X, y)
    expected = VotingRegressor(numbers, weights=[1, 2]).fit(X, y)
    np.testing.assert_array_equal(found.predict(X), expected.predict(X))


@pytest.mark.filterwarnings("ignore:The y_pro. values do not sum to one")
def test_rows_of_which_no_class_is_likely_leave_the_ensemble():
    rng = np.random.default_rng(0)
    rare = OneVsRestClassifier(DecisionTreeClassifier(random_state=0))
    search = GridSearchCV(rare, {"estimator__max_depth": [2, None]}, cv=3, ensemble=3)
    search.fit(rng.normal(size=(150, 3)), rng.integers(3, size=150))
    assert isinstance(search.best_estimator_, EnsembleClassifier)
