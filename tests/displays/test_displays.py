# SPDX-License-Identifier: Apache-2.0
"""Pictures of fitted estimators, and scikit-learn's tools on raw tables."""

import copy
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibrationDisplay
from sklearn.exceptions import NotFittedError
from sklearn.inspection import PartialDependenceDisplay, permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import skest
from skest import feature_columns as fc
from skest.displays import (
    ColumnEffectDisplay,
    EmbeddingDisplay,
    TrainingCurveDisplay,
    WeightsDisplay,
)
from tests._models import single

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(autouse=True)
def closed():
    yield
    matplotlib.pyplot.close("all")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {
            "rooms": rng.integers(1, 6, 400),
            "age": np.where(rng.random(400) < 0.1, np.nan, rng.uniform(0, 90, 400)),
            "size": [f"{s:.1f}" if s > 30 else "" for s in rng.uniform(20, 90, 400)],
            "town": rng.choice(["Bern", "Oslo", "Rome", None], 400),
            "built": pd.Timestamp("2020-01-01")
            + pd.to_timedelta(rng.integers(0, 999, 400), "D"),
        }
    )
    return X, np.where(X["rooms"] + 2 * (X["town"] == "Oslo") > 3, "dear", "cheap")


@pytest.fixture(scope="module")
def model(table):
    return skest.DNNLinearCombinedClassifier(8, max_iter=4, random_state=0).fit(*table)


def lines(display):
    return {line.get_label(): line for line in display.ax_.lines}


def test_the_training_curve_of_a_training_on_all_rows(model):
    display = TrainingCurveDisplay.from_estimator(model)
    drawn = lines(display)
    (training,) = (line for label, line in drawn.items() if "training" in label)
    n_epochs = len(training.get_xdata())
    assert n_epochs == model.n_iter_ == display.kept_epoch
    held_out = drawn["held-out rows"].get_ydata()
    np.testing.assert_array_equal(held_out, -np.array(model.validation_scores_))
    (kept,) = (label for label in drawn if label.startswith(f"kept: epoch {n_epochs}"))
    best = int(np.argmin(held_out)) + 1
    assert kept.endswith(", the end of a cycle") == (best != n_epochs)


def test_a_curve_that_was_not_kept_at_its_best():
    display = TrainingCurveDisplay([3, 2, 1], [2, 1, 2], 3, is_refit=True).plot()
    assert "kept: epoch 3, the end of a cycle" in lines(display)


def test_the_training_curve_of_one_that_goes_on_with_all_rows(table):
    own = {"validation_fraction": 0.5, "max_iter": 10, "random_state": 0}
    display = TrainingCurveDisplay.from_estimator(
        skest.DNNClassifier(8, **own).fit(*table)
    )
    drawn = lines(display)
    n_held_out = len(drawn["held-out rows"].get_ydata())
    assert n_held_out < display.kept_epoch == len(drawn["training"].get_ydata())
    assert f"kept: epoch {display.kept_epoch}, the last on all rows" in drawn
    # What goes on from there holds rows out again, and keeps the best of these epochs.
    again = skest.DNNClassifier(8, warm_start=True, **own).fit(*table).fit(*table)
    display = TrainingCurveDisplay.from_estimator(again)
    assert not any("all rows" in label for label in lines(display))


def test_the_training_curve_of_a_best_state(table):
    X, _ = table
    model = skest.DNNRegressor(
        8, learning_rate=0.05, max_iter=5, early_stopping=True, random_state=0
    ).fit(X[["rooms"]], X["rooms"] * 1000.0)
    display = TrainingCurveDisplay.from_estimator(make_pipeline(model))
    best = int(np.argmax(model.validation_scores_))
    assert display.kept_epoch == best + 1
    # In the unit of the training loss: the variance of the target.
    assert display.validation_losses[best] == 1 - model.best_validation_score_
    assert "training" in lines(display)


def test_the_training_curve_without_held_out_rows(table):
    X, y = table
    model = skest.LinearClassifier(max_iter=2, random_state=0).fit(X[["town"]], y)
    _, ax = matplotlib.pyplot.subplots()
    display = TrainingCurveDisplay.from_estimator(model, ax=ax)
    assert display.ax_ is ax
    assert display.kept_epoch is None
    assert len(ax.lines) == 1


