# SPDX-License-Identifier: Apache-2.0
"""Searches find what those of scikit-learn find."""

import os
import pickle
import signal
import time
from multiprocessing import active_children

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import loguniform
from sklearn import config_context, model_selection
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import FitFailedWarning
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import KFold
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_html_repr

from skest import DNNClassifier, LinearClassifier
from skest.hooks import Hook
from skest.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    HalvingRandomSearchCV,
    RandomizedSearchCV,
    cross_val_predict,
    cross_validate,
    fit_many,
)

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
FOLDS = DNNClassifier(
    (8,), optimizer="adamw", learning_rate=0.01, max_iter=3, random_state=0
)
MODEL = clone(FOLDS).set_params(early_stopping=False)
RATES = {"learning_rate": [0.001, 0.01]}


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    return X[::3], np.array(["bad", "good"])[y[::3]]


@pytest.fixture(scope="module")
def people():
    rng = np.random.default_rng(0)
    word = rng.choice(["a", "b", "c"], 120)
    number = rng.normal(size=120)
    return pd.DataFrame({"word": word, "number": number}), (word == "a") ^ (number > 1)


def assert_same_results(found, expected):
    """All but the seconds."""
    assert list(found) == list(expected)
    for key, values in expected.items():
        if key == "params" or key.startswith("param_"):
            assert list(found[key]) == list(values)
        elif "_time" not in key:
            np.testing.assert_allclose(found[key], values, rtol=1e-9, err_msg=key)


def both(name, *arguments, **options):
    """Our search and that of scikit-learn."""
    ours = {
        "GridSearchCV": GridSearchCV,
        "RandomizedSearchCV": RandomizedSearchCV,
        "HalvingGridSearchCV": HalvingGridSearchCV,
        "HalvingRandomSearchCV": HalvingRandomSearchCV,
    }[name]
    theirs = getattr(model_selection, name)
    return [kind(*arguments, **options) for kind in (ours, theirs)]


def accuracy_and_rows(model, X, y):
    return {"acc": model.score(X, y), "n": len(y)}


def most_accurate(results):
    return int(results["mean_test_acc"].argmax())


SEARCHES = {
    "several scores": lambda: both(
        "RandomizedSearchCV",
        FOLDS,
        {"learning_rate": loguniform(1e-3, 1e-1), "hidden_units": [(4,), (8,)]},
        n_iter=3,
        cv=KFold(2, shuffle=True, random_state=0),
        scoring={"auc": "roc_auc", "loss": "neg_log_loss"},
        refit="loss",
        random_state=0,
        return_train_score=True,
    ),
    "pipeline": lambda: both(
        "GridSearchCV",
        make_pipeline(StandardScaler(), MODEL),
        {
            "standardscaler__with_mean": [True, False],
            "dnnclassifier__learning_rate": [0.001, 0.01],
        },
        cv=2,
        scoring=accuracy_and_rows,
        refit=most_accurate,
    ),
    "frames of a pipeline": lambda: both(
        "GridSearchCV",
        make_pipeline(StandardScaler().set_output(transform="pandas"), MODEL),
        {
            "standardscaler__with_std": [True, False],
            "dnnclassifier__max_iter": [1, 2, 1],
        },
        cv=2,
    ),
    "other estimators beside": lambda: both(
        "GridSearchCV",
        make_pipeline(StandardScaler(), MODEL),
        {"dnnclassifier": [MODEL, LinearClassifier(max_iter=2), LogisticRegression()]},
        cv=2,
    ),
    "halving by rows": lambda: both(
        "HalvingGridSearchCV",
        MODEL,
        RATES,
        cv=2,
        resource="n_samples",
        factor=2,
        min_resources=40,
        random_state=0,
    ),
}


