# SPDX-License-Identifier: Apache-2.0
import json

import numpy as np
import pandas as pd
import polars as pl
import pytest

import skest
from skest import export
from skest import feature_columns as fc
from skest.export.raw_values import Feature, columns_of

VECTOR = {"dtype": "float32", "shape": [None, 2], "missing": "nan"}
COLUMNS = {"a": [1, 2], "b": ["x", "y"], "other": [0, 0]}


@pytest.mark.parametrize(
    "table",
    [
        COLUMNS,
        pd.DataFrame(COLUMNS),
        pl.DataFrame(COLUMNS),
        [{"a": 1, "b": "x"}, {"a": 2, "b": "y", "other": 0}],
    ],
    ids=lambda table: type(table).__module__.partition(".")[0],
)
def test_tables(table):
    found = columns_of(table, ["b", "a"])
    assert list(found) == ["b", "a"]
    assert list(found["a"]) == [1, 2] and list(found["b"]) == ["x", "y"]


@pytest.mark.parametrize(
    "table",
    [
        {"a": [1, None], "b": [2, 3]},
        pd.DataFrame({"a": [1, None], "b": [2, 3]}),
        [{"a": 1, "b": 2}, {"a": None, "b": 3}],
        {"x": [[1, 2], [None, 3]]},
    ],
    ids=str,
)
def test_a_feature_of_several_columns(table):
    feature = Feature("x", {**VECTOR, "columns": ["a", "b"]})
    found = columns_of(table, ["x"], {"x": feature.columns})
    np.testing.assert_array_equal(feature.feed(found["x"]), [[1, 2], [np.nan, 3]])
    with pytest.raises(ValueError, match=r"features \['a', 'b'\] are missing"):
        columns_of({"c": []}, ["x"], {"x": ["a", "b"]})


@pytest.mark.parametrize(
    ("cell", "error", "message"),
    [
        ("q", TypeError, "The feature 'b' takes numbers; got 'q'"),
        (float("inf"), ValueError, "The feature 'b' holds infinity"),
        (None, ValueError, "The feature 'b' has a missing value"),
        ([1, 2], TypeError, "The feature 'b' takes numbers"),
    ],
)
def test_errors_name_the_column(cell, error, message):
    feature = Feature("x", {**VECTOR, "missing": None, "columns": ["a", "b"]})
    table = columns_of({"a": [1, 2], "b": [3, cell]}, ["x"], {"x": ["a", "b"]})
    with pytest.raises(error, match=message):
        feature.feed(table["x"])


@pytest.mark.parametrize(
    ("table", "error", "message"),
    [
        ({"a": [1]}, ValueError, r"features \['b'\] are missing"),
        (pd.DataFrame({"a": [1]}), ValueError, r"features \['b'\] are missing"),
        ([{"a": 1, "b": 2}, {"a": 1}], ValueError, r"Row 1 lacks the features \['b'\]"),
        ([{"a": 1}], ValueError, r"features \['b'\] are missing"),
        (np.zeros((2, 2)), TypeError, "Give a DataFrame"),
        (3, TypeError, "Give a DataFrame"),
        ([1, 2], TypeError, "Give a DataFrame"),
    ],
)
def test_no_tables(table, error, message):
    with pytest.raises(error, match=message):
        columns_of(table, ["a", "b"])


def test_columns_that_do_not_fit_together():
    parts = {"x": ["a", "b"]}
    with pytest.raises(ValueError, match=r"must have .* row.*'a': \(2,\), 'b': \(1,\)"):
        columns_of({"a": [1, 2], "b": [1]}, ["x"], parts)
    with pytest.raises(ValueError, match=r"\['b'\] are missing.* takes \['a', 'b'\]"):
        columns_of({"a": [1]}, ["x"], parts)


def test_dates():
    feature = Feature("t", {"dtype": "int64", "shape": [None, 1], "unit": "us"})
    first = ["1970-01-01T00:00:01", "1970-01-01 00:00:01Z", 10**6]
    assert feature.feed(first).tolist() == [[10**6]] * 3
    assert feature.feed(pd.to_datetime(first[:1])).tolist() == [[10**6]]
    with pytest.raises(ValueError, match="'t' has a missing value"):
        feature.feed([None])
    with pytest.raises(TypeError, match="'t' takes dates, also as texts in ISO form"):
        feature.feed(["soon"])


def test_integers_are_refused_where_the_model_refuses_them(tmp_path):
    table = pd.DataFrame({"word": ["1", "two", "2", "two"] * 9})
    column = fc.categorical_column_with_vocabulary_list("word")
    model = skest.LinearClassifier(feature_columns=[column], max_iter=2)
    version = model.fit(table, [0, 1, 1, 0] * 9).export(tmp_path)
    served = export.load(version)
    with pytest.raises(TypeError, match="'word' takes texts; got 1 of type int"):
        served.predict_proba({"word": [1]})
    manifest = json.loads((version / "manifest.json").read_text())
    assert manifest["features"]["word"].pop("texts_only") is True
    (version / "manifest.json").write_text(json.dumps(manifest))
    old = export.load(version, verify=False)  # exports of before take them still
    expected = served.predict_proba({"word": ["1"]})
    assert (old.predict_proba({"word": [1]}) == expected).all()
