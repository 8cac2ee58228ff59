# SPDX-License-Identifier: Apache-2.0

import itertools
import warnings

import numpy as np
import pandas as pd
import pytest
from pandas.tseries.offsets import Day
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss

from skest import (
    DNNLinearCombinedRegressor,
    DNNRegressor,
    LinearClassifier,
    LinearRegressor,
    export,
)
from skest.feature_columns import LinearFeatures, infer_feature_columns
from skest.feature_columns import choice as chosen
from tests._models import single


@pytest.mark.parametrize("kind", ["dense", "linear"])
def test_very_many_levels_are_hashed(monkeypatch, kind):
    monkeypatch.setattr(chosen, "MAX_VOCABULARY_LEVELS", 11)
    many = {"c": np.array([f"m{i}" for i in range(12)])}
    column = infer_feature_columns(many, kind).active[0]
    if kind == "dense":
        assert column.size == 16
        column = column.categorical_column
    assert column.num_buckets == chosen.HASH_BUCKET_SIZE == 100_000


def test_array_of_numbers_becomes_one_column():
    for dtype in [np.float64, np.float32, np.int64, np.int8, object]:
        X = np.arange(12).reshape(4, 3).astype(dtype)
        columns = infer_feature_columns(X)
        (column,) = columns.active
        assert column.name == "x"
        assert column.shape == (3,)
        assert column.dtype == (
            "float32" if dtype in (np.float32, np.int8) else "float64"
        )
        np.testing.assert_allclose(columns.fit_transform(X).mean(axis=0), 0, atol=1e-7)


def test_names_that_end_as_encoded_keys_do():
    for kind in ["dense", "linear"]:
        X = pd.DataFrame({"city": ["Bern", "Oslo"], "city_ids": [17, 19]})
        columns = infer_feature_columns(X, kind).fit(X)
        encoded = columns.encode(X)
        assert encoded["city_ids"].tolist() == [[0], [1]]
        assert encoded["city_ids_numbers"].tolist() == [[-1], [1]]
        assert LinearFeatures(columns)(encoded).shape == (2, 1)
        assert columns.transform(X).shape == (2, 3)


def test_the_category_minus_one():
    for kind in ["dense", "linear"]:
        for cells in [pd.Series([-1, 0, 1], dtype="category"), [[-1, 0], [1], [0]]]:
            X = {"c": cells}
            with pytest.warns(UserWarning, match="'c' holds .* -1 .* make strings of"):
                columns = infer_feature_columns(X, kind).fit(X)
            assert columns.encode(X)["c_ids"][0, 0] == -1


def test_numbers_called_ids_are_numbers_with_a_warning():
    names = ["id", "ID", "store_id", "userId", "PULocationID", "zip code", "zipcode"]
    for name, kind, missing in zip(
        names, itertools.cycle(["dense", "linear"]), itertools.cycle([[], [None], []])
    ):
        X = pd.DataFrame({name: [10115, 94040, 501, 10115, *missing]})
        with pytest.warns(
            UserWarning, match=f"'{name}' holds whole .*astype.'category'"
        ):
            (column,) = infer_feature_columns(X, kind).active
        assert column.name == name
        (column,) = infer_feature_columns(X.astype("category"), "linear").fit(X).active
        assert column.num_buckets == 3


@pytest.mark.filterwarnings("error")
def test_numbers_not_called_ids_have_no_warning():
    for name, values in [
        *[(name, [1, 2, 7]) for name in ("paid", "grid", "GRID", "humid", "decode")],
        ("fnlwgt", [77516, 83311, 215646]),
        ("sched_dep_time", [515, 529, 1530]),
        ("id", [0, 1, 0]),
        ("id", [0.5, 1, 2]),
        ("id", [[1, 2], [3, 4]]),
    ]:
        infer_feature_columns({name: np.array(values), "x": np.arange(len(values)) % 2})


N = 300


def table(rng):
    return pd.DataFrame(
        {
            "number": rng.normal(size=N),
            "text of numbers": [f" {value:.2f}" for value in rng.normal(size=N)],
            "code": [f"0{value}" for value in rng.integers(1000, 1040, N)],
            "when": pd.date_range("2020-01-01", periods=N, freq="7h"),
            "day": [f"2021-03-{day:02d}" for day in rng.integers(1, 29, N)],
            "words": [" ".join(rng.choice([*"abcdefgh"], 6)) for _ in range(N)],
            "flag": rng.integers(0, 2, N) == 1,
            "one": "c",
            "few": rng.choice([*"abc"], N),
        }
    )


