# SPDX-License-Identifier: Apache-2.0
"""Whole numbers that name things are told from amounts by what labels say."""

import re
import warnings

import numpy as np
import pandas as pd
import pytest

from skest import DNNClassifier, DNNRegressor, LinearClassifier, LinearRegressor
from skest.export import load
from skest.feature_columns.naming_numbers import are_names
from tests._models import single


def shops(n_rows=4000, n_shops=100, seed=1):
    """Rows of shops, and sales that each has of its own."""
    rng = np.random.default_rng(seed)
    shop = rng.integers(n_shops, size=n_rows)
    return shop, rng.normal(size=n_shops)[shop] + rng.normal(size=n_rows)


LABELS = {
    "numbers": lambda sales: sales,
    "two classes": lambda sales: sales > 0,
    "classes": lambda sales: np.digitize(sales, [-1, 0, 1]),
    "two outputs": lambda sales: np.stack([sales, -sales], axis=1),
    "heads": lambda sales: {"a": sales, "b": (sales > 0).astype(int)},
    "some missing": lambda sales: np.where(np.arange(len(sales)) % 9, sales, np.nan),
}


@pytest.mark.parametrize("kind", LABELS)
def test_shops_are_names_whatever_is_predicted(kind):
    shop, sales = shops()
    labels = LABELS[kind](sales)
    assert are_names(shop, labels)
    assert are_names(shop * 37 - 1000, labels)
    assert are_names(np.where(shop == 7, np.nan, shop), labels)
    assert not are_names(shop + 0.5, labels)
    assert not are_names(np.stack([shop, shop], axis=1), labels)


@pytest.mark.parametrize("n_rows", [1000, 4000, 50_000])
@pytest.mark.parametrize("n_levels", [30, 100, 150])
@pytest.mark.parametrize(
    "shape",
    [
        lambda x: 0 * x,
        lambda x: x,
        np.sqrt,
        lambda x: (x > 0.3) * 2,
        lambda x: (x == 0) * 5,
        lambda x: np.sin(3 * x),
    ],
)
def test_amounts_are_no_names(shape, n_levels, n_rows):
    rng = np.random.default_rng(1)
    amount = rng.integers(n_levels, size=n_rows)
    expected = shape(amount / n_levels)
    assert not are_names(amount, expected + rng.normal(size=n_rows))
    assert not are_names(amount, expected + rng.normal(size=n_rows) > 0.5)


def test_few_rows_and_few_or_rare_levels_are_no_names():
    assert not are_names(*shops(n_rows=900))
    assert not are_names(*shops(n_shops=29))
    assert not are_names(*shops(n_shops=3000))


def test_names_of_two_rows_each():
    rng = np.random.default_rng(0)
    route = rng.permutation(np.repeat(np.arange(1000), 3))
    size = rng.normal(size=1000)[route]
    X = pd.DataFrame({"route": route, "fare": rng.normal(size=3000)})
    y = size + 0.3 * X["fare"] + 0.1 * rng.normal(size=3000)
    model = single(DNNRegressor, max_iter=15).fit(X[:2400], y[:2400])
    assert model.score(X[2400:], y[2400:]) > 0.6
    amount = rng.lognormal(size=3000) * 300 // 1
    y = np.log1p(amount) + rng.normal(size=3000)
    assert not are_names(amount, y) and not are_names(amount, y > y.mean())


def test_of_many_rows_some_are_asked():
    shop, sales = shops(n_rows=300_000)
    assert are_names(shop, sales)
    # More are asked where each level has few of them.
    shop, sales = shops(n_rows=60_000, n_shops=8_000)
    assert are_names(shop, sales)
    noise = np.random.default_rng(0).normal(size=60_000)
    assert not are_names(shop, shop / 8_000 + noise)


def test_fits_make_categories_of_them_and_others_do_not_change():
    shop, sales = shops()
    X = pd.DataFrame({"shop": shop, "size": np.arange(4000.0) % 977})
    model = single(DNNRegressor, hidden_units=(16,), max_iter=8, learning_rate=0.01)
    model.fit(X[:3000], sales[:3000])
    assert model.score(X[3000:], sales[3000:]) > 0.4
    said = "^shop +embedding of numbered vocabulary "
    assert re.search(said, model.summary(), re.M)
    # Strings beside it, the frame is read by column from the start.
    mixed = X.assign(kind=np.where(shop % 2, "a", "b"))
    numbers, edges = model.feature_columns_.columns[:2]
    model.fit(mixed[:3000], sales[:3000])
    named = {c.name: c for c in model.feature_columns_.columns}
    assert {"shop_level_embedding", edges.name} < set(named)
    assert named["numbers"].feature_names == numbers.feature_names == ["shop", "size"]
    # Shuffled labels say nothing: all are numbers of one array.
    rng = np.random.default_rng(0)
    model.fit(X, rng.permutation(sales))
    assert [type(c).__name__ for c in model.feature_columns_.columns] == [
        "NumericFrameColumn",
        "PiecewiseLinearColumn",
    ]


