# SPDX-License-Identifier: Apache-2.0
"""`train(input_fn)` of the scikit-learn estimators: data larger than memory."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.metrics import r2_score

from skest import DNNClassifier, DNNRegressor, LinearClassifier
from skest import feature_columns as fc
from skest.inputs import ArrayDataset, parquet_input_fn
from tests.adapters._families import FAMILIES, rows_for
from tests.adapters.conftest import make

CITY = fc.categorical_column_with_vocabulary_list("city", ["Rome", "Oslo", "Bern"])


def columns(**options):
    return [fc.numeric_column("age", **options), fc.indicator_column(CITY)]


def stream(X, y, batch_size=20):
    """An input function of batches of a table."""

    def input_fn():
        for start in range(0, len(y), batch_size):
            rows = slice(start, start + batch_size)
            yield X.iloc[rows], y.iloc[rows]

    return input_fn


@pytest.fixture
def table(table):
    X, y = table
    return X[["age", "city"]].assign(age=X["age"] / 50), y


def test_it_trains_as_partial_fit_does_on_the_same_batches(table):
    X, y = table
    streamed = make(LinearClassifier, feature_columns=columns(), batch_size=20)
    parts = clone(streamed)
    streamed.train(stream(X, y), classes=[0, 1])
    for part_X, part_y in stream(X, y)():
        parts.partial_fit(part_X, part_y, classes=[0, 1])
    # partial_fit has the rows of a batch in another order, and sums round differently.
    np.testing.assert_allclose(streamed.coef_, parts.coef_, rtol=1e-5)
    assert streamed.n_steps_ == parts.n_steps_ == 10
    assert streamed.n_iter_ == 1
    assert streamed.loss_curve_ == [pytest.approx(np.mean(parts.loss_curve_))]


@pytest.mark.parametrize(
    "name", ["SDCA", "BaselineClassifier", "loss of the user's", "DNNRegressor"]
)
def test_every_estimator_begins_with_a_sample_and_goes_on(name):
    estimator = clone(FAMILIES[name])
    X, y, _ = rows_for(estimator, 120)
    if name == "SDCA":
        with pytest.raises(ValueError, match="Training by parts does not go with SDCA"):
            estimator.train(lambda: ArrayDataset(X, y, batch_size=20))
        return
    estimator.set_params(early_stopping=False).fit(X[:60], y[:60])
    before, n_iter = estimator.n_steps_, estimator.n_iter_
    estimator.train(lambda: ArrayDataset(X, y, batch_size=20, num_epochs=2))
    assert estimator.n_steps_ == before + 12
    assert estimator.n_iter_ == n_iter + 1
    assert estimator.predict(X).shape == y.shape
    assert np.isfinite(estimator.score(X, y))


def test_files(tmp_path, table):
    X, y = table
    for part in range(4):
        rows = slice(50 * part, 50 * (part + 1))
        frame = X.iloc[rows].assign(buys=np.where(y.iloc[rows] == 1, "yes", "no"))
        frame.to_parquet(tmp_path / f"part-{part}.parquet")
    input_fn = parquet_input_fn(
        tmp_path / "*.parquet", 20, label="buys", shuffle=True, num_epochs=12
    )
    model = make(DNNClassifier, feature_columns=columns(), learning_rate=0.2)
    model.train(input_fn, classes=["no", "yes"])
    assert model.n_steps_ == 120
    assert model.classes_.tolist() == ["no", "yes"]
    assert set(model.feature_names_in_) == {"age", "city"}
    answer = np.where(y == 1, "yes", "no")
    assert model.score(X, answer) > 0.9
    again = make(DNNClassifier, feature_columns=columns(), learning_rate=0.2)
    again.train(input_fn, classes=["no", "yes"])
    np.testing.assert_array_equal(model.predict_proba(X), again.predict_proba(X))


def test_fitted_columns_keep_what_they_have_learned(table):
    X, y = table
    given = fc.FeatureColumns(columns(normalizer="standard")).fit(X)
    model = make(DNNClassifier, feature_columns=given).train(stream(X, y))
    want, got = given.transform(X), model.feature_columns_.transform(X)
    np.testing.assert_array_equal(want, got)
    model.partial_fit(X, y)
    np.testing.assert_array_equal(want, model.feature_columns_.transform(X))
    assert model.n_iter_ == 2


def test_steps_and_max_steps(table):
    X, y = table
    model = make(LinearClassifier, feature_columns=columns(), max_steps=3)
    assert model.train(stream(X, y)).n_steps_ == 3
    assert model.train(stream(X, y), steps=4).n_steps_ == 7
    assert model.train(stream(X, y), max_steps=9).n_steps_ == 9
    before = model.coef_
    assert model.train(stream(X, y), max_steps=9).n_iter_ == 3
    np.testing.assert_array_equal(model.coef_, before)
    with pytest.raises(ValueError, match="both|'steps'"):
        model.train(stream(X, y), steps=1, max_steps=20)


# What is refused, and what that leaves behind


def test_columns_that_would_learn_are_refused(table):
    with pytest.raises(ValueError, match="'feature_columns' is None, and train cannot"):
        make(DNNClassifier).train(stream(*table))
    open_columns = columns(normalizer="standard")
    for given in (open_columns, fc.FeatureColumns(open_columns)):
        with pytest.raises(ValueError, match=r"learn from .* rows.*: 'age'\. Say what"):
            make(DNNClassifier, feature_columns=given).train(stream(*table))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"early_stopping": True}, "does not support early_stopping=True"),
        ({"class_weight": "balanced"}, "needs all rows at once"),
        ({"sampling": "weighted"}, "which train does not have"),
    ],
)
def test_parameters_that_need_all_rows_are_refused(table, options, message):
    model = make(DNNClassifier, feature_columns=columns(), **options)
    with pytest.raises(ValueError, match=message):
        model.train(stream(*table))


def test_batches_that_are_no_rows_with_labels(table):
    X, y = table
    model = make(LinearClassifier, feature_columns=columns())
    with pytest.raises(ValueError, match=r"pairs \(X, y\); .* features without labels"):
        model.train(lambda: [X])
    with pytest.raises(ValueError, match="The input of train has no batch"):
        model.train(lambda: [])
    with pytest.raises(TypeError, match="'input_fn' must return an ArrayDataset or an"):
        model.train(lambda: X)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.train(lambda: [(X, y[:-1])])


def test_an_unknown_class_leaves_the_model_as_it_was(table):
    X, y = table
    model = make(LinearClassifier, feature_columns=columns()).train(stream(X, y))
    before = model.predict_proba(X)
    bad = [(X, y), (X[:2], pd.Series([0, 7]))]
    with pytest.raises(ValueError, match=r"not among the classes: \[7\]"):
        model.train(lambda: bad)
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert model.n_steps_ == 10
    with pytest.raises(ValueError, match=r"not the same as in the first call"):
        model.train(stream(X, y), classes=[0, 1, 2])


@pytest.mark.parametrize("begun_by_fit", [False, True])
def test_later_batches_may_be_beyond_the_first(begun_by_fit):
    x = np.linspace(0, 10, 2000)
    batches = [({"x": x[i : i + 100]}, 3 * x[i : i + 100]) for i in range(0, 2000, 100)]
    column = fc.numeric_column("x", normalizer="auto" if begun_by_fit else None)
    own = {"n_members": 1, "learning_rate": 0.02, "random_state": 0}
    model = DNNRegressor((16,), feature_columns=[column], **own)
    if begun_by_fit:
        model.set_params(max_iter=5).fit({"x": x[:200]}, 3 * x[:200])
    for _ in range(6):
        model.train(lambda: batches)
    assert r2_score(3 * x, model.predict({"x": x})) > 0.95