def test_a_table_of_everything(rng):
    X = table(rng)
    X.loc[0, ["text of numbers", "day", "few"]] = " ", None, None
    columns = infer_feature_columns(X)
    assert [column.name for column in columns.active] == [
        "number",
        "text of numbers",
        "code_embedding",
        "code_target_statistics",
        "when_seconds",
        "when_weekday",
        "when_hour",
        "day_seconds",
        "day_weekday",
        "words_embedding",
        "words_target_ridge",
        "flag_indicator",
        "one_indicator",
        "few_indicator",
    ]
    y = rng.integers(0, 2, N)
    encoded = columns.fit(X, y).encode(X)
    assert all(values.isfinite().all() for values in encoded.values())
    assert encoded["text of numbers"].shape == (N, 2)
    assert encoded["text of numbers"][0].tolist() == [0, 1]
    linear = infer_feature_columns(X, "linear").fit(X, y)
    assert "code" in [column.name for column in linear.active]


@pytest.mark.parametrize(
    "cells, may_name_things",
    [
        (["17", "4", "101"] * 3 + [None, " "], True),
        (["17.0", "4.0", "101.0"] * 2, True),
        (["17", "4", "101", "12"], False),  # none comes again
        (["0", "1"] * 3, False),
        (["17.5", "4", "101"] * 2, False),
        # What no graph reads as a number.
        (["17", "4", "\N{FULLWIDTH DIGIT ONE}"] * 3, False),
        (["17", "4", "1e-400"] * 3, False),
    ],
)
def test_strings_of_whole_numbers_may_name_things(cells, may_name_things):
    X = {"c": np.array(cells, dtype=object)}
    names = [column.name for column in infer_feature_columns(X).fit(X).active]
    assert names == ["c", "c_indicator"][: 1 + may_name_things]
    (column,) = infer_feature_columns(X, "linear").fit(X).active
    assert hasattr(column, "num_buckets") is may_name_things


def test_rows_of_many_groups_that_are_named_by_numbers(rng):
    """What groups have in common is learned, though their numbers have no order."""
    group = rng.permutation(400)[rng.integers(0, 400, 4_000)]
    y = rng.normal(size=400)[group] + 0.1 * rng.normal(size=4_000)
    X = pd.DataFrame({"group": group.astype(str), "other": rng.normal(size=4_000)})
    model = DNNRegressor(max_iter=10, random_state=0).fit(X[:3_000], y[:3_000])
    assert model.score(X[3_000:], y[3_000:]) > 0.9


def test_a_threshold_in_time_is_seen_and_exported(rng, tmp_path):
    when = pd.date_range("2020-01-01", periods=2_000, freq="11h")
    X = pd.DataFrame({"when": when, "other": rng.normal(size=2_000)})
    y = np.where(when.month == 7, 1.0, 0.0) + np.where(when.year > 2020, 2.0, 0.0)
    model = single(DNNRegressor, max_iter=8, learning_rate=0.01).fit(X, y)
    assert model.score(X, y) > 0.98
    assert "when_month_ple" in [c.name for c in model.feature_columns_.active]
    exported = export.load(model.export(tmp_path / "export")).predict(X)
    np.testing.assert_allclose(exported.ravel(), model.predict(X), atol=1e-4)


@pytest.mark.parametrize("make", [DNNRegressor, DNNLinearCombinedRegressor])
def test_strings_of_whole_numbers_are_exported(rng, make, tmp_path):
    cells = rng.integers(100, 140, 600).astype(str).astype(object)
    cells[[1, 2, 3, 4]] = None, "", " ", "  "
    X = pd.DataFrame({"code": cells, "other": rng.normal(size=600)})
    y = np.array([len(set(str(cell))) for cell in cells], dtype=float)
    model = single(make, max_iter=3).fit(X, y)
    others = ["7", "107.5", "1e-400", "1e-310", "1_20", "\N{FULLWIDTH DIGIT ONE}20"]
    new = pd.concat([X, X[:6].assign(code=others), X[:1].assign(code="\u0663")])
    for example in (None, X[:8]):
        exported = export.load(model.export(tmp_path / make.__name__, example=example))
        found = exported.predict(new).ravel()
        np.testing.assert_allclose(found, model.predict(new), atol=1e-4)
    for text in ("12 rooms", "inf", "a"):
        with pytest.raises(ValueError, match="'code' takes numbers, written as texts"):
            exported.predict(X.assign(code=text))
        with pytest.raises(ValueError, match="'code'"):
            model.predict(X.assign(code=text))