@pytest.mark.parametrize("title", SEARCHES)
def test_as_scikit_learn(title, cancer):
    X, y = cancer
    ours, theirs = (search.fit(X, y) for search in SEARCHES[title]())
    assert_same_results(ours.cv_results_, theirs.cv_results_)
    assert ours.best_params_ == theirs.best_params_
    np.testing.assert_array_equal(ours.predict(X), theirs.predict(X))
    assert vars(ours).keys() - {"ensemble", "time_limit"} == vars(theirs).keys()
    again = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(again.predict(X), ours.predict(X))
    assert clone(ours).get_params().keys() == ours.get_params().keys()
    assert "best_estimator_" in estimator_html_repr(ours)


class Nothing(TransformerMixin, BaseEstimator):
    """Lets everything pass, and fails if it is told to."""

    def __init__(self, fails=False):
        self.fails = fails

    def fit(self, X, y=None):
        if self.fails:
            raise ValueError("It was told to.")
        self.fitted_ = True
        return self

    def transform(self, X):
        return X


def test_weights_and_frames(people):
    X, y = people
    weight = np.linspace(0, 1, len(y))
    ours, theirs = both("GridSearchCV", MODEL, RATES, cv=2)
    ours.fit(X, y, sample_weight=weight)
    theirs.fit(X, y, sample_weight=weight)
    assert_same_results(ours.cv_results_, theirs.cv_results_)
    assert ours.feature_names_in_.tolist() == ["word", "number"]
    with config_context(enable_metadata_routing=True):
        routed = clone(MODEL).set_fit_request(sample_weight=True)
        routed.set_score_request(sample_weight=True)
        for model in (routed, make_pipeline(Nothing(), routed)):
            name = "" if model is routed else "dnnclassifier__"
            grid = {f"{name}learning_rate": [0.001, 0.01]}
            ours, theirs = both("GridSearchCV", model, grid, cv=2)
            numbers = X[["number"]]
            ours.fit(numbers, y, sample_weight=weight)
            theirs.fit(numbers, y, sample_weight=weight)
            assert_same_results(ours.cv_results_, theirs.cv_results_)


@pytest.mark.parametrize(
    "estimator",
    [
        HistGradientBoostingClassifier(random_state=0),
        MLPClassifier((4,), random_state=0),
    ],
)
def test_others_begin_anew_in_each_iteration(estimator, cancer):
    """Their `max_iter` means other things, or their arrays change in place."""
    options = {"max_resources": 9, "min_resources": 3, "cv": 2}
    arguments = estimator, {"learning_rate_init": [0.001, 0.01, 0.1]}
    if not isinstance(estimator, MLPClassifier):
        arguments = estimator, {"learning_rate": [0.001, 0.01, 0.1]}
    ours = HalvingGridSearchCV(*arguments, **options).fit(*cancer)
    theirs = model_selection.HalvingGridSearchCV(
        *arguments, resource="max_iter", **options
    ).fit(*cancer)
    assert_same_results(ours.cv_results_, theirs.cv_results_)


def test_bad_candidates_leave_the_others_alone(people):
    X, y = people
    bad = {"feature_columns": [None, ["no such column"]], "hidden_units": [(4,), "x"]}
    bad = {f"dnnclassifier__{name}": values for name, values in bad.items()}
    model = make_pipeline(Nothing(), MODEL)
    search = GridSearchCV(model, bad, cv=2, error_score=-1.0)
    with pytest.warns(FitFailedWarning, match="Candidate: .*no such column") as caught:
        search.fit(X, y)
    told = [str(w.message) for w in caught if w.category is FitFailedWarning]
    assert "6 fits failed out of a total of 8" in told[0]
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] > 0
    assert (scores[1:] == -1).all()
    assert search.best_index_ == 0
    with pytest.raises((ValueError, TypeError)):
        search.set_params(error_score="raise").fit(X, y)
    with pytest.raises(ValueError, match="Invalid parameter 'nothing'"):
        GridSearchCV(MODEL, {"nothing": [1]}, cv=2).fit(X, y)


