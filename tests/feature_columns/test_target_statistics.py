# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.metrics import log_loss, roc_auc_score
from sklearn.preprocessing import TargetEncoder

from skest import DNNClassifier
from skest import feature_columns as fc
from tests.feature_columns.conftest import assert_no_row_knows_its_label


def column_of(key="c", **settings):
    vocabulary = fc.categorical_column_with_vocabulary_list(key)
    return fc.target_statistics_column(vocabulary, **settings)


def levels_of(rng, n_rows=300):
    """Return levels of one row and of many."""
    return rng.zipf(1.6, n_rows).clip(max=99).astype(str).astype(object)


def means_of(column, X):
    """Return the means before they were standardised."""
    encoded = column.encode(X)[column.name]
    return (encoded * column.scale_ + column.center_)[:, :-1]


@pytest.mark.parametrize("smooth", ["auto", 0.0, 7.5])
@pytest.mark.parametrize("kind", ["continuous", "binary", "multiclass"])
def test_means_are_those_of_target_encoder(rng, kind, smooth):
    levels = levels_of(rng)
    y = {
        "continuous": rng.normal(1e3, 1, 300),
        "binary": rng.choice(["no", "yes"], 300, p=[0.8, 0.2]),
        "multiclass": rng.integers(0, 4, 300),
    }[kind]
    column = column_of(smooth=smooth).fit({"c": levels}, y)
    new = {"c": np.append(levels, "unknown")}
    encoder = TargetEncoder(smooth=smooth, target_type=kind)
    expected = encoder.fit(levels[:, np.newaxis], y).transform(new["c"][:, np.newaxis])
    assert_allclose(means_of(column, new), expected, rtol=1e-6, atol=1e-6)


def test_counts_and_missing_cells():
    column = column_of().fit({"c": ["a", "a", "a", None]}, [1.0, 2.0, 3.0, 4.0])
    encoded = column.encode({"c": ["a", None, "unknown"]})[column.name]
    counts = np.expm1(encoded * column.scale_ + column.center_)[:, -1]
    assert_allclose(counts, [3, 1, 1], rtol=1e-6)  # without id, as what is missing


def test_a_weight_is_a_number_of_rows(rng):
    levels, y = levels_of(rng), rng.normal(size=300)
    weight = rng.integers(0, 4, 300)
    weighted = column_of().fit({"c": levels}, y, sample_weight=weight)
    repeated = column_of().fit({"c": levels.repeat(weight)}, y.repeat(weight))
    X = {"c": np.array([*repeated.categorical_column_.vocabulary], dtype=object)}
    assert_allclose(means_of(weighted, X), means_of(repeated, X), atol=1e-6)
    assert_allclose(weighted.scale_, repeated.scale_)
    # Shares, such as AdaBoost gives, are as if their mean was 1.
    shares = rng.uniform(size=300)
    ones = column_of().fit({"c": levels}, y, sample_weight=shares / shares.mean())
    few = column_of().fit({"c": levels}, y, sample_weight=shares / shares.sum())
    assert_allclose(few.transform(X), ones.transform(X), rtol=1e-6)


def test_targets_of_all_kinds():
    for y, size in [
        (None, 1),
        (np.zeros((40, 3)), 4),
        (np.eye(40, 2, dtype=np.uint8), 3),
        ({"a": np.arange(40) % 2, "b": np.where(np.arange(40) < 3, np.nan, 1.0)}, 3),
        (np.arange(40), 33),
        (np.array([[1], [2, 3]] * 20, dtype=object), 1),
    ]:
        X = {"c": np.array([*"abcd"] * 10, dtype=object)}
        columns = fc.FeatureColumns([column_of()]).fit(X, y)
        assert columns.active[0].size == size == len(columns.get_feature_names_out())
        beside = columns.training_features(X, y, seed=0)
        for features in (X, X | beside):
            encoded = columns.encode(features)["c_target_statistics"]
            assert encoded.shape == (40, size)
            assert encoded.isfinite().all()


@pytest.mark.parametrize("make", [fc.target_statistics_column, fc.target_ridge_column])
def test_a_label_is_not_in_what_stands_for_its_row(rng, make):
    X, y = {"c": levels_of(rng)}, rng.normal(size=300)
    column = make(fc.categorical_column_with_vocabulary_list("c"))
    assert_no_row_knows_its_label(column, X, y)