def test_rows_without_weight_say_nothing():
    shop, sales = shops(n_rows=8000)
    noise = np.random.default_rng(0).permutation(sales)
    X = pd.DataFrame({"shop": np.append(shop, shop), "size": np.arange(16_000.0)})
    y = np.append(sales, noise)
    model = DNNRegressor((4,), max_iter=1, random_state=0)
    for first, expected in ((1, True), (0, False)):
        weight = np.repeat([first, 1 - first], 8000)
        names = model.fit(X, y, sample_weight=weight).feature_columns_.columns
        assert any(c.name == "shop_level_embedding" for c in names) is expected


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("estimator", [DNNClassifier, LinearClassifier])
def test_predictions_take_the_numbers_in_any_form(estimator, tmp_path):
    shop, sales = shops()
    X = pd.DataFrame({"shop": shop, "size": np.arange(4000) % 977})
    model = estimator(max_iter=2, random_state=0).fit(X, sales > 0)
    some = X[:50]
    expected = model.predict_proba(some)
    for other in (
        some.astype(float),
        some.astype("int32"),
        some.astype("Int64"),
        some.to_numpy(float),
        {name: some[name].to_numpy(float) for name in some},
    ):
        np.testing.assert_allclose(model.predict_proba(other), expected, atol=1e-6)
    gap = some.assign(shop=some["shop"].where(some.index > 0))
    new = some.assign(shop=10**6)
    # The whole part counts.
    between = some.assign(shop=some["shop"] + 0.25)
    for other in (gap, new, between):
        assert np.isfinite(model.predict_proba(other)).all()
    exported = load(model.export(tmp_path, example=some))
    for rows in (some, some.astype(float), gap, new, between):
        np.testing.assert_allclose(
            exported.run(rows)["scores"], model.predict_proba(rows), atol=1e-5
        )


def test_minus_one_among_ids_is_missing_and_linear_models_say_so():
    shop, sales = shops()
    X = pd.DataFrame({"shop_id": shop - 1, "size": np.arange(4000) % 977})
    with pytest.warns(
        UserWarning, match="'shop_id' holds the integer -1 among its cat"
    ):
        LinearRegressor(max_iter=1).fit(X, sales)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        single(DNNRegressor, hidden_units=(4,), max_iter=1).fit(X, sales)


def test_an_id_of_each_row_is_left_out():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"user_id": rng.permutation(10**6)[:400], "size": range(0, 800, 2)}
    )
    X["size"] %= 77
    model = DNNRegressor((4,), max_iter=1, random_state=0)
    with pytest.warns(
        UserWarning, match="'user_id' has another value in each row.*left"
    ):
        model.fit(X, rng.normal(size=400))
    assert model.feature_columns_.columns[0].feature_names == ["size"]
    # By another name it is an amount, as a price may be.
    model.fit(X.rename(columns={"user_id": "price"}), rng.normal(size=400))
    assert model.feature_columns_.columns[0].feature_names == ["price", "size"]


@pytest.mark.parametrize("estimator", [DNNRegressor, LinearRegressor])
def test_new_levels_are_predicted_by_their_number(estimator):
    rng = np.random.default_rng(0)
    incomes = rng.integers(10_000, 90_000, size=200)
    level = incomes / 30_000 + 0.3 * rng.normal(size=200)
    i = rng.integers(200, size=4000)
    X = pd.DataFrame({"income": incomes[i], "size": rng.normal(size=4000)})
    y = level[i] + 0.3 * rng.normal(size=4000)
    known = i < 150
    assert are_names(X["income"].to_numpy()[known], y[known])
    model = single(estimator, max_iter=30).fit(X[known], y[known])
    assert model.score(X[~known], y[~known]) > 0.5


def test_a_place_in_time_is_kept():
    t = np.arange(600)
    X = pd.DataFrame({"t": t, "z": np.random.default_rng(0).normal(size=600)})
    model = LinearRegressor(random_state=0).fit(X, 0.01 * t + 0.3 * X["z"])
    assert model.score(X, 0.01 * t + 0.3 * X["z"]) > 0.9


def test_a_panel_and_outputs_of_any_scale_hide_no_names():
    rng = np.random.default_rng(0)
    shop = np.tile(np.arange(50), 440)  # a multiple of the step that would take some
    sales = rng.normal(size=50)[shop] + rng.normal(size=len(shop))
    assert are_names(shop, sales)
    assert are_names(shop, np.stack([sales, 1000 * rng.normal(size=len(shop))], axis=1))
    assert not are_names(shop.astype(np.uint64) + np.uint64(2**63), sales)


@pytest.mark.parametrize("n_levels", [50, 200])
def test_repeated_rows_do_not_make_names_of_amounts(n_levels):
    rng = np.random.default_rng(0)
    amount = rng.integers(n_levels, size=5000)
    bought = amount / n_levels + rng.logistic(size=5000) > 4
    # Balanced by repeating buyers: ten rows of one amount are the same person.
    rows = np.append(
        np.flatnonzero(~bought), rng.choice(np.flatnonzero(bought), (~bought).sum())
    )
    rng.shuffle(rows)
    X = pd.DataFrame({"amount": amount, "size": rng.normal(size=5000)}).iloc[rows]
    assert are_names(X["amount"].to_numpy(), bought[rows])  # without a look at them
    model = LinearClassifier(max_iter=1, random_state=0).fit(X, bought[rows])
    assert len(model.feature_columns_.columns) == 1


def test_names_are_found_in_a_bootstrap_and_where_nothing_tells_rows_apart():
    shop, sales = shops()
    rows = np.random.default_rng(0).integers(4000, size=4000)
    X = pd.DataFrame({"shop": shop, "size": np.arange(4000) % 977})
    for table, y in ((X.iloc[rows], sales[rows] > 0), (X.assign(size=shop % 7), sales)):
        model = LinearClassifier if y.dtype == bool else LinearRegressor
        model = model(max_iter=1, random_state=0).fit(table, y)
        assert "shop_level" in [c.name for c in model.feature_columns_.columns]