def test_effects_of_all_kinds_of_columns(model, table):
    X, _ = table
    display = ColumnEffectDisplay.from_estimator(model, X, "rooms", max_rows=99)
    assert display.values.tolist() == [1, 2, 3, 4, 5]
    assert display.what == "mean probability of dear"
    assert (np.diff(display.effects) > 0).all()
    other = ColumnEffectDisplay.from_estimator(
        model, X, "rooms", max_rows=99, target="cheap"
    )
    np.testing.assert_allclose(other.effects, 1 - display.effects, rtol=1e-5)

    for name, n_gaps in (
        ("age", X["age"].isna().sum()),
        ("size", (X["size"] == "").sum()),
    ):
        display = ColumnEffectDisplay.from_estimator(model, X, name, grid_resolution=7)
        assert 5 <= len(display.values) <= 7
        rows = X.assign(**{name: X[name][X[name].isna() | (X[name] == "")].iloc[0]})
        assert n_gaps
        assert display.missing_effect == pytest.approx(
            model.predict_proba(rows)[:, 1].mean(), abs=1e-6
        )

    marked = X.assign(size=X["size"].where(X["size"] != "", "?"))  # read as gaps
    display = ColumnEffectDisplay.from_estimator(model, marked, "size")
    assert display.deciles is not None

    display = ColumnEffectDisplay.from_estimator(model, X, "town", max_levels=3)
    assert set(display.values) == {"Bern", "Oslo", "Rome", None}
    assert display.shares.sum() == pytest.approx(1)
    (oslo,) = np.flatnonzero(display.values == "Oslo")
    assert display.effects[oslo] == display.effects.max()
    assert any("missing" in t.get_text() for t in display.ax_.get_yticklabels())

    display = ColumnEffectDisplay.from_estimator(model, X, "built", grid_resolution=4)
    assert display.values[0] > np.datetime64("2020-01-01")
    texts = X["built"].dt.strftime("%Y-%m-%dT%H:%M:%S+00:00")
    texts = X.assign(built=texts.where(X.index > 2))
    drawn = ColumnEffectDisplay.from_estimator(model, texts, "built", grid_resolution=4)
    assert drawn.values.dtype.kind == "M"
    assert drawn.missing_effect is not None


def test_the_title_says_which_of_several(table):
    X, _ = table
    X, towns = X[["rooms", "age"]], X["town"].fillna("none")
    model = skest.LinearClassifier(max_iter=2, random_state=0).fit(X, towns)
    numbers = skest.LinearRegressor(max_iter=2, random_state=0).fit(X, X.fillna(0))
    for draw in (
        lambda m, **options: ColumnEffectDisplay.from_estimator(
            m, X, "rooms", **options
        ),
        lambda m, **options: WeightsDisplay.from_estimator(m, **options),
    ):
        assert draw(model).ax_.get_title() == "class none (one of 4)"
        oslo = draw(model, target="Oslo")
        assert oslo.ax_.get_title() == "class Oslo (one of 4)"
        assert oslo.what.endswith(" Oslo")
        assert draw(numbers, target=1).ax_.get_title() == "number 1"
        with pytest.raises(ValueError, match=r"choose one with target=0 or 1\."):
            draw(numbers)
        with pytest.raises(ValueError, match=r"no target 2; there is 0, 1"):
            draw(numbers, target=2)


