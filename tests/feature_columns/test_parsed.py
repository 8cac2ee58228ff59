# SPDX-License-Identifier: Apache-2.0
import datetime
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose

from skest import DNNRegressor
from skest.feature_columns import infer_feature_columns, parsed_numeric_column

OFFSETS = [
    "2026-01-31T02:00:00+02:00",
    "2024-12-31 18:00:15.5-0530",
    "1969-12-31 12:00+00",
    "",
]
TEXTS = ["2026-01-31", "2024-12-31T23:30:15.5", "1969-12-31 12:00Z", None]
TIMES = [
    datetime.date(2026, 1, 31),
    datetime.datetime(2024, 12, 31, 23, 30, 15, 500_000),
    datetime.datetime(1969, 12, 31, 12, tzinfo=datetime.UTC),
    None,
]
NUMPY = np.array(["2026-01-31", "2024-12-31T23:30:15.5", "1969-12-31T12", "NaT"], "M8")
PARTS = {
    "seconds": [1769817600, 1735687815.5, -43200, np.nan],
    "month": [1, 12, 12, np.nan],
    "weekday": [5, 1, 2, np.nan],
    "hour": [0, 23, 12, np.nan],
    "day_of_year": [31, 366, 365, np.nan],
}


@pytest.mark.parametrize(
    "cells",
    [
        TEXTS,
        pd.Series(TEXTS),
        OFFSETS,
        pd.Series(TIMES, dtype=object),
        NUMPY,
        pd.Series(NUMPY),
        pd.Series(NUMPY).dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo"),
        pl.Series(NUMPY.astype("M8[us]")),
    ],
    ids=[
        "texts",
        "text series",
        "offsets",
        "Python",
        "NumPy",
        "pandas",
        "zone",
        "polars",
    ],
)
def test_dates(cells):
    for part, expected in PARTS.items():
        column = parsed_numeric_column("t", part, default_value=-9.0)
        found = column.transform({"t": cells})
        assert_allclose(found[:, 0], np.nan_to_num(expected, nan=-9.0))


def test_dates_as_strings_of_arrow_and_numpy():
    days = [f"2026-01-{day:02}" for day in range(1, 29)]
    for cells in (pd.Series(days, dtype=pd.ArrowDtype(pa.string())), np.array(days)):
        X = {"t": cells}
        columns = infer_feature_columns(X).fit(X)
        names = [column.name for column in columns.active]
        assert names == ["t_seconds", "t_weekday"]
        plain = columns.transform({"t": np.array(days, dtype=object)})
        assert_allclose(columns.transform(X), plain)


def test_numbers():
    for cells in [["12", " 3.5", "", None, "1e3"], [12, 3.5, " ? ", "NULL", 1e3]]:
        column = parsed_numeric_column(
            "n", default_value="mean", indicate_missing="auto"
        )
        found = column.fit_transform({"n": pd.Series(cells, dtype=object)})
        mean = 1015.5 / 3
        assert_allclose(found, [[12, 0], [3.5, 0], [mean, 1], [mean, 1], [1000, 0]])


def test_an_empty_column_of_a_file_is_one_of_missing_dates():
    column = parsed_numeric_column("c", "month", default_value=6)
    found = column.transform({"c": np.full(2, np.nan)})
    assert_allclose(found, [[6], [6]])


def test_what_is_refused():
    for parse, cells, message in [
        ("number", ["1", "abc"], "'c' must hold numbers, also as strings; got 'abc'"),
        ("number", ["1", "inf"], "'c' holds inf"),
        ("month", ["2026-02-31"], "'c' must hold dates in ISO form.*'2026-02-31'"),
        ("month", ["0001-01-01T00:00+02:00"], "must hold dates.*'0001-01-01T00:00"),
        ("month", [1.5], "'c' must hold dates; got dtype float64"),
        *(
            ("month", ["2026-01-01", wrong], f"'c' must hold dates.* got {wrong!r}")
            for wrong in ("20240301", "now", "3", "1709251200", "2026-01", True)
        ),
        ("month", [["2026-02-01"]], r"'c' must hold dates.* got \['2026-02-01'\]"),
        ("number", [["1"], "2"], r"'c' must hold numbers.* got \['1'\]"),
        ("number", np.array([["1", "2"]]), r"'c' must hold numbers.*got array"),
        ("year", ["2026-02-01"], "'parse' .* must be one of 'number', 'seconds'"),
    ]:
        with pytest.raises(ValueError, match=message):
            parsed_numeric_column("c", parse, default_value=0.0).transform({"c": cells})
    column = parsed_numeric_column("c", "hour").fit({"c": ["2026-02-01T12:00"]})
    with pytest.raises(ValueError, match="'c' must hold dates.* got '26-02-01T12:00'"):
        column.transform({"c": ["26-02-01T12:00"]})


def test_export(tmp_path):
    export = pytest.importorskip("skest.export")
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"n": [f"{value:.2f} " for value in rng.normal(size=60)]})
    y = X["n"].astype(float)
    numbers = parsed_numeric_column("n", normalizer="standard")
    model = DNNRegressor(feature_columns=[numbers], max_iter=1).fit(X, y)
    loaded = export.load(model.export(tmp_path))
    assert_allclose(loaded.predict(y.to_frame()), model.predict(X), atol=1e-5)
    X["n"] = X["n"].where(X.index % 9 > 0, "N/A")
    model.set_params(feature_columns=None).fit(X, y)
    assert not hasattr(model.feature_columns_.active[0], "vocabulary_")
    loaded = export.load(model.export(tmp_path))
    assert_allclose(loaded.predict(X), model.predict(X), atol=1e-5)
    X["n"] = y
    dates = parsed_numeric_column("t", "hour")
    X["t"] = pd.date_range("2026-01-01", periods=60)
    model.set_params(feature_columns=[numbers, dates]).fit(X, y)
    loaded = export.load(model.export(tmp_path))
    zoned = X["t"].dt.tz_localize("UTC").dt.tz_convert("Etc/GMT-2").astype(str)
    assert zoned[0].endswith("+02:00")
    for times in (
        X["t"],
        X["t"].dt.tz_localize("UTC"),
        X["t"].astype(str) + "Z",
        zoned,
    ):
        found = loaded.predict({"n": y, "t": times})
        assert_allclose(found, model.predict(X), atol=1e-5)
    for wrong in ("yesterday", "0001-01-01T00:00+02:00", "20260131", "now", True, 1.5):
        with pytest.raises(TypeError, match="'t' takes dates, also as texts in ISO"):
            loaded.predict({"n": [1.0], "t": [wrong]})
    with pytest.raises(ValueError, match="'t' has a missing value"):
        loaded.predict({"n": [1.0], "t": [None]})


def test_time_zones_that_come_or_go_are_told():
    local = pd.Series(pd.date_range("2026-01-05", periods=9, freq="7h"))
    zoned = local.dt.tz_localize("America/Los_Angeles")
    forms = {
        False: [local, local.astype(str), local.dt.to_pydatetime(), local.to_numpy()],
        True: [zoned, zoned.map(str), zoned.astype(object)],
    }
    for known, cells in [(k, c) for k in forms for c in forms[k]]:
        column = parsed_numeric_column("when", "hour", default_value=0)
        column = column.fit({"when": cells})
        had = "with" if known else "without"
        for other in forms[not known]:
            with pytest.warns(UserWarning, match=f"'when' had dates {had} a time zone"):
                column.transform({"when": other})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for same in [*forms[known], ["2026-01-05", None], [None, ""]]:
                column.transform({"when": np.array(same, object)})
