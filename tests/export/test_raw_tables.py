# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import polars as pl
import pytest

import skest
from skest import export
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
    with pytest.raises(
        ValueError, match=r"must have one value for each row.*'a': \(2,\), 'b': \(1,\)"
    ):
        columns_of({"a": [1, 2], "b": [1]}, ["x"], parts)
    with pytest.raises(ValueError, match=r"\['b'\] are missing.* takes \['a', 'b'\]"):
        columns_of({"a": [1]}, ["x"], parts)


def test_a_part_that_is_called_as_the_whole():
    parts = {"x": ["x", "y"]}
    for table in ({"x": [1], "y": [2]}, {"x": np.array([[1, 2]])}):
        np.testing.assert_array_equal(columns_of(table, ["x"], parts)["x"], [[1, 2]])
    with pytest.raises(ValueError, match=r"\['x'\] are missing"):
        columns_of({"y": [2]}, ["x"], parts)


NUMBERS = np.random.default_rng(0).normal(size=(40, 3))
WORDS = np.array(["u", "v"] * 20)


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame(NUMBERS, columns=list("xyz")),
        pd.DataFrame(NUMBERS),
        NUMBERS,
        pd.DataFrame({0: NUMBERS[:, 0], 1: WORDS}),
        pl.DataFrame(NUMBERS, schema=["x", "y", "z"]),
    ],
    ids=["x y z", "frame of array", "array", "counted", "polars"],
)
def test_the_table_of_the_fit_is_taken(tmp_path, table):
    model = skest.DNNClassifier((4,), max_iter=2, random_state=0)
    model.fit(table, NUMBERS[:, 0] > 0).export(tmp_path, example=table[:3])
    loaded = export.load(tmp_path)
    np.testing.assert_array_equal(loaded.predict(table), model.predict(table))
