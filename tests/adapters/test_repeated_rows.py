# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn import config_context
from sklearn.metrics import log_loss
from sklearn.model_selection import GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skest import DNNClassifier
from skest.adapters.features import Rows, count_samples
from skest.adapters.repeated_rows import distinct_rows, units_of
from skest.feature_columns.table import TableColumns

COLUMNS = {
    "floats": np.array([0.5, np.nan, -0.0, 1e300, 2.0]),
    "float32": np.array([0.1, 0.2, 0.3, np.nan, 0.1], dtype=np.float32),
    "integers": np.array([2**63 - 1, -1, 0, 5, 7]),
    "unsigned": np.array([2**64 - 1, 0, 3, 5, 7], dtype=np.uint64),
    "booleans": np.array([True, False, True, True, False]),
    "matrix": np.arange(10.0).reshape(5, 2) % 7,
    "strings": np.array(["", "é", "a\0b", None, "a"], dtype=object),
    "text": np.array(["b", "a", "c", "aa", ""]),
    "lists": np.fromiter([["a"], [], ["b", "a"], ["a", "b"], ["aa"]], object, 5),
    "vectors": np.fromiter(
        [[[1.0, 2.0]], [], [[2.0, 1.0]], [[1.0, 2.0]] * 2, [[1.0, 3.0]]], object, 5
    ),
    "category": pd.Series(["x", None, "y", "z", "x"], dtype="category"),
    "nullable": pd.Series([1, None, 3, 4, 5], dtype="Int64"),
    "polars": pl.Series(["u", None, "v", "w", "x"]),
    "sparse": scipy.sparse.csr_array(
        np.array([[0, 1.0], [2, 0], [0, 0], [2, 1], [1, 2]])
    ),
}


def test_different_values_stay_apart_and_equal_ones_become_one():
    times = np.array([1, 3, 2, 1, 2])
    index = np.random.default_rng(0).permutation(np.repeat(np.arange(5), times))
    for name, column in COLUMNS.items():
        whole = Rows({"c": column}, np.arange(5), None)
        alone = distinct_rows(whole._replace(weight=times.astype(float)))
        repeated = distinct_rows(whole.take(index))
        assert sorted(alone.labels) == [0, 1, 2, 3, 4], name
        assert_array_equal(alone.labels, repeated.labels)
        assert_array_equal(alone.weight, repeated.weight)
        assert_array_equal(alone.weight, times[alone.labels])
        if name not in ("booleans", "float32", "category"):  # without equal values
            assert distinct_rows(whole._replace(labels=np.zeros(5))).n_rows == 5


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(-3, 3), st.sampled_from(["a", "b", ""]), st.booleans()),
        min_size=1,
        max_size=30,
    ),
    st.randoms(use_true_random=False),
)
def test_the_result_is_that_of_counting(cells, random):
    def distinct(cells):
        numbers, strings, labels = zip(*cells, strict=True)
        features = {"n": np.array(numbers), "s": np.array(strings, dtype=object)}
        return distinct_rows(Rows(features, np.array(labels), None))

    found = distinct(cells)
    counted = {
        (n, s, bool(y)): w
        for n, s, y, w in zip(
            found.features["n"],
            found.features["s"],
            found.labels,
            found.weight,
            strict=True,
        )
    }
    assert counted == {cell: cells.count(cell) for cell in set(cells)}
    random.shuffle(cells)
    again = distinct(cells)
    assert_array_equal(again.features["n"], found.features["n"])
    assert_array_equal(again.features["s"], found.features["s"])
    assert count_samples(again.features) == found.n_rows


def rows(y, *columns):
    return Rows(TableColumns(dict(enumerate(columns))), np.asarray(y), None)


def test_equal_rows_are_no_copies_where_labels_differ_or_levels_are_few():
    rng = np.random.default_rng(0)
    a, b, y = rng.normal(size=(3, 100))
    few = rng.integers(0, 200, 2000)
    effect = rng.normal(size=200)
    combination = rng.integers(0, 5, (4, 3000))
    for table in (
        rows(y, a, b),
        rows(np.append(y, y[:40]), np.append(a, a[:40]), np.append(b, b[:40])),
        rows(np.tile(y[:50], 4), np.tile(a[:50], 4), np.tile(b[:50], 4)),
        rows(rng.integers(0, 2, 2000), few, -few),
        # A station tells nearly all, or all, and its attributes tell the same.
        rows(effect[few] + rng.normal(size=2000) / 10, few, few % 7, effect[few]),
        rows(few % 3, few),
        rows(combination.sum(axis=0) % 2, *combination),
    ):
        assert_array_equal(units_of(table).of_rows, np.arange(table.n_rows))
    a, b, y = rng.normal(size=(3, 300))
    a[1], b[1] = a[0], b[0]  # equal before they are copied
    copies = np.append(rng.integers(0, 300, 898), [0, 1])
    units = units_of(rows(y[copies], a[copies], b[copies]))
    assert len(units.first) == len(set(copies)) - 1
    order = rng.permutation(len(units.first))
    taken = units.rows_of(order)
    assert_array_equal(np.sort(taken), np.arange(900))
    starts = np.flatnonzero(np.diff(units.of_rows[taken], prepend=-1))
    assert_array_equal(units.of_rows[taken][starts], order)