def test_marks_among_whole_numbers_are_gaps_of_a_number(rng, tmp_path):
    codes = rng.integers(100, 140, 300)
    cells = codes.astype(str).astype(object)
    cells[:40:4], cells[1:40:4] = "?", " NA"
    X = pd.DataFrame({"code": cells})
    model = DNNRegressor((8,), max_iter=2, random_state=0).fit(X, codes)
    names = [column.name for column in model.feature_columns_.active]
    assert names == ["code", "code_ple"]
    exported = export.load(model.export(tmp_path))
    gaps = pd.DataFrame({"code": ["?", "", None, " NA", "5.0"]})
    for found in (model.predict(gaps), exported.predict(gaps).ravel()):
        np.testing.assert_allclose(found[:4], found[0], rtol=1e-6)
    # A file without marks has numbers.
    assert model.predict(pd.DataFrame({"code": [5]}))[0] == pytest.approx(found[4])


@pytest.mark.parametrize("first", [0, 20], ids=["always", "later"])
def test_marks_among_the_numbers_of_a_sheet_are_gaps(rng, tmp_path, first):
    """A column of Excel holds floats and strings, side by side, maybe in a few rows."""
    floats = pd.Series(rng.normal(size=60))
    floats[first::5] = np.nan
    cells = floats.astype(object)
    cells[first::5] = "n/a"
    models = [
        DNNRegressor((8,), max_iter=2, random_state=0).fit(
            x[:20].to_frame("x"), range(20)
        )
        for x in (cells, floats)
    ]
    loaded = export.load(models[0].export(tmp_path))
    expected = models[1].predict(floats.to_frame("x"))
    for model in (models[0], loaded):
        found = np.ravel(model.predict(cells.to_frame("x")))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    cells[0] = "high"
    with pytest.raises(ValueError, match=r"'x' must hold either strings or integers"):
        infer_feature_columns({"x": cells})


@pytest.mark.parametrize("form", [str, lambda day: day], ids=["strings", "objects"])
def test_marks_among_dates_are_gaps(tmp_path, form):
    days = pd.Series(pd.date_range("2026-01-01", periods=60))
    days[20::5] = pd.NaT
    cells = days.map(form).astype(object)
    cells[20::5] = "n/a"
    expected, found = (
        DNNRegressor((8,), max_iter=2, random_state=0).fit(x.to_frame("x"), range(60))
        for x in (days, cells)
    )
    answers = expected.predict(days.to_frame("x"))
    for model in (found, export.load(found.export(tmp_path))):
        given = np.ravel(model.predict(cells.to_frame("x")))
        np.testing.assert_allclose(given, answers, rtol=1e-5)


def test_words_beside_codes_are_levels(rng):
    cells = rng.integers(0, 5, 300).astype(str).astype(object)
    cells[::4] = "unknown"
    (column,) = infer_feature_columns({"c": cells}).columns
    assert column.name == "c_indicator"


def test_free_text():
    """Long ones are bags of words; of short ones the warning says how to make one."""
    number = np.arange(1000) / 7
    long = [f"Order {i} has arrived in good time" for i in range(1000)]
    X = pd.DataFrame({"n": number, "c": long})
    words = infer_feature_columns(X, "linear").active[1]
    assert (words.name, words.delimiter) == ("c", r"\w+")
    assert words.encode(X)["c_ids"].shape == (1000, 7)
    X = pd.DataFrame({"n": number, "c": [f"Order {i}" for i in range(1000)]})
    bag = r"for its words categorical_column_with_hash_bucket\('c', .*delimiter='\\\\w\+'\)"
    with pytest.warns(UserWarning, match=f"'c' has another .* left out.* {bag}"):
        assert len(infer_feature_columns(X).active) == 1