def test_a_step_that_fails_and_a_loss_that_is_not_a_number(cancer):
    grid = [
        {"nothing__fails": [True]},
        {"dnnclassifier__activation": [torch.log]},
        {"dnnclassifier__max_iter": [1, 2]},
    ]
    search = GridSearchCV(make_pipeline(Nothing(), MODEL), grid, cv=2)
    with (
        pytest.warns(
            FitFailedWarning, match=r"(?s)It was told to.*NanLoss.*Candidate: .*log"
        ),
        pytest.warns(UserWarning, match="non-finite"),
    ):
        search.fit(*cancer)
    is_nan = np.isnan(search.cv_results_["mean_test_score"])
    assert is_nan.tolist() == [True, True, False, False]


class InTraining(Hook):
    """Does something at the beginning of one of the trainings."""

    def __init__(self, when, act):
        self.n_left, self.act = when, act

    def begin(self, *args):
        self.n_left -= 1
        if self.n_left == 0:
            self.act()

    def __deepcopy__(self, memo):
        return self


def press_ctrl_c():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)  # until the signal has come


def with_hook(when, act):
    return clone(MODEL).set_params(hooks=[InTraining(when, act)])


def test_ctrl_c_returns_what_is_done(cancer, capsys):
    model, grid = with_hook(6, press_ctrl_c), {"max_iter": [1, 2, 3, 4]}
    search = GridSearchCV(model, grid, cv=2, verbose=1)
    with pytest.warns(UserWarning, match=r"early \(Ctrl-C\).* 2 of 4 candidates"):
        search.fit(*cancer)
    assert "2 of 4 candidates done" in capsys.readouterr().out
    assert [c["max_iter"] for c in search.cv_results_["params"]] == [1, 2]
    assert search.predict(cancer[0]).shape == cancer[1].shape
    with pytest.raises(KeyboardInterrupt):
        search.set_params(estimator=with_hook(1, press_ctrl_c)).fit(*cancer)
    with pytest.raises(KeyboardInterrupt):
        cross_validate(with_hook(2, press_ctrl_c), *cancer, cv=3)
    inner = GridSearchCV(with_hook(4, press_ctrl_c), grid, cv=2)
    with pytest.raises(KeyboardInterrupt):
        cross_validate(inner, *cancer, cv=2)
    search.set_params(estimator=with_hook(6, press_ctrl_c), pre_dispatch=2)
    with pytest.warns(UserWarning, match="2 of 4 candidates"):
        search.fit(*cancer)
    model, options = with_hook(5, press_ctrl_c), {"factor": 2, "min_resources": 1}
    options |= {"max_resources": 2, "cv": 2}
    halving = HalvingGridSearchCV(model, RATES, **options)
    with pytest.warns(UserWarning, match=r"early \(Ctrl-C\).* 2 of 3 candidates"):
        halving.fit(*cancer)
    assert halving.n_resources_ == [1, 2]
    assert halving.best_params_["max_iter"] == 1
    halving.set_params(estimator=with_hook(3, press_ctrl_c))
    with pytest.warns(UserWarning, match=r"early \(Ctrl-C\).* 1 of 2 candidates"):
        halving.fit(*cancer)
    assert (halving.n_iterations_, halving.n_resources_) == (1, [1])


def test_time_limit(cancer):
    """The refit comes on top, and may hand jobs of its own to joblib."""
    encode = make_column_transformer((StandardScaler(), [0, 1]), n_jobs=1)
    model = make_pipeline(encode, with_hook(5, lambda: time.sleep(2)))
    grid = {"dnnclassifier__max_iter": [1, 2, 3, 4]}
    options = {"cv": 2, "ensemble": True}
    search = GridSearchCV(model, grid, time_limit=2, **options)
    with pytest.warns(
        UserWarning, match=r"time_limit=2 is over.* [12] of 4 candidates"
    ):
        search.fit(*cancer)
    for found in (search, search.best_estimator_.single_):
        assert found.predict(cancer[0]).shape == cancer[1].shape
    with pytest.raises(
        TimeoutError, match="time_limit=1e-09 is over, and not one candidate is"
    ):
        search.set_params(time_limit=1e-9).fit(*cancer)


