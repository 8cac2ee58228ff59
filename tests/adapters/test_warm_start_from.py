# SPDX-License-Identifier: Apache-2.0
"""`warm_start_from` of scikit-learn's estimators: fitted sources, and what changed."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV

from skest import (
    DNNClassifier,
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearRegressor,
    RNNClassifier,
    VocabInfo,
    WarmStartSettings,
)
from skest import feature_columns as fc
from skest.exceptions import CheckpointMismatchError, NotFittedError
from tests._models import single
from tests.adapters.conftest import tf_settings

OLD, NEW = "abcdef", "fedxbyc"
KNOWN = "bcdef"
# A step with this rate changes nothing that counts.
TINY = 1e-6


def table(values, n=60, seed=0):
    rng = np.random.default_rng(seed)
    words = np.array(list(values))[np.arange(n) % len(values)]
    X = pd.DataFrame({"w": words, "x": rng.normal(size=n), "i": np.arange(n) % 5})
    effect = np.array([ord(word) % 4 for word in words], dtype=float)
    return X, effect + X["x"].to_numpy()


def words_column(**options):
    return fc.categorical_column_with_vocabulary_list("w", **options)


def labels(y, names=("lo", "mid", "hi")):
    return np.array(names)[np.digitize(y, [0.5, 2.0])]


def fitted(model, values=OLD, *, target=lambda y: y, **parameters):
    X, y = table(values)
    settings = {"max_iter": 3, "random_state": 0, "batch_size": 20}
    model = model(**tf_settings(model) | settings | parameters)
    return model.fit(X, target(y))


def warm(model, old, values=NEW, *, target=lambda y: y, **parameters):
    """Return an estimator after one small step from `old`."""
    X, y = table(values)
    rates = {
        name: TINY for name in model().get_params() if name.endswith("learning_rate")
    }
    settings = {"max_steps": 1, "random_state": 1, "warm_start_from": old}
    model = model(**tf_settings(model) | rates | settings | parameters)
    return model.fit(X, target(y))


def row(estimator, name, value, columns="feature_columns_"):
    """Return the row that a variable has for a value of the column "w"."""
    (column,) = (c for c in getattr(estimator, columns).active if c.name == "w")
    position = list(column.vocabulary).index(value)
    return estimator.estimator_.get_variable_value(name)[position]


def value(estimator, name):
    return estimator.estimator_.get_variable_value(name)


TARGETS = {
    LinearRegressor: lambda y: y,
    DNNClassifier: labels,
    DNNLinearCombinedRegressor: lambda y: y,
}


@pytest.mark.parametrize("model", TARGETS)
def test_what_source_and_new_data_know_is_predicted_as_by_the_source(model):
    target = TARGETS[model]
    old = fitted(model, target=target)
    method = "predict_proba" if target is labels else "predict"
    for values, X in ((OLD, table(OLD)[0]), (NEW, table(KNOWN, seed=3)[0])):
        new = warm(model, old, values, target=target)
        np.testing.assert_allclose(
            getattr(new, method)(X), getattr(old, method)(X), rtol=1e-3, atol=2e-3
        )
        if values == OLD:
            assert not new.warm_start_report_.not_warm_started
            assert new.n_steps_ == 1


# Columns


COPIED = {
    "hashed": (
        fc.categorical_column_with_hash_bucket("w", 7),
        fc.categorical_column_with_hash_bucket("w", 8),
        "w_weights",
    ),
    "crossed": (
        fc.crossed_column(["w", "i"], 7),
        fc.crossed_column(["w", "i"], 9),
        "i_X_w_weights",
    ),
    "bucketized": (
        fc.bucketized_column(fc.numeric_column("x"), [0.0]),
        fc.bucketized_column(fc.numeric_column("x"), [-1.0, 1.0]),
        "x_bucketized_weights",
    ),
}


@pytest.mark.parametrize(("column", "other", "name"), COPIED.values(), ids=COPIED)
def test_buckets_are_copied_if_they_mean_the_same(column, other, name):
    old = fitted(LinearRegressor, feature_columns=[column])
    same = warm(LinearRegressor, old, feature_columns=[column])
    np.testing.assert_allclose(value(same, name), value(old, name), atol=1e-4)
    changed = warm(LinearRegressor, old, feature_columns=[other])
    np.testing.assert_allclose(value(changed, name), 0, atol=1e-4)
    report = changed.warm_start_report_
    assert report.not_warm_started == {name: "not in the source"}
    assert report.warm_started == ["bias"]


@pytest.mark.parametrize(("hidden_units", "n_members"), [((), 1), ((4,), 3)])
def test_inputs_of_a_network_are_found_by_column_and_value(hidden_units, n_members):
    before = [fc.indicator_column(words_column()), fc.numeric_column("x")]
    after = [fc.numeric_column("i"), *before]
    options = {"hidden_units": hidden_units, "optimizer": "sgd"}
    options["n_members"] = n_members
    old = fitted(DNNRegressor, feature_columns=before, **options)
    new = warm(DNNRegressor, old, feature_columns=after, **options)
    first = "hidden_0.weight" if hidden_units else "logits.weight"
    for name in (first, "member_scales") if n_members > 1 else (first,):
        before, after = value(old, name), value(new, name)
        for word in KNOWN:
            np.testing.assert_allclose(
                after[:, 1 + sorted(NEW).index(word)],
                before[:, sorted(OLD).index(word)],
                atol=1e-4,
            )
        np.testing.assert_allclose(after[:, -1], before[:, -1], atol=1e-4)


def test_shared_embeddings_and_names_with_dots():
    def data(values):
        X, y = table(values)
        return X.assign(**{"v.1": X["w"].to_numpy()[::-1]}), y

    columns = fc.shared_embeddings(
        [
            fc.categorical_column_with_vocabulary_list(key, list(vocabulary))
            for key, vocabulary in (("w", OLD), ("v.1", OLD))
        ],
        2,
    )
    settings = {"max_steps": 1, "random_state": 0, **tf_settings(DNNRegressor)}
    model = DNNRegressor(4, feature_columns=columns, **settings)
    X, y = data(OLD)
    old = model.fit(X, y)
    new = clone(old).set_params(warm_start_from=old, learning_rate=TINY).fit(X, y)
    assert not new.warm_start_report_.not_warm_started
    (name,) = (n for n in old.estimator_.checkpoint.variables if "shared" in n)
    np.testing.assert_allclose(value(new, name), value(old, name), atol=1e-4)


def test_sequences():
    def data(values):
        X, y = table(values)
        return pd.DataFrame(
            {"s": [[a, b] for a, b in zip(X.w, X.w[::-1], strict=True)]}
        ), labels(y)

    X, y = data(OLD)
    old = RNNClassifier(4, max_iter=2, random_state=0).fit(X, y)
    X, y = data(NEW)
    new = RNNClassifier(
        4, max_steps=1, learning_rate=TINY, random_state=0, warm_start_from=old
    ).fit(X, y)
    reports = {v.name: v for v in new.warm_start_report_.variables}
    assert any(v.n_copied and v.n_new for v in reports.values())
    assert not new.warm_start_report_.not_warm_started


# Targets


def test_classes_are_found_by_name():
    old = fitted(LinearClassifier, target=labels)
    new = warm(
        LinearClassifier, old, OLD, target=partial(labels, names=("lo", "top", "hi"))
    )
    old_classes, new_classes = list(old.classes_), list(new.classes_)
    for name in ("lo", "hi"):
        now, before = new_classes.index(name), old_classes.index(name)
        for variable, axis in (
            ("bias", 0),
            ("categories_weights", 1),
            ("numbers_weights", 1),
        ):
            np.testing.assert_allclose(
                value(new, variable).take(now, axis),
                value(old, variable).take(before, axis),
                atol=1e-4,
            )
    np.testing.assert_allclose(
        value(new, "bias")[new_classes.index("top")], 0, atol=1e-4
    )


NUMBERS = {
    "numeric": fc.numeric_column("x", normalizer="standard"),
    "indicator": fc.indicator_column(
        fc.bucketized_column(fc.numeric_column("x"), "quantiles:4")
    ),
    "piecewise": fc.piecewise_linear_column(fc.numeric_column("x"), "distinct:4"),
    "code": fc.piecewise_linear_column(fc.numeric_column("x"), "quantiles:4", None),
}


@pytest.mark.parametrize(
    ("encoding", "sources"),
    [
        ("ple", [0, None, None, 2]),  # bins from -1, 0, .5 and 1
        ("onehot", [0, None, None, 2, 3]),
    ],
)
@pytest.mark.parametrize("model", [LinearRegressor, DNNRegressor])
def test_rows_of_a_table_follow_their_edges(model, encoding, sources):
    def given(edges):
        column = fc.piecewise_linear_column(fc.numeric_column("x"), edges, 2, encoding)
        return {"feature_columns": [fc.numeric_column("x"), column]}

    old = fitted(model, **given([-1, 0, 1, 1.5]))
    new = warm(model, old, **given([-1, 0, 0.5, 1, 1.5]))
    end = f"x_{encoding}_weights"
    (name,) = (n for n in new.estimator_.get_variable_names() if n.endswith(end))
    before = value(old, name)
    assert before.any(axis=1).all()
    rows = [np.zeros_like(before[0]) if i is None else before[i] for i in sources]
    np.testing.assert_allclose(value(new, name), rows, atol=1e-3)


@pytest.mark.parametrize("column", NUMBERS.values(), ids=NUMBERS)
def test_numbers_are_scaled_and_cut_as_in_the_source(column):
    X, y = table(OLD)
    old = LinearRegressor(feature_columns=[column], random_state=0).fit(X, y)
    moved = X.assign(x=2 * X["x"] + 1)
    new = clone(old).set_params(warm_start_from=old, learning_rate=TINY, max_steps=1)
    np.testing.assert_allclose(
        new.fit(moved, y).predict(X), old.predict(X), rtol=1e-3, atol=1e-3
    )
    part = new.set_params(warm_start_from=WarmStartSettings(old, "bias")).fit(moved, y)
    ours, theirs = (m.feature_columns_.transform(X) for m in (part, old))
    assert not np.allclose(np.asarray(ours), np.asarray(theirs))


@pytest.mark.parametrize("names", [["b", "s", "a"], ["a", "new", "s", "b"], ["s", "b"]])
@pytest.mark.parametrize("model", [LinearRegressor, DNNRegressor])
def test_numbers_of_a_table_may_come_and_go(model, names):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(400, 3)), columns=["a", "b", "new"])
    X["s"] = rng.choice(["x", "y"], 400)
    X.loc[::9, "b"] = np.nan
    y = 2 * X["b"].fillna(0) + (X["s"] == "x")
    X["a"] *= 0.01  # so that it has no part in the predictions
    short = {"max_iter": 20, "learning_rate": 0.01} if model is DNNRegressor else {}
    old = single(model, **short).fit(X[["a", "b", "s"]], y)
    later = X[names].assign(b=X["b"] * 7)  # in another scale, which must not count
    rate = {"learning_rate": TINY, "l2_regularization_strength": 0}
    new = single(model, random_state=1, max_steps=1, warm_start_from=old)
    new.set_params(**{k: v for k, v in rate.items() if k in new.get_params()})
    new.fit(later, y)
    expected = old.predict(X[["a", "b", "s"]])
    assert np.corrcoef(new.predict(X[names]), expected)[0, 1] > 0.98
    (part,) = (c for c in new.feature_columns_.active if c.name == "numbers")
    before = old.feature_columns_.active[0]
    assert part.center_[part.feature_names.index("b")] == before.center_[1]


# Other sources


def test_settings_of_the_user_come_first():
    old = fitted(LinearRegressor)
    info = VocabInfo(sorted(NEW), -1, 0, [], -1, torch.nn.init.ones_)
    settings = WarmStartSettings(old, ["bias"], {"categories_weights": info})
    new = warm(LinearRegressor, settings)
    np.testing.assert_allclose(value(new, "categories_weights"), 1, atol=1e-4)
    reasons = new.warm_start_report_.not_warm_started
    assert reasons["categories_weights"] == "not in the source"
    assert reasons["numbers_weights"] == "not selected"


def test_a_network_keeps_the_members_of_its_source():
    (few, y_few), (many, y) = table(OLD, 40), table(OLD, 200)
    own = {"max_iter": 2, "random_state": 0}
    source = DNNRegressor(8, warm_start=True, **own).fit(few, y_few)
    assert source.auto_params_["n_members"] == 16
    model = DNNRegressor(8, warm_start_from=clone(source).fit(few, y_few), **own)
    # One begins with all rows at once, one by parts; one goes on itself.
    for each in (clone(model).fit(many, y), model.partial_fit(many, y)):
        assert "member_scales" in each.warm_start_report_.warm_started
    assert source.fit(many, y).auto_params_["n_members"] == 16
    three = DNNRegressor(8, **own).fit(many, y)
    model = DNNRegressor(8, warm_start_from=three, **own).fit(few, y_few)
    assert model.auto_params_["n_members"] == three.auto_params_["n_members"] == 3


def test_a_linear_model_becomes_the_wide_part():
    columns = [words_column()]
    old = fitted(LinearRegressor, feature_columns=columns)
    names = {"linear.w_weights": "w_weights", "linear.bias": "bias"}
    settings = WarmStartSettings(old, list(names), var_name_to_prev_var_name=names)
    new = warm(
        DNNLinearCombinedRegressor,
        settings,
        linear_feature_columns=columns,
        dnn_feature_columns=[fc.numeric_column("x")],
    )
    assert new.warm_start_report_.warm_started == ["linear.bias", "linear.w_weights"]
    assert row(
        new, "linear.w_weights", "b", "linear_feature_columns_"
    ) == pytest.approx(row(old, "w_weights", "b"), abs=1e-4)


# Refusals


def test_a_network_of_another_size_is_refused():
    old = fitted(DNNRegressor, hidden_units=4)
    with pytest.raises(CheckpointMismatchError, match=r"hidden_0.bias: \(4,\) in the"):
        warm(DNNRegressor, old, hidden_units=5)


def test_a_source_that_is_not_fitted():
    with pytest.raises(NotFittedError, match="is a LinearRegressor that is not fitted"):
        warm(LinearRegressor, LinearRegressor())


def test_dual_coordinate_ascent_can_be_a_source_only():
    old = fitted(LinearRegressor, optimizer="sdca")
    assert warm(LinearRegressor, old).warm_start_report_.warm_started
    with pytest.raises(ValueError, match="LinearSDCA trains cannot be warm-started"):
        fitted(LinearRegressor, optimizer="sdca", warm_start_from=old)


# Beside the rest of scikit-learn


def test_a_search_over_sources():
    old = fitted(LinearRegressor)
    X, y = table(OLD)
    search = GridSearchCV(
        LinearRegressor(max_steps=2, random_state=0),
        {"warm_start_from": [None, FrozenEstimator(old), WarmStartSettings(old)]},
        cv=2,
    ).fit(X, y)
    scores = search.cv_results_["mean_test_score"]
    assert scores[1] == scores[2] > scores[0]
    assert search.best_estimator_.warm_start_report_ is not None


def test_later_fits_go_on_from_their_own_state():
    X, y = table(OLD)
    old = fitted(LinearRegressor)
    model = LinearRegressor(
        max_iter=2, warm_start=True, warm_start_from=old, random_state=0
    ).fit(X, y)
    report, first = model.warm_start_report_, value(model, "categories_weights")
    model.set_params(learning_rate=TINY).fit(X, y)
    assert model.warm_start_report_ is report
    assert model.n_iter_ == 4
    np.testing.assert_allclose(value(model, "categories_weights"), first, atol=1)
    anew = model.set_params(warm_start=False).fit(X, y)
    assert anew.n_iter_ == 2
    assert anew.warm_start_report_ is not report