@pytest.mark.parametrize(
    "form", ["big{} cat{} nap{}", "big{},cat{},nap{}", '["big{}","cat{}","nap{}"]']
)
def test_titles_of_words_that_come_again_are_texts(form, rng):
    numbers = rng.integers((20, 30, 10), size=(N, 3))
    X = pd.DataFrame({"title": [form.format(*row) for row in numbers.tolist()]})
    words, ridge = infer_feature_columns(X).active
    assert words.categorical.delimiter == ridge.categorical.delimiter == r"\w+"
    # As categories, frequent ones have vectors of their own; numbers and names of single
    # rows are no words that come again; and one word is what a category is.
    often = pd.concat([X[:5]] * 10 + [X[:40]])["title"]
    versions = X["title"].str.replace(r"\D+", ".", regex=True)
    codes = pd.Series([f"ORD-{i:x}x@mail{i % 3}.com" for i in range(N)])
    single = "big" + versions
    for cells in (often, *(pd.concat([c, c[:9]]) for c in (versions, codes, single))):
        first = infer_feature_columns(pd.DataFrame({"cell": cells})).active[0]
        assert getattr(first.categorical, "delimiter", None) is None


def test_texts_without_spaces(rng):
    """Chinese and Japanese are read by pairs of characters, alone and among others."""
    words = np.array(["房间", "早餐", "カメラ", "電池", "服务", "喜欢", "失望", "満足"])
    drawn = words[rng.integers(len(words), size=(300, 7))]
    sentences = pd.Series(["".join(row) + "。Wi-Fi" for row in drawn])
    column = infer_feature_columns(pd.DataFrame({"c": sentences}), "linear").active[0]
    assert column.delimiter == r"\w+"
    same = pd.DataFrame({"c": ["カメラ。Wi-Fi", "カメ、メラ、wi fi"]})
    ids = column.encode(same)["c_ids"]
    assert (ids[0] == ids[1]).all() and ids.shape == (2, 4)
    names = pd.DataFrame({"c": ["".join(row[:2]) for row in drawn]})
    assert infer_feature_columns(names, "linear").active[0].delimiter is None


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_parts_of_dates_have_weights_in_linear_models(rng):
    day = pd.Series(pd.date_range("2021-01-01", periods=900, freq="17h"))
    y = np.array([0, 1, 3, 2, 4, 8, 7])[day.dt.day_of_week] + rng.normal(size=900)
    day[5] = None
    X = pd.DataFrame({"day": day})
    model = LinearRegressor(random_state=0).fit(X[:700], y[:700])
    assert model.score(X[700:], y[700:]) > 0.7
    # 50 rows for each of 13 months and of 8 weekdays, but not of 25 hours.
    names = [column.name for column in model.feature_columns_.active]
    buckets = ["day_month_bucketized", "day_weekday_bucketized"]
    assert names == ["day_seconds", *buckets, "day_hour", "day_day_of_year"]
    weekday = model.feature_columns_.active[2].transform(X)
    week = day.dt.day_of_week.fillna(7)  # a gap is in the last bucket
    np.testing.assert_array_equal(weekday.argmax(axis=1), week)


@pytest.mark.filterwarnings("error")
def test_what_may_tell_something_stays():
    for cells in [
        [f"n{i}" for i in range(19)],
        ["same", *(f"n{i}" for i in range(N - 2)), "same"],
        np.arange(N) * 3,
        np.arange(N) - 5,
        np.arange(N) / 1,
    ]:
        X = pd.DataFrame({"x": np.arange(len(cells)) % 5, "c": cells})
        assert len(infer_feature_columns(X).active) > 1


@pytest.mark.parametrize(
    "form",
    [
        *(
            "${},000.50",
            "{} %",
            "0{} %",
            "${},34,567",
            "{},5",
            "1.0{},50",
            "{}.5 kg",
            "{}m²",
            "-{}.5°C",
            "({}.0)",
            "$-1,0{}.68",
            "R$ 4,{}0",
            "USD {}",
            "{}\N{NO-BREAK SPACE}380",
        ),
        *("7:{}", "07:{}:00", "1:{} PM"),
        *(
            "{}/12/2020 10:00",
            "2020/12/{}",
            "{} Jan 2020",
            "Jan {}, 2020",
            "{}-March-20",
            "20{}-07",
        ),
    ],
)
def test_numbers_and_dates_in_other_forms_are_told(form):
    X = pd.DataFrame({"amount": [form.format(10 + i) for i in range(15)] * 2})
    with pytest.warns(UserWarning, match="'amount' holds numbers or dates in a form"):
        infer_feature_columns(X)


