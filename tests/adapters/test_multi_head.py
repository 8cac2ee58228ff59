# SPDX-License-Identifier: Apache-2.0
"""`MultiHeadEstimator`: several targets of different kinds."""

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.metrics import accuracy_score, r2_score

from skest import DNNClassifier, DNNEstimator, MultiHeadEstimator
from skest.heads import MultiLabelHead, RegressionHead
from tests._models import At
from tests.adapters.conftest import make

N = 120


@pytest.fixture(name="X", scope="module")
def mixed_table():
    return pd.DataFrame(
        {
            "size": np.random.default_rng(0).permutation(np.linspace(-1, 1, N)),
            "kind": np.tile(["a", "b", "c"], N // 3),
        },
        index=np.arange(N) + 1000,
    )


@pytest.fixture(scope="module")
def y(X):
    return pd.DataFrame(
        {
            "sign": np.where(X["size"] > 0, "plus", "minus"),
            "price": 1e4 + 500 * X["size"],
            "visits": np.tile([2, 5, 9], N // 3),
            "is_a": (X["kind"] == "a"),
            "cheap": (X["size"] < -0.5).astype(int),
        }
    )


HEADS = {
    "sign": "classification",
    "price": "regression",
    "visits": "poisson",
    "tags": ("multilabel", ["is_a", "cheap"]),
}


def multi_head(**parameters):
    parameters = {"max_iter": 5, **parameters}
    return make(MultiHeadEstimator, hidden_units=(16,), **parameters)


@pytest.fixture(scope="module")
def fitted(X, y):
    return multi_head(heads=HEADS, max_iter=80).fit(X, y)


def test_a_frame_of_mixed_targets(X, y, fitted):
    predicted = fitted.predict(X)
    assert list(predicted.columns) == list(y.columns)
    assert predicted.index.equals(X.index)
    assert (predicted["sign"] == y["sign"]).mean() > 0.95
    assert r2_score(y["price"], predicted["price"]) > 0.9
    assert np.abs(predicted["visits"] - y["visits"]).max() < 3
    assert (predicted["is_a"] == y["is_a"]).mean() > 0.95
    assert set(predicted["cheap"]) == {0, 1}


def test_probabilities_are_a_list_by_head(X, y, fitted):
    sign, price, visits, tags = fitted.predict_proba(X)
    assert price is None and visits is None
    assert sign.shape == (N, 2) and tags.shape == (N, 2)
    np.testing.assert_allclose(sign.sum(axis=1), 1, rtol=1e-5)
    assert fitted.classes_[0].tolist() == ["minus", "plus"]
    assert fitted.classes_[1] is None


def test_the_score_is_the_weighted_mean_of_the_heads(X, y):
    model = multi_head(
        heads={"sign": "classification", "price": "regression"},
        head_weights={"price": 3.0},
    ).fit(X, y)
    predicted = model.predict(X)
    scores = [
        accuracy_score(y["sign"], predicted["sign"]),
        r2_score(y["price"], predicted["price"]),
    ]
    assert model.score(X, y) == pytest.approx(np.average(scores, weights=[1, 3]))


def test_the_kinds_are_inferred(X, y):
    y = y.assign(many=np.arange(N), stars=pd.array([1, None, 3, 5] * (N // 4), "Int64"))
    model = multi_head().fit(X, y)
    found = {name: type(t).__name__ for name, t in model._target.targets.items()}
    assert found == {
        "sign": "ClassTarget",
        "price": "NumberTarget",
        "visits": "ClassTarget",
        "is_a": "ClassTarget",
        "cheap": "ClassTarget",
        "many": "NumberTarget",
        "stars": "ClassTarget",
    }
    assert model.classes_[-1].tolist() == [1, 3, 5]


def test_missing_labels_count_for_nothing(X, y):
    gone = np.random.default_rng(0).random(N) < 0.3
    gaps = y.astype({"visits": float})
    gaps.loc[gone, ["price", "visits"]] = np.nan
    gaps.loc[~gone, "sign"] = None
    wrong = y.copy()
    wrong.loc[~gone, "sign"] = "plus"
    heads = {k: HEADS[k] for k in ("sign", "price", "visits")}
    model = multi_head(heads=heads).fit(X, gaps)
    assert np.isfinite(model.loss_)
    # The scores are those of the rows that have the label.
    predicted = model.predict(X)
    scores = [
        accuracy_score(y["sign"][gone], predicted["sign"][gone]),
        *(r2_score(y[k][~gone], predicted[k][~gone]) for k in ("price", "visits")),
    ]
    assert model.score(X, gaps) == pytest.approx(np.mean(scores))


def test_a_head_without_known_labels_has_no_score(X, y, fitted):
    unknown = y.assign(price=np.nan)
    one = y.assign(price=y["price"].where(np.arange(N) == 3))
    assert fitted.score(X, one) == fitted.score(X, unknown)  # R² of one row is none
    with_price, without = fitted.score(X, y), fitted.score(X, unknown)
    assert 0 < without <= 1
    assert with_price != without


def test_forms_of_y(X, y):
    frame = y[["sign", "price"]]
    heads = {"sign": "classification", "price": "regression"}
    expected = multi_head(heads=heads).fit(X, frame).predict(X)

    as_dict = {name: frame[name].to_numpy() for name in frame}
    answer = multi_head(heads=heads).fit(X, as_dict).predict(X)
    assert isinstance(answer, dict)
    np.testing.assert_array_equal(answer["sign"], expected["sign"])

    answer = multi_head(heads=heads).fit(X, pl.from_pandas(frame)).predict(X)
    assert isinstance(answer, pl.DataFrame)
    np.testing.assert_array_equal(answer["price"].to_numpy(), expected["price"])

    table = pa.Table.from_pandas(frame, preserve_index=False)
    answer = multi_head(heads=heads).fit(X, table).predict(X)
    assert isinstance(answer, pa.Table)

    array = frame.to_numpy(dtype=object)
    model = multi_head(heads=["classification", "regression"]).fit(X, array)
    answer = model.predict(X)
    assert answer.shape == (N, 2) and answer.dtype == object
    np.testing.assert_array_equal(answer[:, 0], expected["sign"])

    numbers = multi_head().fit(X, np.stack([X["size"], X["size"] ** 2], axis=1))
    assert numbers.predict(X).dtype.kind == "f"
    assert numbers.predict(X).shape == (N, 2)

    single = multi_head().fit(X, y["sign"].to_numpy())
    assert single.predict(X).shape == (N,)
    assert single.predict_proba(X).shape == (N, 2)


WRONG = {
    "unknown column": (
        {"heads": {"prize": "regression"}},
        "'heads' of MultiHeadEstimator names 'prize', but y has 'sign', 'price'",
    ),
    "unknown kind": ({"heads": {"price": "regresion"}}, "one of.*'regression'.*got"),
    "number of heads": ({"heads": ["regression"]}, "has 1 entries for 5 columns"),
    "no head": ({"heads": {}}, "empty"),
    "unknown weight": (
        {"head_weights": {"prize": 1.0}},
        "'head_weights' of MultiHeadEstimator names 'prize'; the heads are",
    ),
    "number of weights": ({"head_weights": [1.0]}, "each of the 5 heads; got 1"),
    "negative weight": (
        {"head_weights": {"price": -1.0}},
        "'head_weights' of MultiHead.* must be a finite number of at least 0",
    ),
    "strings as numbers": ({"heads": {"sign": "regression"}}, "Target 'sign'.*numbers"),
    "numbers as labels": (
        {"heads": {"tags": ("multilabel", ["price", "cheap"])}},
        r"Target 'tags'.*must be 0 or 1.*in row 0, column 0",
    ),
}


def test_wrong_parameters_are_refused(X, y):
    for parameters, message in WRONG.values():
        with pytest.raises(ValueError, match=message):
            multi_head(**parameters).fit(X, y)
    for heads, change, message in WRONG_TARGETS.values():
        with pytest.raises(ValueError, match=message):
            multi_head(heads=heads).fit(X, change(y))


def test_wrong_targets_are_refused(X, y, fitted):
    with pytest.raises(ValueError, match="lacks 'visits'; it has 'sign', 'price'"):
        fitted.score(X, y.drop(columns="visits"))
    with pytest.raises(ValueError, match="Target 'sign': y contains labels.*'zero'"):
        fitted.evaluate(X, y.assign(sign="zero"))
    with pytest.raises(ValueError, match=r"Target 'visits': .*needs y.*-1 in row 0"):
        multi_head(heads=HEADS).fit(X, y.assign(visits=-1))
    with pytest.raises(ValueError, match="Target 'price' .*has no label at all"):
        multi_head().fit(X, y.assign(price=np.nan))
    with pytest.raises(ValueError, match="Target 'sign': .*only one class: plus"):
        multi_head().fit(X, y.assign(sign="plus"))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        multi_head().fit(X, y[:-1])


@pytest.mark.parametrize("kind", ["poisson", "auto"])
def test_infinity_is_refused_and_nothing_is_lost(kind, X, y):
    heads = "auto" if kind == "auto" else {"price": kind}
    model = multi_head(heads=heads).fit(X, y[["price"]])
    before = model.predict(X)
    bad = y[["price"]].assign(price=np.where(np.arange(N) == 4, np.inf, y["price"]))
    with pytest.raises(ValueError, match="'price'.*finite.*inf in row 4"):
        model.fit(X, bad)
    pd.testing.assert_frame_equal(model.predict(X), before)


def test_validation_goes_by_the_losses_and_finds_noisy_labels():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(600, 10))
    noise = rng.normal(size=(600, 40))
    labels = (X @ rng.normal(size=(10, 40)) + noise > 0).astype(int)
    options = {"early_stopping": True, "n_members": 1, "max_iter": 15}
    options |= {"hidden_units": (16,), "random_state": 0}
    several = MultiHeadEstimator(**options).fit(X, {"labels": labels})
    one = DNNClassifier(**options).fit(X, labels)
    given = DNNEstimator(MultiLabelHead(40), **options).fit(X, labels)
    np.testing.assert_allclose(several.validation_scores_, one.validation_scores_)
    np.testing.assert_allclose(given.validation_scores_, one.validation_scores_)
    assert len(set(one.validation_scores_)) > 10
    wrong = (several.predict(X)["labels"] != labels).mean()
    assert wrong < 0.45


def test_one_held_out_label_is_enough_and_none_is_refused_before_training(X, y):
    rare = y[["price", "visits"]].assign(price=y["price"].where(np.arange(N) < 5))
    model = multi_head(
        heads={"price": "regression", "visits": "poisson"}, early_stopping=True
    ).fit(X, rare)
    assert np.isfinite(model.validation_scores_).all()
    steps = []

    lonely = multi_head(heads={"price": "regression"}, early_stopping=True)
    lonely.set_params(hooks=[At(1, steps.append)])
    with pytest.raises(ValueError, match="needs labels of at least one head"):
        lonely.fit(X, rare.assign(price=y["price"].where(np.arange(N) == 60)))
    assert not steps


def test_classes_of_partial_fit(X, y):
    heads = {"sign": "classification", "price": "regression"}
    classes = {"sign": ["minus", "plus"]}
    model = multi_head(heads=heads).partial_fit(X, y, classes=classes)
    model.partial_fit(X, y, classes=classes)
    with pytest.raises(ValueError, match=r"Target 'sign': classes=\['a', 'b'\]"):
        model.partial_fit(X, y, classes={"sign": ["a", "b"]})
    with pytest.raises(ValueError, match="names 'sing'; the heads are"):
        multi_head(heads=heads).partial_fit(X, y, classes={"sing": ["a"]})
    with pytest.raises(ValueError, match="Target 'price': 'classes' is for targets"):
        multi_head(heads=heads).partial_fit(X, y, classes={"price": [1, 2]})
    with pytest.raises(TypeError, match="must be a dictionary by head"):
        multi_head(heads=heads).partial_fit(X, y, classes=["minus", "plus"])
    one = multi_head().partial_fit(X, y["sign"], classes=["minus", "plus", "zero"])
    assert one.predict_proba(X).shape == (N, 3)


WRONG_TARGETS = {
    "names that meet": (
        "auto",
        lambda y: pd.DataFrame({1: y["price"], "1": y["sign"]}),
        "Two heads of MultiHeadEstimator have the name '1'",
    ),
    "a column twice": (
        {"a": ("regression", ["price"]), "b": ("huber", ["price"])},
        lambda y: y,
        "names the column 'price' of y twice",
    ),
    "no columns": ({"a": ("regression", [])}, lambda y: y, "must be a pair of a kind"),
    "a name for a list": (
        {"a": ("regression", "price")},
        lambda y: y,
        "must be a pair",
    ),
    "part of a row": (
        {"both": ("regression", ["price", "visits"])},
        lambda y: y.assign(visits=y["visits"].where(y.index != 1005)),
        "Target 'both': Row 5 of y has some, but not all",
    ),
    "floats as classes": (
        {"price": "classification"},
        lambda y: y,
        "Target 'price': Unknown label type",
    ),
    "dates": (
        "auto",
        lambda y: y.assign(day=pd.Timestamp("2026-01-01")),
        "dates or durations",
    ),
}


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [
        ("multilabel", "boolean"),
        (MultiLabelHead(2), "Int64"),
        (RegressionHead(2), "object"),
    ],
)
def test_missing_rows_of_heads_of_several_columns(kind, dtype, X, y):
    y = y[["is_a", "cheap"]].astype(bool).astype("boolean").astype(dtype)
    y.iloc[3] = pd.NA
    model = multi_head(heads={"t": (kind, ["is_a", "cheap"])}, max_iter=2)
    assert np.isfinite(model.fit(X, y).score(X, y))
    one = multi_head(heads={"cheap": RegressionHead()}, max_iter=2)
    assert np.isfinite(one.fit(X, y).score(X, y))