def test_time_limit_of_an_outer_search(cancer):
    endless = clone(MODEL).set_params(n_iter_no_change=np.inf, max_iter=10**6)
    inner = GridSearchCV(endless, {"batch_size": [64]}, cv=2)
    search = GridSearchCV(inner, {"refit": [True]}, cv=2, time_limit=0.5)
    with pytest.raises(TimeoutError, match=r"time_limit=0\.5 is over, and not one"):
        search.fit(*cancer)


def test_epochs_go_on_instead_of_beginning_anew(cancer):
    rates = {"learning_rate": [0.0001, 0.001, 0.01]}
    options = {"max_resources": 6, "factor": 2, "min_resources": 2, "cv": 2}
    ours = HalvingGridSearchCV(MODEL, rates, **options).fit(*cancer)
    theirs = model_selection.HalvingGridSearchCV(
        MODEL, rates, resource="max_iter", **options
    ).fit(*cancer)
    assert ours.n_resources_ == theirs.n_resources_ == [2, 4]
    assert_same_results(ours.cv_results_, theirs.cv_results_)
    epochs = []

    class Epochs(Hook):
        def __deepcopy__(self, memo):
            return self

        def begin(self, run):
            epochs.append(run.global_step)

    model = clone(MODEL).set_params(hooks=[Epochs()])
    HalvingGridSearchCV(model, rates, refit=False, **options).fit(*cancer)
    assert np.count_nonzero(epochs) == 4  # the second iteration, of two candidates
    pipeline = make_pipeline(StandardScaler(), MODEL)
    rates = {f"dnnclassifier__{name}": values for name, values in rates.items()}
    resource = "dnnclassifier__max_iter"
    found = HalvingGridSearchCV(pipeline, rates, resource=resource, **options)
    assert found.fit(*cancer).best_params_[resource] == 4


@pytest.mark.parametrize(
    "model, grid",
    [  # a new network in each iteration; a training that has its steps
        (make_pipeline(MODEL), {"dnnclassifier": [MODEL]}),
        (make_pipeline(clone(MODEL).set_params(max_steps=2)), {}),
    ],
    ids=["network in the grid", "max_steps"],
)
def test_what_cannot_go_on_begins_anew(model, grid, cancer):
    grid = {"dnnclassifier__learning_rate": [0.001, 0.01], **grid}
    options = {"max_resources": 4, "min_resources": 2, "factor": 2, "cv": 2}
    options |= {"resource": "dnnclassifier__max_iter", "refit": False}
    ours, theirs = (
        search(model, grid, **options).fit(*cancer)
        for search in (HalvingGridSearchCV, model_selection.HalvingGridSearchCV)
    )
    assert ours.n_resources_ == [2, 4]
    assert_same_results(ours.cv_results_, theirs.cv_results_)


def test_halving_knows_the_number_of_epochs_or_asks(cancer):
    with pytest.raises(ValueError, match="resource='dnnclassifier__max_iter'"):
        HalvingGridSearchCV(make_pipeline(StandardScaler(), MODEL), RATES).fit(*cancer)
    with pytest.raises(ValueError, match="max_resources='auto'.* max_resources=81"):
        HalvingGridSearchCV(DNNClassifier(), RATES, resource="batch_size").fit(*cancer)
    with pytest.raises(ValueError, match="max_resources='auto'.* which is 'many'"):
        HalvingGridSearchCV(DNNClassifier(max_iter="many"), RATES).fit(*cancer)
    assert HalvingGridSearchCV(MODEL, RATES, cv=2).fit(*cancer).max_resources_ == 3
    X, y = (part[:80] for part in cancer)
    model = make_pipeline(StandardScaler(), DNNClassifier((2,)))
    options = {"resource": "dnnclassifier__max_iter", "min_resources": 100, "cv": 2}
    search = HalvingGridSearchCV(model, {}, refit=False, **options)
    assert search.fit(X, y).max_resources_ == 100