@pytest.mark.parametrize("step", [7, 60, 900])
def test_numbers_of_which_some_have_separators_are_told(step):
    # Of "1,200" pandas.to_numeric(errors="coerce") would make a gap.
    X = pd.DataFrame({"price": [f"{200 + i * step:,}" for i in range(120)] * 2})
    with pytest.warns(UserWarning) as told:
        infer_feature_columns(X)
    assert ["such as '1," in str(warning.message) for warning in told] == [True]


@pytest.mark.parametrize("make", [str, int, float])
def test_dates_as_numbers_are_told(make):
    days = pd.date_range("2021-01-20", periods=60).strftime("%Y%m%d")
    X = pd.DataFrame({"day": [make(day) for day in days], "x": np.arange(60) % 7})
    y = np.arange(60.0)
    with pytest.warns(
        UserWarning, match=r"'day' holds dates as numbers, such as 2021012"
    ):
        LinearRegressor(max_iter=1).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ConvergenceWarning)
        X["day"] = [make(20210120 + 3 * i) for i in range(60)]  # the 99th of January
        LinearRegressor(max_iter=1).fit(X, y)


def test_the_cells_that_are_no_dates_are_told():
    days = pd.date_range("2021-01-01", periods=1500).strftime("%Y-%m-%d").tolist()
    for odd, where in (["20240107"], 1200), (["later", "soon"], 0):
        X = pd.DataFrame({"day": [*days[:where], *odd, *days[where:]] * 2})
        n = f"{len(odd)} of {1500 + len(odd)} different cells"
        message = f"'day' holds dates, but also '{odd[0]}', .* as dates: {n}"
        with pytest.warns(UserWarning, match=message):
            infer_feature_columns(X)
    X = pd.DataFrame({"day": ["2021-01-01", *(f"{i}/12/2020" for i in range(12))] * 2})
    with pytest.warns(UserWarning, match="form that is not read, such as '0/12/2020'"):
        infer_feature_columns(X)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "form", ["0{}", "555-{}", "{}-A", "street {}", "1.{}.3", "B{}"]
)
def test_codes_are_no_numbers_in_other_forms(form):
    X = pd.DataFrame({"code": [form.format(10 + i) for i in range(15)] * 2})
    infer_feature_columns(X)


@pytest.mark.filterwarnings("error")
def test_codes_that_end_in_letters_are_no_numbers_with_a_unit():
    X = pd.DataFrame({"seat": [f"{10 + i}{'ABCDEF'[i % 6]}" for i in range(30)] * 2})
    infer_feature_columns(X)


def test_numbers_as_strings_but_for_a_few():
    cells = [f"{i / 7:.2f}" for i in range(N - 2)] + ["much"] * 2
    X = pd.DataFrame({"x": np.arange(N) % 5, "amount": cells})
    with pytest.warns(UserWarning, match="'amount' holds numbers .* but also 'much'"):
        infer_feature_columns(X)


@pytest.mark.filterwarnings("error")
def test_categories_that_look_like_numbers():
    for levels in [["1", "2", "3 and more"], [f"0{i}" for i in range(20)]]:
        X = pd.DataFrame({"c": levels * 9})
        assert len(infer_feature_columns(X).active) > 0


def test_categories_that_are_no_whole_numbers_are_numbers():
    for levels, name in [([0.5, 1.0, 1.5], "c"), ([1.0, 2.0, 3.0], "c_indicator")]:
        X = pd.DataFrame({"c": pd.Categorical([*levels, None] * 9)})
        (column,) = infer_feature_columns(X).active
        assert column.name == name
        assert column.fit(X).transform(X).shape[0] == 36


def test_nothing_is_left():
    X = pd.DataFrame({"name": [f"n{i}" for i in range(N)]})
    with (
        pytest.warns(UserWarning, match="'name'"),
        pytest.raises(ValueError, match="No column of X tells anything: 'name'"),
    ):
        infer_feature_columns(X)


