# SPDX-License-Identifier: Apache-2.0
"""Estimators with weighted columns and shared embeddings."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from skest import DNNClassifier, LinearClassifier
from skest import feature_columns as fc

WORDS = ["good", "bad", "the"]


@pytest.fixture
def reviews():
    """Reviews as words with their counts; the weights decide which side wins."""
    rng = np.random.default_rng(0)
    words = [list(rng.permutation(WORDS)) for _ in range(200)]
    counts = [list(map(float, rng.integers(1, 9, 3))) for _ in range(200)]
    table = [dict(zip(w, c, strict=True)) for w, c in zip(words, counts, strict=True)]
    X = pd.DataFrame({"word": words, "count": counts})
    return X, np.array([row["good"] > row["bad"] for row in table])


def weighted():
    word = fc.categorical_column_with_vocabulary_list("word")
    return fc.weighted_categorical_column(word, "count")


@pytest.mark.parametrize(
    ("estimator", "columns"),
    [
        (LinearClassifier(sparse_combiner="mean"), lambda: [weighted()]),
        (DNNClassifier((8,)), lambda: [fc.embedding_column(weighted(), 2)]),
    ],
    ids=["mean", "embedding"],
)
def test_weights_are_learned_from(estimator, columns, reviews):
    X, y = reviews
    model = clone(estimator).set_params(
        feature_columns=fc.FeatureColumns(columns()),
        **{
            "max_iter": 60,
            "random_state": 0,
            "batch_size": 20,
            "early_stopping": False,
        },
    )
    assert model.fit(X, y).score(X, y) > 0.95
    lists = {name: X[name].tolist() for name in X}
    np.testing.assert_array_equal(model.predict_proba(lists), model.predict_proba(X))
    with pytest.raises(ValueError, match="'count' has no weight .* in row 0"):
        model.predict({"word": [["good"]], "count": [[None]]})


@pytest.fixture
def clicks():
    """Whether what is seen is among what was bought before, by the kind of goods."""
    rng = np.random.default_rng(0)
    goods = np.array([f"{kind}{i}" for kind in "abc" for i in range(3)])
    seen, bought = rng.choice(goods, 400), rng.choice(goods, (400, 2))
    X = pd.DataFrame({"seen": seen, "bought": bought.tolist()})
    return X, (seen.astype("U1")[:, None] == bought.astype("U1")).any(axis=1)


def shared(dimension=3, **options):
    categorical = [
        fc.categorical_column_with_vocabulary_list(key) for key in ("seen", "bought")
    ]
    columns = fc.shared_embeddings(categorical, dimension, **options)
    return fc.FeatureColumns(list(zip(("seen", "bought"), columns, strict=True)))


TABLE = "inputs.bought_seen_shared_embedding_weights"


def test_a_shared_table_is_learned(clicks):
    X, y = clicks
    model = DNNClassifier(
        (32,),
        feature_columns=shared(),
        optimizer="adam",
        learning_rate=0.05,
        max_iter=30,
        early_stopping=False,
        random_state=0,
    ).fit(X, y)
    assert model.score(X, y) > 0.9
    names = model.estimator_.get_variable_names()
    assert [n for n in names if "embedding" in n and "/" not in n] == [TABLE]
    table = model.estimator_.get_variable_value(TABLE)
    vocabulary = model.feature_columns_.columns_[0][1].categorical_column_.vocabulary_
    assert table.shape == (len(vocabulary), 3) == (9, 3)
    vectors = model.feature_columns_.transform(X)
    rows = [vocabulary[value] for value in X["seen"]]
    np.testing.assert_array_equal(vectors[:, :3], table[rows])
    bought = np.stack([[vocabulary[v] for v in cell] for cell in X["bought"]])
    np.testing.assert_allclose(vectors[:, 3:], table[bought].mean(axis=1), rtol=1e-6)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(X), model.predict_proba(X))
    np.testing.assert_array_equal(copy.feature_columns_.transform(X), vectors)


def test_dual_ascent_refuses_shared_embeddings(clicks):
    model = LinearClassifier(feature_columns=shared(), optimizer="sdca")
    with pytest.raises(ValueError, match="embedding column 'seen_shared_embedding'"):
        model.fit(*clicks)