@pytest.mark.parametrize("pre_dispatch", ["2*n_jobs", 1])
def test_a_search_says_how_far_it_is(pre_dispatch, cancer, capsys, monkeypatch):
    monkeypatch.setattr("skest.model_selection.tasks._FIRST", 0.0)
    model = clone(MODEL).set_params(verbose=1)
    options = {"cv": 2, "verbose": 1, "pre_dispatch": pre_dispatch}
    search = GridSearchCV(model, RATES, **options).fit(*cancer)
    said = capsys.readouterr().out.splitlines()
    end = said.index("Refitting the best candidate on all rows")
    first, *lines = said[:end]
    assert first == "Fitting 2 folds for each of 2 candidates, totalling 4 fits"
    assert lines[0].startswith("Search: 0 of 2 candidates done, 0 of 4 fits, ")
    assert any(" left" in line for line in lines)
    best = f"2 of 2 candidates done, 4 of 4 fits, best score {search.best_score_:.4g}, "
    assert lines[-1].startswith(f"Search: {best}")
    assert said[end + 1].startswith("Chosen for ")
    assert said[-1].startswith("Epoch ")
    search.set_params(verbose=0, refit=False).fit(*cancer)
    assert capsys.readouterr().out == ""
    cross_validate(model, *cancer, cv=2, verbose=1)
    assert "Cross-validation: 2 of 2 fits, " in capsys.readouterr().out


def test_a_search_warns_once(people):
    X, y = people
    names = X.assign(name=[f"n{i}" for i in range(len(X))])
    with pytest.warns(UserWarning, match="'name' has another value") as caught:
        GridSearchCV(MODEL, RATES, cv=2).fit(names, y)
    said = [w.filename for w in caught if "another value" in str(w.message)]
    assert said == [__file__]


def test_cross_validation_as_scikit_learn(cancer, people):
    options = {"cv": 3, "return_train_score": True, "scoring": ["accuracy", "roc_auc"]}
    for X, y in (cancer, people):
        ours = cross_validate(MODEL, X, y, return_estimator=True, **options)
        theirs = model_selection.cross_validate(MODEL, X, y, **options)
        assert_same_results({k: ours[k] for k in theirs}, theirs)
        pickle.dumps(ours["estimator"])
        for method in ("predict", "predict_proba"):
            np.testing.assert_array_equal(
                cross_val_predict(MODEL, X, y, cv=3, method=method),
                model_selection.cross_val_predict(MODEL, X, y, cv=3, method=method),
            )


@pytest.mark.slow
def test_processes(cancer):
    """Going on, the ensemble and the time limit work across processes."""
    rates = {"learning_rate": [0.0001, 0.001, 0.01]}
    options = {"max_resources": 4, "factor": 2, "min_resources": 2, "cv": 2}
    one, two = (
        HalvingGridSearchCV(MODEL, rates, n_jobs=n_jobs, ensemble=True, **options)
        for n_jobs in (1, 2)
    )
    assert_same_results(two.fit(*cancer).cv_results_, one.fit(*cancer).cv_results_)
    assert two.ensemble_score_ == one.ensemble_score_
    grid = {"learning_rate": [0.01, -1.0], "max_iter": [1]}
    with pytest.warns(FitFailedWarning, match="Candidate: {'learning_rate': -1.0"):
        GridSearchCV(MODEL, grid, cv=2, n_jobs=2).fit(*cancer)
    endless = clone(MODEL).set_params(n_iter_no_change=np.inf)
    grid = {"max_iter": [1, *[10**6] * 99]}
    search = GridSearchCV(endless, grid, cv=2, n_jobs=2, time_limit=5)
    processes = {process.pid for process in active_children()}
    with pytest.warns(UserWarning, match="time_limit=5 is over.* 1 of 100 candidates"):
        search.fit(*cancer)
    # Others would take seconds to start, of the next limit.
    assert processes == {process.pid for process in active_children()} != set()
    with joblib.parallel_config(backend="multiprocessing", n_jobs=2):
        found = GridSearchCV(MODEL, RATES, cv=2).fit(*cancer)
        assert len(fit_many([MODEL, MODEL], *cancer)) == 2
    expected = GridSearchCV(MODEL, RATES, cv=2).fit(*cancer)
    assert_same_results(found.cv_results_, expected.cv_results_)
