# SPDX-License-Identifier: Apache-2.0
"""`RNNClassifier` and `RNNRegressor`: the order of a sequence can be learned."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone

from skest import DNNClassifier, RNNClassifier, RNNRegressor
from skest import feature_columns as fc


def a_before_b(n_rows, seed):
    """Lists with one "a" and one "b"; the class says which one comes first."""
    rng = np.random.default_rng(seed)
    lists = [
        rng.permutation(["a", "b", *rng.choice(list("cdef"), n)]).tolist()
        for n in rng.integers(0, 7, n_rows)
    ]
    y = np.array([events.index("a") < events.index("b") for events in lists])
    return pd.DataFrame({"event": lists, "age": rng.integers(20, 80, n_rows)}), y


def series(n_rows, seed):
    """Series of different lengths, some of them empty; y is the sum."""
    rng = np.random.default_rng(seed)
    lists = [rng.normal(1, 1, n).tolist() for n in rng.integers(0, 8, n_rows)]
    return pd.DataFrame({"paid": lists}), np.array([sum(cell) for cell in lists])


@pytest.fixture(scope="module")
def events():
    return a_before_b(300, 0)


@pytest.fixture(scope="module")
def fitted(events):
    return RNNClassifier(16, max_iter=40, random_state=0).fit(*events)


def test_learns_the_order_that_a_bag_has_not(fitted, events):
    X_test, y_test = a_before_b(300, 1)
    bag = DNNClassifier((16,), n_members=1, max_iter=10, random_state=0).fit(*events)
    assert fitted.score(X_test, y_test) > 0.95
    assert bag.score(X_test, y_test) < 0.7


def test_learns_a_sum():
    X, y = series(400, 0)
    X_test, y_test = series(200, 1)
    model = RNNRegressor(16, max_iter=60, random_state=0).fit(X, y)
    assert model.score(X_test, y_test) > 0.9


def test_every_form_of_the_table_gives_the_same(fitted, events):
    X, y = events
    expected = fitted.predict_proba(X)
    columns = {name: X[name].tolist() for name in X}
    first = clone(fitted).set_params(max_iter=1).fit(X, y).predict_proba(X)
    for form in (pl.DataFrame(columns), columns):
        np.testing.assert_array_equal(fitted.predict_proba(form), expected)
        again = clone(fitted).set_params(max_iter=1).fit(form, y)
        np.testing.assert_array_equal(again.predict_proba(form), first)


def test_predictions_do_not_depend_on_longer_sequences(fitted, events):
    X, _ = events
    longer = pd.DataFrame({"event": [list("abcdef") * 20], "age": [30]})
    beside = fitted.predict_proba(pd.concat([X[:5], longer]))[:5]
    np.testing.assert_allclose(beside, fitted.predict_proba(X[:5]), rtol=1e-5)


def test_arrays_are_sequences_padded_with_nan():
    X, y = series(200, 0)
    padded = np.full((200, 8), np.nan)
    for row, cell in zip(padded, X["paid"], strict=True):
        row[: len(cell)] = cell
    a = RNNRegressor(8, max_iter=3, random_state=0, dtype="float64").fit(X, y)
    b = RNNRegressor(8, max_iter=3, random_state=0, dtype="float64").fit(padded, y)
    np.testing.assert_allclose(a.predict(X), b.predict(padded), rtol=1e-6)
    frame = pd.DataFrame(padded, columns=[f"day {i}" for i in range(8)])
    c = RNNRegressor(8, max_iter=3, random_state=0, dtype="float64").fit(frame, y)
    np.testing.assert_array_equal(c.predict(frame), b.predict(padded))


def given_columns(**params):
    event = fc.sequence_categorical_column_with_vocabulary_list("event")
    return {
        "sequence_feature_columns": [("event", fc.embedding_column(event, 3))],
        "context_feature_columns": [fc.numeric_column("age", normalizer="standard")],
        **params,
    }


def test_given_columns_get_their_vectors(events):
    X, y = events
    model = RNNClassifier(4, max_iter=2, **given_columns()).fit(X, y)
    (event,) = model.sequence_feature_columns_.active
    assert event.weights_.shape == (6, 3)
    np.testing.assert_array_equal(
        event.weights_,
        model.estimator_.get_variable_value("sequence.event_embedding_weights"),
    )
    age = fc.categorical_column_with_identity("age", 100)
    context = given_columns(context_feature_columns=[fc.embedding_column(age, 2)])
    model = RNNClassifier(4, max_iter=2, **context).fit(X, y)
    np.testing.assert_array_equal(
        model.context_feature_columns_.active[0].weights_,
        model.estimator_.get_variable_value("context.age_embedding_weights"),
    )


NO_SEQUENCES = pd.DataFrame({"age": [1, 2], "sex": ["f", "m"]})


def test_bad_input():
    lengths = pd.DataFrame({"a": [[1.0], [2.0, 3.0]], "b": [["x"], ["y"]]})
    two = np.ones((2, 2))
    no_sequences = given_columns(sequence_feature_columns=None)
    for params, X, message in [
        ({}, NO_SEQUENCES, "X has no column of sequences: .* such as DNNClassifier"),
        (no_sequences, NO_SEQUENCES, "but 'sequence_feature_columns' are not"),
        (
            *({"sequence_feature_columns": [fc.numeric_column("age")]}, NO_SEQUENCES),
            "'age' is no sequence, which SequenceFeatures requires",
        ),
        ({}, lengths, "in row 1, column 'a' .* 2 steps and column 'b_indicator' has 1"),
        ({}, pd.DataFrame({"a": [["x"], "y"]}), "'a' holds lists, but also 'y'"),
        ({}, pd.DataFrame({"a": [[1.0, np.inf], [1.0]]}), "'a' holds inf"),
        ({"units": ()}, two, "'units' of RNN must have at least one layer"),
        ({"cell_type": "rnn"}, two, "'cell_type' parameter .* must be a str"),
    ]:
        model = RNNClassifier(**{"units": 2, "max_iter": 1, **params})
        with pytest.raises(ValueError, match=message):
            model.fit(X, [0, 1])
        assert not [name for name in vars(model) if name.endswith("_")]
