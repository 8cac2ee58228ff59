# SPDX-License-Identifier: Apache-2.0
"""Estimators with a head of the user's: ``DNNEstimator(head)`` and its siblings."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.base import is_classifier, is_regressor
from sklearn.exceptions import DataConversionWarning
from sklearn.model_selection import cross_val_score

from skest import (
    BaselineEstimator,
    DNNClassifier,
    DNNEstimator,
    DNNLinearCombinedEstimator,
    DNNRegressor,
    LinearEstimator,
    MultiHeadEstimator,
)
from skest.heads import (
    BinaryClassHead,
    LogisticRegressionHead,
    MultiClassHead,
    MultiHead,
    MultiLabelHead,
    PoissonRegressionHead,
    RegressionHead,
    SampledSoftmaxHead,
)
from tests.adapters.conftest import make

ESTIMATORS = [
    BaselineEstimator,
    DNNEstimator,
    DNNLinearCombinedEstimator,
    LinearEstimator,
]
N = 120


@pytest.fixture(name="X")
def mixed_table():
    return pd.DataFrame(
        {
            "size": np.random.default_rng(0).permutation(np.linspace(-1, 1, N)),
            "kind": np.tile(["a", "b", "c"], N // 3),
        }
    )


TARGETS = {
    "binary, by name": (
        BinaryClassHead(label_vocabulary=["minus", "plus"]),
        lambda X: np.where(X["size"] > 0, "plus", "minus"),
    ),
    "binary, ids": (BinaryClassHead(), lambda X: (X["size"] > 0).astype(int)),
    "classes, by name": (
        MultiClassHead(3, label_vocabulary=["c", "a", "b"]),
        lambda X: X["kind"],
    ),
    "classes, ids": (
        MultiClassHead(3),
        lambda X: X["kind"].map({"a": 0, "b": 1, "c": 2}),
    ),
    "labels": (
        MultiLabelHead(2),
        lambda X: np.stack([X["size"] > 0, X["kind"] == "a"], 1).astype(int),
    ),
    "numbers": (RegressionHead(), lambda X: 1e4 + 500 * X["size"]),
    "two numbers": (
        RegressionHead(2),
        lambda X: np.stack([X["size"], 1e4 - X["size"]], 1),
    ),
    "counts": (
        PoissonRegressionHead(),
        lambda X: X["kind"].map({"a": 1, "b": 4, "c": 9}),
    ),
    "shares": (LogisticRegressionHead(), lambda X: (X["size"] + 2) / 4),
}


@pytest.mark.parametrize(
    ("kind", "head_estimator"),
    [(kind, ESTIMATORS[i % len(ESTIMATORS)]) for i, kind in enumerate(TARGETS)],
)
def test_any_head(kind, X, head_estimator):
    head, make_y = TARGETS[kind]
    y = make_y(X)
    model = make(head_estimator, head=head, max_iter=150).fit(X, y)
    assert model.predict(X).shape == y.shape
    floor = -0.1 if head_estimator is BaselineEstimator else 0.9
    if kind == "labels" and head_estimator is BaselineEstimator:
        floor = 0.0
    assert model.score(X, y) >= floor
    metrics = model.evaluate(X, y)
    assert set(metrics) >= {"average_loss", "loss", "global_step"}
    if hasattr(head, "label_vocabulary") and hasattr(head, "n_classes"):
        names = head.label_vocabulary or range(head.n_classes)
        assert model.classes_.tolist() == list(names)
        assert model.predict_proba(X).shape == (N, len(names))


def test_heads_of_numbers_have_no_probabilities(X):
    model = make(DNNEstimator, head=RegressionHead())
    assert not hasattr(model, "predict_proba")
    assert not hasattr(model.fit(X, X["size"]), "predict_proba")
    assert hasattr(make(DNNEstimator), "predict_proba")  # y may be classes
    assert not hasattr(make(DNNEstimator).fit(X, X["size"]), "predict_proba")


def test_what_scikit_learn_takes_it_for(X):
    assert is_classifier(DNNEstimator(BinaryClassHead()))
    assert is_regressor(DNNEstimator(PoissonRegressionHead()))
    assert not is_classifier(DNNEstimator()) and not is_regressor(DNNEstimator())
    y = np.where(X["size"] > 0, "plus", "minus")
    head = BinaryClassHead(label_vocabulary=["minus", "plus"])
    model = make(DNNEstimator, head=head)
    scores = cross_val_score(model, X, y, scoring="roc_auc", cv=3)
    assert scores.min() > 0.8


def test_it_equals_the_estimator_with_the_same_head(X):
    y = 1e4 + 500 * X["size"]
    regressor = make(DNNRegressor).fit(X, y)
    model = make(DNNEstimator, head=RegressionHead()).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), regressor.predict(X))
    weight = np.random.default_rng(0).random(N)
    classifier = make(DNNClassifier).fit(X, X["kind"], weight)
    head = MultiClassHead(3, label_vocabulary=["a", "b", "c"])
    model = make(DNNEstimator, head=head).fit(X, X["kind"], weight)
    np.testing.assert_array_equal(model.predict_proba(X), classifier.predict_proba(X))


def test_several_heads(X):
    head = MultiHead(
        [RegressionHead(name="price"), BinaryClassHead(name="sign")],
        head_weights=[1.0, 2.0],
    )
    y = pd.DataFrame({"price": 3 * X["size"], "sign": (X["size"] > 0).astype(int)})
    y.loc[::5, "price"] = np.nan
    one = make(DNNEstimator, head=head).fit(X, y)
    other = make(
        MultiHeadEstimator,
        heads={"price": "regression", "sign": "classification"},
        head_weights={"sign": 2.0},
    ).fit(X, y)
    pd.testing.assert_frame_equal(one.predict(X), other.predict(X))
    assert one.score(X, y) == pytest.approx(other.score(X, y))
    assert make(LinearEstimator, head=head).fit(X, y).coef_.shape[0] == 2


def test_without_a_head_the_kind_of_y_decides(X):
    assert make(DNNEstimator).fit(X, X["kind"]).classes_.tolist() == ["a", "b", "c"]
    assert make(DNNEstimator).fit(X, X["size"]).predict(X).shape == (N,)
    frame = make(DNNEstimator).fit(X, X).predict(X)
    assert list(frame.columns) == ["size", "kind"]


def test_very_many_classes():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 100, 1000)
    X = pd.DataFrame({"item": [f"item {i}" for i in ids]})
    head = SampledSoftmaxHead(100, num_sampled=20, class_distribution="uniform")
    model = make(
        DNNEstimator,
        head=head,
        hidden_units=(32,),
        optimizer="adam",
        learning_rate=0.05,
        max_iter=20,
    )
    assert model.fit(X, ids).score(X, ids) > 0.9
    with pytest.raises(ValueError, match="output_layer"):
        make(LinearEstimator, head=head).fit(X, ids)


def test_a_weight_column_is_no_feature(X):
    weight = np.where(X["size"] > 0, 1.0, 0.5)
    head = RegressionHead(weight_column="weight")
    weighted = make(DNNEstimator, head=head).fit(X.assign(weight=weight), X["size"])
    assert weighted.feature_names_in_.tolist() == list(X.columns)
    np.testing.assert_array_equal(
        weighted.predict(X), weighted.predict(X.assign(weight=9.0))
    )
    with pytest.raises(ValueError, match="'weight'"):
        make(DNNEstimator, head=head).fit(X, X["size"])


@pytest.mark.parametrize("head", [None, MultiLabelHead(2)])
def test_a_matrix_of_zeros_and_ones_is_several_labels(X, head):
    y = np.stack([X["size"] > 0, X["kind"] == "a"], axis=1).astype(int)
    dense = make(DNNEstimator, head=head).fit(X, y)
    sparse = make(DNNEstimator, head=head).fit(X, scipy.sparse.csr_matrix(y))
    assert dense.predict_proba(X).shape == (N, 2)
    np.testing.assert_array_equal(dense.predict_proba(X), sparse.predict_proba(X))
    assert sparse.evaluate(X, scipy.sparse.csr_matrix(y)) == dense.evaluate(X, y)


def test_warm_start_does_not_change_the_head(X):
    model = make(DNNEstimator, head=RegressionHead(), warm_start=True)
    model.fit(X, X["size"]).fit(X, X["size"])
    with pytest.raises(ValueError, match="earlier fit had head=RegressionHead"):
        model.set_params(head=LogisticRegressionHead()).fit(X, X["size"] / 2 + 0.5)


def test_wrong_heads_and_targets(X):
    with pytest.raises(ValueError, match="'head' parameter of DNNEstimator must be"):
        make(DNNEstimator, head="binary").fit(X, X["size"])
    with pytest.raises(ValueError, match="BinaryClassHead"):
        make(DNNEstimator, head=BinaryClassHead()).fit(X, np.full(N, 3))
    with pytest.warns(DataConversionWarning, match="column-vector y"):
        make(DNNEstimator, head=RegressionHead()).fit(X, X[["size"]])


def test_a_head_of_the_users_with_any_constructor(X):
    class Mine(RegressionHead):
        def __init__(self, factor=1.0, **options):
            super().__init__(**options)
            self.factor = factor

    assert "Mine(factor=2.0)" in repr(make(DNNEstimator, head=Mine(2.0)))
    model = make(DNNEstimator, head=Mine(2.0)).fit(X, X["size"], np.ones(N))
    assert model.score(X, X["size"]) > 0.5


def test_a_sampled_softmax_among_several_heads_needs_a_network_of_ones_own(X):
    head = MultiHead([SampledSoftmaxHead(5, 2, name="a"), RegressionHead(name="b")])
    y = {"a": np.arange(N) % 5, "b": X["size"]}
    with pytest.raises(ValueError, match="ends in a ClassTable of 5 classes"):
        make(DNNEstimator, head=head).fit(X, y)


def test_early_stopping_weighs_rows_as_the_head_does(X):
    odd = np.arange(N) % 2 == 1
    table = X.assign(weight=np.where(odd, 1e-6, 1.0))
    y = np.where(odd, X["size"] <= 0, X["size"] > 0).astype(int)
    options = {"early_stopping": True, "max_iter": 3}
    given = make(DNNEstimator, head=BinaryClassHead(weight_column="weight"), **options)
    given.fit(table, y, X_val=table, y_val=y)
    chances = given.predict_proba(X)[np.arange(N), y]
    expected = np.average(np.log(chances), weights=table["weight"])
    assert given.best_validation_score_ == pytest.approx(expected, rel=1e-5)
    assert abs(expected - np.log(chances).mean()) > 0.05