def test_effects_on_several_heads(table):
    X = table[0][["rooms", "age"]]
    y = pd.DataFrame({"kind": table[1], "price": 9.5 * X["rooms"]})
    model = single(skest.MultiHeadEstimator, hidden_units=4, max_iter=2).fit(X, y)

    def draw(**options):
        return ColumnEffectDisplay.from_estimator(model, X, "rooms", **options)

    by_name = draw(target="price")
    assert by_name.ax_.get_title() == "target price"
    np.testing.assert_array_equal(by_name.effects, draw(target=1).effects)
    kind = draw(target="kind")
    assert kind.ax_.get_title() == "target kind, class dear"
    assert kind.what == "mean probability of dear"
    np.testing.assert_array_equal(kind.effects, draw(target=0).effects)
    np.testing.assert_allclose(draw(target=("kind", "cheap")).effects, 1 - kind.effects)
    with pytest.raises(ValueError, match="choose one with target='kind' or 'price'"):
        draw()
    with pytest.raises(ValueError, match="no target 'x'; there is 'kind', 'price'"):
        draw(target="x")
    with pytest.raises(ValueError, match="no class 'big'; there is 'cheap', 'dear'"):
        draw(target=("kind", "big"))
    with pytest.raises(ValueError, match="is for classes, and numbers are predicted"):
        draw(target="price", response_method="predict_proba")
    with pytest.raises(ValueError, match="has no mean"):
        draw(target="kind", response_method="predict")

    matrix = np.column_stack([X["rooms"] > 2, X["rooms"] > 4, X["rooms"] * 9.5])
    model = single(skest.DNNEstimator, hidden_units=4, max_iter=2).fit(X, matrix)
    assert draw(target="y1").ax_.get_title() == "target y1, class 1.0"
    np.testing.assert_array_equal(draw(target="y2").effects, draw(target=2).effects)


def test_weights_of_several_heads(table):
    X = table[0][["rooms", "age"]]
    y = pd.DataFrame({"kind": table[1], "price": 9.5 * X["rooms"]})
    model = skest.LinearEstimator(max_iter=9, random_state=0).fit(X, y)

    def draw(target=None):
        return WeightsDisplay.from_estimator(model, target=target)

    assert draw("price").title == "target price"
    kind = draw("kind")
    assert (kind.title, kind.what) == ("target kind, class dear", "weight for dear")
    np.testing.assert_array_equal(draw(("kind", "cheap")).weights, -kind.weights)
    effect = ColumnEffectDisplay.from_estimator(model, X, "rooms", target="price")
    slope = draw("price").weights[0] / X["rooms"].std(ddof=0)
    np.testing.assert_allclose(np.diff(effect.effects), slope, rtol=1e-4)
    with pytest.raises(ValueError, match="choose one with target='kind' or 'price'"):
        draw()


def test_the_effect_is_that_of_scikit_learn(model, table):
    X, _ = table
    ours = ColumnEffectDisplay.from_estimator(
        model, X, "town", max_rows=400, response_method="predict_proba"
    )
    known = X[X["town"].notna()]
    theirs = PartialDependenceDisplay.from_estimator(
        model, known, ["town"], categorical_features=["town"]
    ).pd_results[0]
    ours = ColumnEffectDisplay.from_estimator(model, known, "town")
    expected = dict(zip(theirs["grid_values"][0], theirs["average"][0], strict=True))
    assert dict(zip(ours.values, ours.effects, strict=True)) == pytest.approx(expected)


def test_wrong_effects(model, table):
    X, _ = table
    with pytest.raises(ValueError, match="no column 'x'; there is 'rooms', 'age'"):
        ColumnEffectDisplay.from_estimator(model, X, "x")
    with pytest.raises(ValueError, match="no class 'big'; there is 'cheap', 'dear'"):
        ColumnEffectDisplay.from_estimator(model, X, "age", target="big")
    with pytest.raises(ValueError, match="no mean.*response_method='predict_proba'"):
        ColumnEffectDisplay.from_estimator(model, X, "age", response_method="predict")
    lists = X.assign(town=[["a"]] * len(X))
    with pytest.raises(TypeError, match="Column 'town' holds lists"):
        ColumnEffectDisplay.from_estimator(model, lists, "town")
    with pytest.raises(TypeError, match="of a DataFrame or a dict of arrays; got nd"):
        ColumnEffectDisplay.from_estimator(model, np.eye(3), "x")
    with pytest.raises(NotFittedError):
        ColumnEffectDisplay.from_estimator(skest.DNNClassifier(), X, "age")