def test_a_class_of_copies_of_one_row_is_in_training():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3))
    X[0] = 5
    y = np.where(X[:, 0] > 0, 1, 0)
    y[0] = 2
    copies = np.append(np.tile(np.arange(150), 2), np.zeros(100, int))
    own = {"learning_rate": 0.02, "max_iter": 8}
    model = DNNClassifier((16,), n_members=1, random_state=0, **own)
    model.fit(X[copies], y[copies])
    assert model.predict_proba(X[:1])[0, 2] > 0.9


# By folds, and by one part.
@pytest.mark.parametrize(("n_rows", "strings"), [(100, True), (340, False)])
def test_copies_are_not_held_out_beside_their_like(n_rows, strings):
    rng = np.random.default_rng(0)
    X, X_new = rng.normal(size=(2, n_rows, 6)).round(3)
    y, y_new = (rng.random(n_rows) < 1 / (1 + np.exp(-x[:, 0])) for x in (X, X_new))
    if strings:
        X, X_new = (pd.DataFrame(x.astype(str)).add_prefix("x") for x in (X, X_new))
    copies = np.repeat(np.arange(n_rows), 3)
    X = X.iloc[copies] if strings else X[copies]
    model = DNNClassifier((32,), n_members=1, max_iter=50, random_state=0)
    model.fit(X, y[copies])
    assert log_loss(y_new, model.predict_proba(X_new)) < 0.75


def visits(n_patients, n_visits):
    """Return rows of patients, whose label is theirs, and who they are."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(n_patients), n_visits)
    own = rng.normal(size=(n_patients, 6))
    X = np.c_[own[groups], rng.normal(size=len(groups))].astype(np.float32)
    y = (own[:, 0] + rng.normal(size=n_patients) > 0)[groups]
    return X, y, np.array([f"p{g}" for g in groups], dtype=object)


# Of the second, one part is held out.
@pytest.mark.parametrize("early_stopping", ["auto", True])
def test_groups_are_held_out_as_a_whole(early_stopping):
    X, y, groups = visits(60, 10)
    train = np.arange(600) < 400
    model = DNNClassifier(
        (32,),
        n_members=1,
        max_iter=40,
        early_stopping=early_stopping,
        validation_fraction=0.3,
        random_state=0,
    )
    model.fit(X[train], y[train], groups=groups[train])
    assert log_loss(y[~train], model.predict_proba(X[~train])) < 1
    # What validation says is true of others.
    assert model.best_validation_score_ < -0.4


def test_as_many_folds_as_groups():
    X, y, groups = visits(3, 40)
    model = DNNClassifier((4,), n_members=1, max_iter=5, random_state=0)
    y[::7] ^= True
    weight = np.where(groups == "p2", 0, 1)
    assert len(model.fit(X, y, groups=groups).fold_estimators_) == 3
    assert len(model.fit(X, y, weight, groups=groups).fold_estimators_) == 2
    with pytest.raises(ValueError, match="'groups' has one value only.*X_val"):
        model.fit(X, y, groups=np.zeros(120))
    with pytest.raises(ValueError, match="a value for each of the 120 rows.*got 3"):
        model.fit(X, y, groups=[1, 2, 3])
    with pytest.raises(ValueError, match="'groups' lacks the value of row 0"):
        model.fit(X, y, groups=[None, *groups[1:]])


def test_groups_are_routed():
    X, y, groups = visits(20, 10)
    with config_context(enable_metadata_routing=True):
        model = DNNClassifier((4,), n_members=1, max_iter=2, random_state=0)
        pipeline = make_pipeline(StandardScaler(), model.set_fit_request(groups=True))
        found = cross_validate(
            pipeline, X, y, cv=GroupKFold(2), params={"groups": groups}
        )
    assert len(found["test_score"]) == 2
