# SPDX-License-Identifier: Apache-2.0
"""Estimators on sparse matrices, which are never made dense."""

import pickle

import numpy as np
import pytest
import scipy.sparse
from numpy.testing import assert_allclose, assert_array_equal

import skest

N_FEATURES = 50_000
ONCE = {"batch_size": 20, "max_iter": 20, "early_stopping": False}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def table(rng):
    """Rows of a few of very many features, of which the first ten matter."""
    n_rows = 300
    ids = np.where(
        rng.random((n_rows, 8)) < 0.5,
        rng.integers(0, 10, (n_rows, 8)),
        rng.integers(0, N_FEATURES, (n_rows, 8)),
    )
    rows = np.repeat(np.arange(n_rows), 8)
    entries = (rng.uniform(0.5, 1, ids.size), (rows, ids.ravel()))
    X = scipy.sparse.csr_array(entries, shape=(n_rows, N_FEATURES))
    return X, X[:, :5].sum(axis=1) > X[:, 5:10].sum(axis=1)


@pytest.fixture(autouse=True)
def no_dense_matrix(monkeypatch):
    def refuse(*args, **options):
        raise AssertionError("A sparse matrix was made dense.")

    for kind in (scipy.sparse.csr_array, scipy.sparse.csr_matrix):
        monkeypatch.setattr(kind, "toarray", refuse)
        monkeypatch.setattr(kind, "todense", refuse)


@pytest.mark.parametrize(
    "model",
    [
        skest.LinearClassifier(max_iter=30, random_state=0),
        skest.DNNClassifier((16,), **ONCE, random_state=0),
        skest.DNNLinearCombinedClassifier((16,), **ONCE, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_learns(model, table):
    X, y = table
    model.fit(scipy.sparse.csc_array(X[:200]), y[:200])
    assert model.n_features_in_ == N_FEATURES
    assert model.score(X[:200], y[:200]) > 0.85
    assert model.score(X[200:], y[200:]) > 0.7
    again = pickle.loads(pickle.dumps(model))
    assert_array_equal(again.predict_proba(X), model.predict_proba(X))


def test_sparse_and_dense_rows_have_the_same_predictions(table):
    X, y = table
    narrow = scipy.sparse.csr_array(X[:, :20])
    model = skest.LinearClassifier(max_iter=5, random_state=0).fit(narrow, y)
    dense = np.zeros(narrow.shape)
    dense[narrow.nonzero()] = narrow.tocoo().data
    assert_allclose(model.predict_proba(dense), model.predict_proba(narrow))


def test_beside_other_columns(table, rng):
    X, y = table
    group = rng.choice(["a", "b"], size=300)
    features = {"words": X, "group": group, "age": rng.normal(size=300)}
    labels = y ^ (group == "a")
    model = skest.DNNLinearCombinedClassifier((16,), **ONCE, random_state=0)
    assert model.fit(features, labels).score(features, labels) > 0.8
    names = [column.name for column in model.dnn_feature_columns_.active]
    assert names == [
        "numbers",
        "categories_indicator",
        "words_embedding",
        "words_target_ridge",
        "numbers_ple",
    ]


@pytest.mark.parametrize(
    "model",
    [skest.RNNClassifier(4), skest.LinearClassifier(optimizer="sdca")],
    ids=["RNN", "SDCA"],
)
def test_estimators_that_refuse_it(model, table):
    X, y = table
    assert not model.__sklearn_tags__().input_tags.sparse
    with pytest.raises(TypeError, match="[Ss]parse"):
        model.fit(X, y)


def test_sdca_refuses_it_as_one_of_several_columns(table):
    X, y = table
    model = skest.LinearClassifier(optimizer="sdca")
    with pytest.raises(ValueError, match="LinearSDCA cannot learn the sparse matrix"):
        model.fit({"words": X}, y)


def test_a_model_of_dense_rows_says_so(table):
    X, y = table
    model = skest.LinearClassifier(max_iter=2, random_state=0).fit(np.eye(300), y)
    with pytest.raises(TypeError, match="'x' is a sparse matrix, .* Use .toarray"):
        model.predict(scipy.sparse.csr_array(X[:, :300]))
