# SPDX-License-Identifier: Apache-2.0
"""What a fitted estimator offers, and how fit behaves."""

import pickle
import re

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import ClassifierMixin, clone
from sklearn.compose import make_column_transformer
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.pipeline import make_pipeline

from skest import DNNClassifier, DNNRegressor, LinearClassifier, RunConfig
from skest import feature_columns as fc
from tests.adapters.conftest import make


@pytest.fixture
def columns():
    city = fc.categorical_column_with_vocabulary_list("city")
    return fc.FeatureColumns(
        [
            ("age", fc.numeric_column("age", normalizer="standard")),
            ("city", fc.embedding_column(city, dimension=2)),
        ]
    )


def test_classifier_learns_a_mixed_table(classifier_class, table):
    X, y = table
    model = make(classifier_class, max_iter=70, batch_size=32).fit(X, y)
    floor = 0.6 if classifier_class.__name__ == "LinearClassifier" else 0.85
    assert model.score(X, y) > floor
    probability = model.predict_proba(X)
    assert probability.shape == (200, 2)
    np.testing.assert_allclose(probability.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_array_equal(model.predict(X), probability.argmax(axis=1))
    np.testing.assert_allclose(
        model.predict_log_proba(X), np.log(probability), rtol=1e-4, atol=1e-5
    )
    assert model.decision_function(X).shape == (200,)


@pytest.mark.parametrize(
    ("mode", "n_rows"), [(torch.no_grad, 1_100), (torch.inference_mode, 120)]
)
def test_fit_and_predict_where_gradients_are_off(mode, n_rows):
    X = np.random.default_rng(0).normal(size=(n_rows, 3))
    y = X[:, 0] > 0
    outside = DNNClassifier((4,), max_iter=2, random_state=0).fit(X, y)
    with mode():
        inside = DNNClassifier((4,), max_iter=2, random_state=0).fit(X, y)
        probability = outside.predict_proba(X)
    np.testing.assert_array_equal(inside.predict_proba(X), probability)
    np.testing.assert_array_equal(outside.predict_proba(X), probability)


def test_a_column_vector_is_warned_of_once(table):
    X, y = table
    with pytest.warns(DataConversionWarning, match="column-vector") as said:
        make(DNNClassifier, max_iter=1).fit(X, pd.DataFrame({"y": y}))
    assert len(said) == 1


def test_fitted_attributes(table, columns):
    X, y = table
    model = make(DNNClassifier, feature_columns=columns, batch_size=50).fit(X, y)
    assert model.n_features_in_ == 4
    assert model.feature_names_in_.tolist() == list(X.columns)
    assert model.n_iter_ == 20
    assert model.n_steps_ == 80
    assert len(model.loss_curve_) == 20
    assert model.loss_ == model.loss_curve_[-1] < model.loss_curve_[0]
    assert model.validation_scores_ is None
    assert model.model_dir_ is None
    fitted = dict(model.feature_columns_.columns_)["city"]
    assert list(fitted.categorical_column_.vocabulary_) == ["Bern", "Oslo", "Rome"]
    assert not hasattr(columns, "columns_"), "the caller's object stays unfitted"
    names = model.estimator_.get_variable_names()
    assert "inputs.city_embedding_weights" in names
    assert "global_step" in names


def test_learned_vectors_in_pipelines(table, columns):
    X, y = table
    model = make(DNNClassifier, feature_columns=columns).fit(X, y)
    vectors = model.feature_columns_
    expected = vectors.transform(X)
    for chain in (
        make_pipeline(vectors, LogisticRegression()),
        make_column_transformer((vectors, list(X))),
    ):
        with pytest.raises((ValueError, NotFittedError), match="FrozenEstimator"):
            chain.fit(X, y)
        np.testing.assert_array_equal(vectors.transform(X), expected)
    frozen = FrozenEstimator(vectors)
    for chain in (
        make_pipeline(frozen, "passthrough"),
        make_column_transformer((frozen, list(X))),
    ):
        np.testing.assert_array_equal(clone(chain).fit(X, y).transform(X), expected)
        names = chain.fit(X, y).get_feature_names_out()
        assert all("age" in name or "city_embedding" in name for name in names)
    assert make(DNNClassifier, feature_columns=vectors).fit(X, y).score(X, y) > 0.5


def test_evaluate_returns_the_metrics_of_the_head(table):
    X, y = table
    model = make(DNNClassifier).fit(X, y)
    metrics = model.evaluate(X, y)
    assert metrics["accuracy"] == pytest.approx(model.score(X, y))
    assert {"auc", "average_loss", "loss", "precision", "recall"} <= metrics.keys()
    weight = (y == 1).astype(float)
    assert model.evaluate(X, y, weight)["label/mean"] == 1
    model.set_params(hidden_units=(3,), dropout=0.5)  # of the next fit
    assert model.evaluate(X, y) == metrics


def test_early_stopping_restores_the_best_state(table):
    X, y = table
    model = make(
        DNNClassifier,
        early_stopping=True,
        max_iter=20,
        n_iter_no_change=60,
        validation_fraction=0.25,
        batch_size=16,
    ).fit(X, y)
    assert len(model.validation_scores_) == model.n_iter_ == 20
    assert model.best_validation_score_ == max(model.validation_scores_)
    best_epoch = int(np.argmax(model.validation_scores_)) + 1
    assert model.n_steps_ == best_epoch * -(-150 // 16)


def minus_loss(model, X, y, weight=None):
    """What early stopping goes by: of numbers R², which is as good."""
    if not isinstance(model, ClassifierMixin):
        return model.score(X, y, weight)
    labels = list(model.classes_)
    return -log_loss(y, model.predict_proba(X), sample_weight=weight, labels=labels)


def test_given_validation_rows(table):
    X, y = table
    X_val, y_val = X[:50], y[:50]
    model = make(DNNClassifier, n_iter_no_change=60, max_iter=10)
    model.fit(X[50:], y[50:], X_val=X_val, y_val=y_val)
    assert minus_loss(model, X_val, y_val) == pytest.approx(
        model.best_validation_score_
    )
    weight = np.arange(50.0)
    model.fit(X, y, X_val=X_val, y_val=y_val, sample_weight_val=weight)
    assert minus_loss(model, X_val, y_val, weight) == pytest.approx(
        model.best_validation_score_
    )
    with pytest.raises(ValueError, match="'X_val' and 'y_val' must be given together"):
        model.fit(X, y, X_val=X_val)
    with pytest.raises(ValueError, match="but early_stopping=False"):
        model.set_params(early_stopping=False).fit(X, y, X_val=X_val, y_val=y_val)
    with pytest.raises(ValueError, match="'sample_weight_val' needs"):
        model.fit(X, y, sample_weight_val=weight)


def test_partial_fit_goes_on(classifier_class, blobs):
    X, y = blobs
    model = make(classifier_class)
    for _ in range(20):
        model.partial_fit(X, y, classes=[0, 1, 2])
    assert (model.n_iter_, len(model.loss_curve_)) == (20, 20)
    assert model.score(X, y) > 0.8
    with pytest.raises(ValueError, match=r"not among the classes: \[7\]"):
        model.partial_fit(X, np.where(y == 2, 7, y))
    with pytest.raises(AttributeError, match="no attribute 'partial_fit'") as error:
        model.set_params(early_stopping=True).partial_fit(X, y)
    assert "does not support early_stopping=True" in str(error.value.__cause__)


def test_clones_do_not_share_a_model_dir(table, tmp_path):
    X, y = table
    model = make(DNNClassifier, config=RunConfig(model_dir=tmp_path), max_iter=2)
    first = model.fit(X, y).model_dir_
    second = clone(model).fit(X, y).model_dir_
    assert first != second
    assert {first.parent, second.parent} == {tmp_path}
    assert model.estimator_.latest_checkpoint().parent == first
    assert model.n_iter_ == 2


def test_verbose_says_what_was_chosen_and_why(table, capsys):
    model = DNNClassifier(4, max_iter=2, verbose=1, random_state=0).fit(*table)
    title, head, *lines = capsys.readouterr().out.splitlines()
    assert title == f"Chosen for {len(table[0])} rows"
    assert head.split() == ["parameter", "value", "why"]
    told = dict(line.split(maxsplit=1) for line in lines[: len(model.auto_params_)])
    assert told.keys() == model.auto_params_.keys()
    assert told["early_stopping"].split(maxsplit=1) == [
        "True",
        "rows are held out from 60 rows on",
    ]
    assert told["learning_rate"].split(maxsplit=1) == [
        "0.002",
        "starts high and falls to almost zero in each cycle",
    ]
    at_once = {"max_iter": 1, "verbose": 1, "early_stopping": False}
    scheduler = torch.optim.lr_scheduler.ConstantLR
    DNNClassifier(4, lr_scheduler=scheduler, **at_once).fit(*table)
    assert "0.002  where the given schedule starts" in capsys.readouterr().out
    DNNClassifier(4, optimizer=torch.optim.Adam, **at_once).fit(*table)
    assert "None   that of the given optimizer" in capsys.readouterr().out


def test_verbose_prints_a_line_an_epoch(table, capsys):
    X, y = table
    make(DNNClassifier, max_iter=3).fit(X, y)
    assert capsys.readouterr().out == ""
    make(DNNClassifier, max_iter=3, verbose=1, early_stopping=True).fit(X, y)
    *_, one, _, three = capsys.readouterr().out.splitlines()
    speed = r"validation loss [\d.]+, [\d,]+ examples/s, up to \d+ s left"
    assert re.fullmatch(rf"Epoch 1/3: loss [\d.]+, {speed}", one)
    assert three.startswith("Epoch 3/3: ")
    assert "left" not in three


@pytest.mark.parametrize("n_rows", [120, 1000])  # by folds, and with one part held out
def test_the_time_left_is_that_of_all_trainings_of_a_fit(n_rows, capsys):
    X, y = np.random.default_rng(0).normal(size=(n_rows, 2)), np.arange(n_rows) % 2
    DNNClassifier(4, max_iter=3, verbose=1, random_state=0).fit(X, y)
    lines = [s for s in capsys.readouterr().out.splitlines() if s.startswith("Epoch")]
    assert len(lines) > 2
    assert all(line.endswith(" left") for line in lines[:-1])
    assert not lines[-1].endswith(" left")


def test_dtype(blobs):
    X, y = blobs
    assert make(DNNClassifier).fit(X, y).predict_proba(X).dtype == np.float64
    X32 = X.astype(np.float32)
    assert make(DNNClassifier).fit(X32, y).predict_proba(X32).dtype == np.float32
    model = make(DNNClassifier, dtype="float32").fit(X, y)
    assert model.predict_proba(X).dtype == np.float32
    table = pd.DataFrame(X, columns=list("abcd")).assign(word="w")
    assert make(DNNClassifier).fit(table, y).predict_proba(table).dtype == np.float32


def test_many_rows_are_held_out_for_early_stopping():
    X = np.random.default_rng(0).normal(size=(10_001, 2)).astype(np.float32)
    y = X[:, 0] > 0
    model = make(LinearClassifier, max_iter=2, batch_size=1000)
    assert len(model.fit(X, y).validation_scores_) == 2
    assert model.fit(X[:10_000], y[:10_000]).validation_scores_ is None


def test_columns_of_an_array_by_number_and_by_name(blobs):
    X, y = blobs
    X = X.copy()
    X[::5, 2] = np.nan
    codes = np.arange(120).reshape(-1, 1) % 3
    columns = [fc.numeric_column(0), fc.numeric_column("x2", default_value="mean")]
    model = make(DNNClassifier, feature_columns=columns, max_iter=3).fit(X, y)
    assert np.isfinite(model.predict_proba(X)).all()
    category = fc.categorical_column_with_vocabulary_list("x0")
    model = make(LinearClassifier, feature_columns=[category], max_iter=3)
    assert model.fit(codes, y).estimator_.get_variable_value("x0_weights").shape == (
        3,
        3,
    )
    words = np.array([["a"], ["b"], ["c"]], dtype=object)[y]
    assert model.set_params(max_iter=60).fit(words, y).score(words, y) == 1


@pytest.mark.parametrize("library", [pd.DataFrame, pl.DataFrame])
def test_columns_of_a_frame_by_position(library, blobs):
    X, y = blobs
    columns = [fc.numeric_column(i, normalizer="standard") for i in (3, 1)]
    model = make(DNNClassifier, feature_columns=columns, dtype="float32")
    frame = library(dict(zip("abcd", X.T, strict=True)))
    expected = clone(model).fit(X, y).predict_proba(X)
    fitted = model.fit(frame, y)
    assert fitted.feature_names_in_.tolist() == list("abcd")
    np.testing.assert_array_equal(fitted.predict_proba(frame), expected)
    columns[0].set_params(key=4)
    with pytest.raises(ValueError, match="Column 4 is not in X, which has 'a', 'b'"):
        clone(model).fit(frame, y)


@pytest.mark.parametrize(("center", "scale"), [(1e6, 1e4)])
def test_regressors_learn_targets_of_any_scale(regressor_class, blobs, center, scale):
    X, _ = blobs
    y = center + scale * X[:, 0]
    model = make(regressor_class, max_iter=100).fit(X, y)
    assert model.score(X, y) > 0.9
    metrics = model.evaluate(X, y)
    assert metrics["label/mean"] == pytest.approx(y.mean(), rel=1e-5)
    assert metrics["prediction/mean"] == pytest.approx(y.mean(), abs=scale, rel=1e-5)
    assert metrics["average_loss"] == pytest.approx(
        np.mean((model.predict(X) - y) ** 2), rel=1e-3
    )


@pytest.mark.parametrize(
    ("weights", "validation"), [("class", "fraction"), ("both", "rows")]
)
def test_early_stopping_with_weights(estimator_class, weights, validation, table):
    X, y = table
    params, given = {}, {}
    if weights != "class":
        given["sample_weight"] = np.linspace(0.5, 2, len(y))
    if weights != "sample" and issubclass(estimator_class, ClassifierMixin):
        params["class_weight"] = {0: 1, 1: 9}
    if validation == "rows":
        given |= {"X_val": X[:30], "y_val": y[:30]}
    model = make(estimator_class, early_stopping=True, max_iter=3, **params)
    model.fit(X, y, **given)
    assert len(model.validation_scores_) == 3
    if validation == "rows":  # weights of the classes are for training
        assert model.best_validation_score_ == pytest.approx(
            minus_loss(model, X[:30], y[:30]), rel=1e-4
        )


def test_a_warm_start_of_another_network_is_refused(blobs):
    model = make(DNNClassifier, max_iter=1, warm_start=True).fit(*blobs)
    with pytest.raises(ValueError, match=r"(?s)hidden_0.*by fit with warm_start=False"):
        model.set_params(hidden_units=(3,)).fit(*blobs)


@pytest.mark.parametrize("how", ["partial_fit", "warm_start"])
def test_going_on_equals_fitting_at_once(estimator_class, how, table):
    X, y = table
    params = {"batch_size": 30, "tol": 0.0}
    for name in ("dropout", "dnn_dropout"):
        if name in estimator_class().get_params():
            params[name] = 0.3
    at_once = make(estimator_class, max_iter=4, **params).fit(X, y)
    model = make(estimator_class, max_iter=1, warm_start=True, **params)
    for _ in range(4):
        model.partial_fit(X, y) if how == "partial_fit" else model.fit(X, y)
    np.testing.assert_array_equal(model.predict(X), at_once.predict(X))
    assert model.loss_curve_ == at_once.loss_curve_


def test_activations_of_the_user(blobs):
    X, y = blobs
    shared = torch.nn.PReLU(dtype=torch.float64)
    state = torch.get_rng_state()
    for activation in (shared, lambda x: torch.nn.functional.dropout(x, 0.5)):
        a, b = (make(DNNClassifier, activation=activation).fit(X, y) for _ in range(2))
        assert a.loss_curve_ == b.loss_curve_
    assert shared.weight.item() == 0.25
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("given", [True, False], ids=["given rows", "a fraction"])
def test_a_warm_start_does_not_lose_the_best_state(table, given):
    X, y = table
    rows = {"X_val": X[150:], "y_val": y[150:]} if given else {}
    model = make(
        DNNClassifier, early_stopping=True, warm_start=True, max_iter=20, batch_size=16
    ).fit(X[:150], y[:150], **rows)
    best, n_steps = model.best_validation_score_, model.n_steps_
    before = model.predict_proba(X)
    # Steps of this size make the network worse at once.
    model.set_params(learning_rate=1e3, max_iter=3).fit(X[:150], y[:150], **rows)
    assert max(model.validation_scores_[-3:]) < best
    assert model.best_validation_score_ == max(model.validation_scores_) == best
    assert model.n_steps_ == n_steps
    np.testing.assert_array_equal(model.predict_proba(X), before)


def test_a_warm_start_is_judged_by_the_present_rows(table):
    X, y = table
    model = make(DNNClassifier, warm_start=True, batch_size=16)
    model.fit(X[:150], y[:150], X_val=X[150:], y_val=y[150:])
    before = minus_loss(model, X[100:150], y[100:150])
    model.set_params(learning_rate=1e3, max_iter=3)
    model.fit(X[:100], y[:100], X_val=X[100:150], y_val=y[100:150])
    assert model.best_validation_score_ == pytest.approx(before)
    assert minus_loss(model, X[100:150], y[100:150]) == pytest.approx(before)


def test_numbers_with_a_large_offset():
    rng = np.random.default_rng(0)
    x = 1e9 + rng.normal(size=400)
    X = pd.DataFrame({"x": x, "word": ["a", "b"] * 200})
    y = x > 1e9
    assert make(DNNClassifier, max_iter=30).fit(X, y).score(X, y) > 0.95


def test_a_rare_class_may_be_held_out():
    X = np.random.default_rng(0).normal(size=(60, 2))
    y = np.arange(60) % 2
    y[0] = 2
    for seed in range(6):
        model = make(
            DNNClassifier,
            class_weight="balanced" if seed % 2 else {0: 1.0, 1: 2.0, 2: 3.0},
            early_stopping=True,
            validation_fraction=0.5,
            random_state=seed,
            max_iter=1,
        )
        assert model.fit(X, y).classes_.tolist() == [0, 1, 2]


def test_classes_whose_rows_weigh_nothing_are_classes():
    X, y = np.random.default_rng(0).normal(size=(90, 2)), np.repeat(["a", "b", "c"], 30)
    own = {"max_iter": 10, "learning_rate": 0.02, "random_state": 0}
    network = DNNClassifier((8,), n_members=1, **own)
    for model in (network, LinearClassifier()):
        model.set_params(class_weight={"a": 1, "b": 1, "c": 1, "of another fold": 1})
        model.fit(X, y, sample_weight=y != "a")
        assert model.classes_.tolist() == ["a", "b", "c"]
        assert set(model.predict(X)) <= {"b", "c"}
    model.fit(X, y, sample_weight=y == "a")
    assert set(model.predict(X)) == {"a"}


def test_a_list_that_grows_after_fit_changes_no_model():
    X, layers = np.random.default_rng(0).normal(size=(30, 2)), [4]
    model = DNNRegressor(layers, max_iter=1).fit(X, X[:, 0])
    layers.append(3)
    for fitted in (model, pickle.loads(pickle.dumps(model))):
        assert fitted.predict(X).shape == (30,)