def noise(rng):
    levels = pd.Series(rng.integers(0, 500, 2000)).astype(str)
    return pd.DataFrame({"c": levels}), rng.integers(0, 2, 2000)


@pytest.mark.parametrize("warm_start", [False, True])
def test_nothing_leaks_in_fit(rng, warm_start):
    X, y = noise(rng)
    model = DNNClassifier(
        feature_columns=[column_of()],
        hidden_units=(32,),
        max_iter=5,
        warm_start=warm_start,
        random_state=0,
    ).fit(X, y)
    if warm_start:
        model.fit(X, y)
    X_new, y_new = noise(rng)
    probabilities = model.predict_proba(X_new)
    assert 0.45 < roc_auc_score(y_new, probabilities[:, 1]) < 0.55
    assert log_loss(y_new, probabilities) < 0.72  # of one who knows nothing: .693
    assert model.loss_ > 0.68


def test_parts_after_a_fit_are_encoded_as_in_predictions(rng):
    """What few rows say of levels is another thing than what all of the fit say."""
    town = rng.integers(0, 40, 2400)
    effect = rng.normal(size=40) * 2
    X = pd.DataFrame({"town": np.char.add("t", town.astype(str))})
    y = rng.uniform(size=2400) < 1 / (1 + np.exp(-effect[town]))
    model = DNNClassifier((16,), max_iter=8, random_state=0).fit(X[:800], y[:800])
    before = log_loss(y[1600:], model.predict_proba(X[1600:]))
    for start in range(800, 1600, 8):
        model.partial_fit(X[start : start + 8], y[start : start + 8])
    assert log_loss(y[1600:], model.predict_proba(X[1600:])) < 1.01 * before


def test_nothing_leaks_where_rows_of_the_fit_come_again(rng):
    X, y = noise(rng)
    X["x"] = rng.normal(size=len(X))  # with one column alone, rows are mostly equal
    model = DNNClassifier((32,), max_iter=5, random_state=0).fit(X, y)
    for start in (*range(0, 2000, 100),) * 3:
        model.partial_fit(X[start : start + 100], y[start : start + 100])
    X_new, y_new = noise(rng)
    probabilities = model.predict_proba(X_new.assign(x=rng.normal(size=len(X_new))))
    assert log_loss(y_new, probabilities) < 0.72


def test_a_new_level_is_not_a_gap(rng):
    """Every second cell is missing, always of one class; of names, few come again."""
    names = [f"name {i}" for i in rng.choice(600, 600)]
    is_missing = np.arange(600) % 2 == 0
    X = pd.DataFrame({"name": np.where(is_missing, None, names)})
    y = np.where(is_missing, 0, rng.integers(0, 2, 600))
    model = DNNClassifier(max_iter=10, random_state=0).fit(X, y)
    share = model.predict_proba(pd.DataFrame({"name": [None, "new", "newer"]}))[:, 1]
    assert share[0] < 0.2
    assert share[1] == share[2] > 0.4


def test_what_is_refused():
    for make, error, message in [
        (lambda: fc.target_statistics_column("c"), TypeError, "must be a categorical"),
        (lambda: column_of(smooth=-1), ValueError, "'smooth' .* 'auto' or a number"),
        (
            lambda: column_of().fit({"c": [["a", "b"]]}, [1.0]),
            ValueError,
            "one category in each cell; got 2. Use a target_ridge_column",
        ),
    ]:
        with pytest.raises(error, match=message):
            make()


def test_export(tmp_path, rng):
    export = pytest.importorskip("skest.export")
    pytest.importorskip("onnxruntime")
    X = pd.DataFrame({"c": levels_of(rng), "d": levels_of(rng)})
    hashed = fc.categorical_column_with_hash_bucket("d", 30)
    columns = [column_of(), fc.target_statistics_column(hashed)]
    model = DNNClassifier(feature_columns=columns, max_iter=2, random_state=0)
    model.fit(X, rng.integers(0, 3, 300))
    version = model.export(tmp_path)
    new = pd.DataFrame({"c": ["1", "unknown", None], "d": ["2", None, "x"]})
    expected = model.predict_proba(new)
    assert_allclose(export.load(version).predict_proba(new), expected, atol=1e-6)
