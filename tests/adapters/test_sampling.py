# SPDX-License-Identifier: Apache-2.0
"""``sampling="weighted"``: weights are multiplicities, bit for bit."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import skest
from skest.feature_columns import categorical_column_with_vocabulary_list as vocabulary
from skest.feature_columns import embedding_column, numeric_column
from tests.adapters._nets import assert_same_variables


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "a": rng.normal(size=n),
            "b": rng.exponential(size=n).round(1),
            "c": rng.choice(list("pqrs"), n),
        }
    )
    return X, (X["a"] + (X["c"] == "p") > 0.5).to_numpy().astype(int)


def weighted_and_repeated(X, y, seed=1):
    """Return the same law twice: with weights, and with repeated rows in another order."""
    rng = np.random.default_rng(seed)
    weight = rng.integers(0, 4, len(y)).astype(float)
    index = rng.permutation(np.repeat(np.arange(len(y)), weight.astype(int)))
    rows = X.iloc[index] if hasattr(X, "iloc") else X[index]
    return (X, y, weight), (rows, y[index])


TAIL = {"sampling": "weighted", "random_state": 0, "max_iter": 3, "batch_size": 16}
AT_ONCE = TAIL | {"early_stopping": False}
QUANTILES = [
    numeric_column("a", normalizer="quantile"),
    numeric_column("b", normalizer="standard"),
    embedding_column(vocabulary("c"), dimension=2),
]
MODELS = {
    "float32": skest.DNNClassifier((8,), dtype="float32", optimizer="adam", **AT_ONCE),
    "dropout": skest.DNNClassifier((8,), dropout=0.5, batch_norm=True, **AT_ONCE),
    "columns": skest.DNNClassifier((8,), feature_columns=QUANTILES, **AT_ONCE),
    "combined": skest.DNNLinearCombinedClassifier((8,), **AT_ONCE),
    "balanced": skest.LinearClassifier(class_weight="balanced", **TAIL),
    "held out": skest.DNNClassifier((8,), early_stopping=True, **TAIL),
    "regressor": skest.DNNRegressor((8,), **TAIL),
    "baseline": skest.BaselineRegressor(loss="poisson", **TAIL),
    "heads": skest.MultiHeadEstimator((8,), **AT_ONCE),
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_equal_repeated_rows_bit_for_bit(name):
    weighted, repeated = weighted_and_repeated(*table(80))
    first, second = (clone(MODELS[name]) for _ in range(2))
    assert_same_variables(first.fit(*weighted), second.fit(*repeated))


def test_an_epoch_has_as_many_draws_as_distinct_rows():
    X, y = table(50)
    model = skest.DNNClassifier((8,), **TAIL)
    assert model.fit(X, y).n_steps_ == 3 * 4
    twice = pd.concat([X, X]), np.concatenate([y, y])
    assert model.fit(*twice).n_steps_ == 3 * 4


def test_rows_are_drawn_in_proportion():
    X, y = np.zeros((4, 1)), np.array([0.0, 1.0, 2.0, 7.0])
    weight = np.array([1.0, 2.0, 1.0, 0.0])
    model = skest.BaselineRegressor(
        sampling="weighted", random_state=0, max_iter=400, tol=0, optimizer="sgd",
        learning_rate=0.01,
    )  # fmt: skip
    assert model.fit(X, y, weight).predict(X[:1])[0] == pytest.approx(1.0, abs=0.1)


def test_wrong_settings():
    X, y = table(20)
    with pytest.raises(ValueError, match=r"'sampling' parameter .* must be a .* among"):
        skest.DNNClassifier(sampling="batch").fit(X, y)
    with pytest.raises(ValueError, match="'sample_weight' must .* be negative; got -1"):
        skest.DNNClassifier(sampling="weighted").fit(X, y, np.r_[-1.0, np.ones(19)])
    with pytest.raises(ValueError, match="'weighted' has no meaning for LinearSDCA"):
        skest.LinearClassifier(optimizer="sdca", sampling="weighted").fit(X, y)