def test_many_levels_have_vectors_for_rare_unknown_and_missing_ones():
    X = pd.DataFrame({"c": [f"m{i}" for i in range(11)] * 9 + ["rare", None]})
    columns = infer_feature_columns(X).fit(X, np.arange(101) % 2)
    new = {"c": ["m3", "rare", "unknown", None]}
    encoded = columns.encode(new)
    assert encoded["c_ids"].ravel().tolist() == [4, 11, 11, 12]
    assert encoded["c_target_statistics"].shape == (4, 2)


USELESS = {
    "name": [f"n{i}" for i in range(N)],
    "category": pd.Categorical(np.arange(N)),
    "row": np.arange(1, N + 1)[::-1],
    "no number": [np.nan] * N,
    "no text": [None] * N,
    "no date": [pd.NaT] * N,
}


def test_what_tells_nothing_is_left_out():
    for kind in ["dense", "linear"]:
        for name in USELESS:
            X = pd.DataFrame({"x": np.arange(N) / 7, name: USELESS[name]})
            with pytest.warns(
                UserWarning, match=f"{name!r} .* it is left out. To use it"
            ):
                columns = infer_feature_columns(X, kind)
            assert [column.name for column in columns.active] == ["x"]


def test_a_number_of_each_day_is_kept():
    for name in ("day_of_year", "week", "Time", "t"):
        X = pd.DataFrame({"x": np.arange(N) % 7, name: np.arange(N)})
        assert len(infer_feature_columns(X).active) == 2
    X = pd.DataFrame({"x": np.arange(N) % 7, "today_item": np.arange(N)})
    with pytest.warns(UserWarning, match="'today_item' numbers the rows"):
        infer_feature_columns(X)


def test_dates_a_year_ahead():
    rng = np.random.default_rng(0)
    when = pd.date_range("2025-03-01", "2025-12-24", periods=3_000)
    X = pd.DataFrame({"when": when, "x": rng.normal(size=3_000)})
    y = X["x"] + np.linspace(0, 1, 3_000)
    for end, seasons in [("2025-12", set()), ("2026-03", {"month", "day_of_year"})]:
        rows = X.assign(when=pd.date_range("2025-03-01", end, periods=3_000))
        inferred = infer_feature_columns(rows).active
        parts = {column.parse for column in inferred if hasattr(column, "parse")}
        # A month that no row is of would come as something that nobody has seen.
        assert parts - {"seconds", "weekday", "hour"} == seasons
    model = single(DNNLinearCombinedRegressor, max_iter=20).fit(X, y)
    later = [model.predict(X.assign(when=X["when"] + Day(n))) for n in (7, 365, 9999)]
    assert np.abs(later[0] - y).mean() < 0.1
    assert np.abs(later[2] - y).mean() < 3
    np.testing.assert_allclose(later[2].mean(), later[1].mean(), atol=1)


@pytest.mark.parametrize("model", [LinearRegressor, DNNRegressor])
def test_numbers_of_a_mixed_table_are_one_column(model, tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"numbers": rng.choice(["x", "y"], 300)})
    X[["b", "a"]] = rng.normal(size=(300, 2))
    X["small"] = rng.integers(0, 9, 300).astype(np.int16)
    X.loc[::7, "a"] = np.nan
    y = X["b"] + (X["numbers"] == "x") - X["a"].isna()
    model = single(model).fit(X, y)
    assert model.score(X, y) > 0.95
    joined = model.feature_columns_.active[0]
    # "numbers" is a column of the table.
    assert (joined.name, joined.feature_names) == ("numbers_2", ["b", "a", "small"])
    assert list(joined.indicated) == [1]
    answers = model.predict(X)
    by_key = {key: X[[key]].to_numpy() for key in X.columns[::-1]}
    np.testing.assert_array_equal(model.predict(by_key), answers)
    served = export.load(model.export(tmp_path, example=X))
    np.testing.assert_allclose(served.predict(X), answers, rtol=1e-4, atol=1e-4)
    assert list(served.features) == list(X.columns)
    with pytest.raises(ValueError, match="Column 'a' holds inf; infinity"):
        model.predict(X.assign(a=np.inf))
    with pytest.raises(ValueError, match="'b' must hold numbers; got the string 'c'"):
        model.predict(X.assign(b="c"))