def test_weights(model, table):
    X, y = table
    display = WeightsDisplay.from_estimator(model, n_weights=4)
    value = model.estimator_.get_variable_value
    largest = dict(zip(display.names, display.weights, strict=True))
    assert len(largest) == 4
    numbers = model.linear_feature_columns_.columns[0]
    place = numbers.feature_names.index("rooms")
    rooms = value("linear.numbers_weights")[place, 0]
    if model._scale is not None:
        rooms *= model._scale.scale[0]
    assert largest["rooms"] == pytest.approx(rooms)
    other = WeightsDisplay.from_estimator(model, n_weights=4, target="cheap")
    np.testing.assert_array_equal(other.weights, -display.weights)
    with pytest.raises(TypeError, match="DNNClassifier does not have"):
        WeightsDisplay.from_estimator(
            single(skest.DNNClassifier, max_iter=1).fit(X[["rooms"]], y)
        )
    with pytest.raises(TypeError, match="got LogisticRegression"):
        WeightsDisplay.from_estimator(LogisticRegression())


def test_embeddings(table):
    X, y = table
    columns = [
        fc.embedding_column(fc.categorical_column_with_vocabulary_list("town"), 3),
        fc.embedding_column(fc.categorical_column_with_hash_bucket("size", 4), 1),
        fc.numeric_column("rooms"),
    ]
    model = single(skest.DNNEstimator, hidden_units=4, feature_columns=columns)
    search = GridSearchCV(model, {"max_iter": [1]}, cv=2).fit(
        X[["town", "size", "rooms"]], y
    )
    display = EmbeddingDisplay.from_estimator(search, "town")
    assert display.levels == ["Bern", "Oslo", "Rome"]
    vectors = search.best_estimator_.feature_columns_.active[0].weights_
    distance = np.linalg.norm(vectors[0] - vectors[1])  # three points are in a plane
    assert np.linalg.norm(display.points[0] - display.points[1]) == pytest.approx(
        distance
    )
    assert display.explained.sum() == pytest.approx(1)
    assert len(EmbeddingDisplay.from_estimator(search, "size_embedding").levels) == 4
    with pytest.raises(ValueError, match="no embedding of 'rooms'; there is 'town'"):
        EmbeddingDisplay.from_estimator(search, "rooms")


def test_shared_vectors_are_called_what_they_are_for():
    levels = [f"level {i}" for i in range(40)]
    X = pd.DataFrame({"code": [*levels * 30, *[None] * 30]})
    model = skest.DNNClassifier(max_iter=1, random_state=0).fit(
        X, np.arange(len(X)) % 2
    )
    shown = EmbeddingDisplay.from_estimator(model, "code").levels
    assert shown == [*sorted(levels), "(other)", "(missing)"]


def test_without_matplotlib(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib"):
        TrainingCurveDisplay.from_estimator(model)


def test_scikit_learn_looks_at_raw_tables(model, table):
    X, y = table
    found = permutation_importance(model, X[:100], y[:100], n_repeats=2, random_state=0)
    assert X.columns[found.importances_mean.argmax()] == "rooms"
    assert (
        CalibrationDisplay.from_estimator(model, X, y, pos_label="dear").prob_true[0]
        < 0.5
    )
    shown = PartialDependenceDisplay.from_estimator(
        make_pipeline(FunctionTransformer(), model),
        X.astype({"rooms": float}),
        ["rooms"],
    )
    assert (np.diff(shown.pd_results[0]["average"][0]) > 0).all()


def test_shap_takes_raw_tables(model, table):
    shap = pytest.importorskip("shap")
    X, _ = table
    # Without the index it would give the model cells that have lost their names.
    explainer = shap.KernelExplainer(model.predict_proba, X[:20], keep_index=True)
    values = explainer.shap_values(X[:2], nsamples=100, silent=True)
    total = values.sum(axis=1) + explainer.expected_value
    np.testing.assert_allclose(total, model.predict_proba(X[:2]), atol=1e-4)


@pytest.mark.filterwarnings("ignore:X has feature names")
def test_shap_takes_names_away(model, table):
    """It does so in a copy of the model, unless it keeps the index."""
    X, _ = table
    nameless = copy.deepcopy(model)
    nameless.feature_names_in_ = None
    np.testing.assert_array_equal(nameless.predict_proba(X), model.predict_proba(X))
    with pytest.raises(ValueError, match="Column '.*' is not in X, which has 'x0'"):
        nameless.predict_proba(X.to_numpy(dtype=object))