@pytest.mark.parametrize(
    "model", [LinearRegressor, DNNRegressor, DNNLinearCombinedRegressor]
)
def test_categories_of_a_table_are_one_column(model, tmp_path):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(
        {"b": rng.choice(["x", "y", None], 300), "n": rng.normal(size=300)}
    )
    X["flag"] = rng.random(300) < 0.5
    X["a"] = pd.Categorical(rng.choice([3, 5, 8], 300))
    X["categories"] = rng.choice(["u", "v"], 300)
    y = (X["b"] == "x") + 2 * X["flag"] - (X["a"] == 5) + X["n"]
    # No value of "gone" is in a row that counts.
    weight = np.append(np.ones(298), [0, 0])
    X["gone"] = np.where(weight > 0, None, ["p", "q"] * 150)
    model = single(model).fit(X, y, sample_weight=weight)
    assert model.score(X, y) > 0.95
    columns = model.feature_columns_ if hasattr(model, "feature_columns_") else None
    if columns is not None:
        joined = columns.active[1]
        assert joined.name.startswith("categories_2")  # the other is of the table
        assert joined.feature_keys == ("b", "flag", "a", "categories")
        names = "b_x b_y flag_False flag_True a_3 a_5 a_8 categories_u categories_v"
        assert joined.get_feature_names_out().tolist() == names.split()
    answers = model.predict(X)
    unknown = X.assign(b="z", a=pd.Categorical([4] * 300))
    np.testing.assert_array_equal(
        model.predict(unknown), model.predict(unknown.assign(b=None, a=None))
    )
    by_key = {key: X[key] for key in X.columns[::-1]}
    np.testing.assert_array_equal(model.predict(by_key), answers)
    objects = X.astype({"flag": object, "a": "Int64"})
    np.testing.assert_array_equal(model.predict(objects), answers)
    served = export.load(model.export(tmp_path, example=X))
    np.testing.assert_allclose(served.predict(X), answers, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        served.predict(unknown), model.predict(unknown), rtol=1e-4, atol=1e-4
    )
    with pytest.raises(ValueError, match="Column 'flag' holds .*'yes'"):
        model.predict(X.assign(flag="yes"))
    with pytest.raises(ValueError, match="'b' must be single categories, as in fit"):
        model.predict({**by_key, "b": [["x", "y"]] * 300})
    with pytest.raises(ValueError, match="Column 'b' is not in X"):
        model.predict({key: X[key] for key in X.columns.drop("b")})


def test_names_and_categories_of_joined_columns():
    X = pd.DataFrame({"a": ["b_c", "x"] * 20, "a_b": ["c", "y"] * 20, "k": [True] * 40})
    columns = LinearRegressor(max_iter=1).fit(X, np.arange(40)).feature_columns_
    names = "a__a_b_c a__a_x a_b__a_b_c a_b__a_b_y k__k_True"
    assert columns.get_feature_names_out().tolist() == names.split()
    joined = columns.active[0]
    assert joined.inverse([[1, 2, -1]]).tolist() == [["x", "c", None]]


def test_many_numbers_beside_a_string_are_learned_as_many():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(1300, 100))).add_prefix("x")
    X["x_ple"] = rng.choice(["a", "b"], 1300)
    z = X.drop(columns="x_ple").to_numpy() @ rng.normal(size=100) / 5
    y = rng.random(1300) < 1 / (1 + np.exp(-z))
    model = LinearClassifier(random_state=0).fit(X[:300], y[:300])
    # At the rate of a single column it is 1.18.
    assert log_loss(y[300:], model.predict_proba(X[300:])) < 1


def test_names_beside_joined_numbers():
    X = pd.DataFrame({"numbers_ple": list("ab") * 50, "n": np.arange(100.0) % 7})
    model = DNNRegressor((4,), max_iter=2, random_state=0).fit(X, X["n"])
    with pytest.raises(
        ValueError, match="column 'n' must be single numbers, as in fit"
    ):
        model.predict({"numbers_ple": ["a"], "n": np.ones((1, 2))})
    with pytest.raises(
        ValueError, match="Column 'n' holds 1e\\+300|Column 'n' holds a n"
    ):
        LinearRegressor(random_state=0).fit(X, X["n"]).predict(X.assign(n=1e300))
