# SPDX-License-Identifier: Apache-2.0

import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import skest
from skest import export
from skest import feature_columns as fc
from skest.export.raw_values import Feature, columns_of

TEXT = {"dtype": "string", "shape": [None, 1], "missing": ""}
NUMBER = {"dtype": "float64", "shape": [None, 1], "missing": "nan"}
WHOLE = {"dtype": "int64", "shape": [None, 1]}
WRITTEN = {**NUMBER, "from_texts": True}
KEY = {**NUMBER, "integers_only": True}
CODE = {"dtype": "int32", "shape": [None, 1], "missing": -1}
BAG = {"dtype": "string", "shape": [None, None], "missing": "", "delimiter": "|"}
IDS = {"dtype": "int64", "shape": [None, None], "missing": -1}
VECTORS = {"dtype": "float64", "shape": [None, None, 2], "missing": "nan"}


STRINGS = ["a", "", "", "naïve\0", "", "x"]
NUMBERS = [1, 2.5, np.nan, np.nan, 1]
LISTS = [["a", "b"], ["", ""], ["", ""], ["c", ""]]
NO_STEP = [np.nan, np.nan]


@pytest.mark.parametrize(
    ("spec", "values", "expected"),
    [
        (TEXT, ["a", None, "", "naïve\0", float("nan"), np.str_("x")], STRINGS),
        (TEXT, np.array(["a", None, "", "naïve\0", np.nan, "x"], object), STRINGS),
        (TEXT, pd.Series(["a", None, "", "naïve\0", pd.NA, "x"], dtype="str"), STRINGS),
        (
            *(TEXT, pd.Series(["a", None, "", "naïve\0", None, "x"], dtype="category")),
            STRINGS,
        ),
        (TEXT, pl.Series(["a", None, "", "naïve\0", None, "x"]), STRINGS),
        (NUMBER, [1, 2.5, None, np.nan, True], NUMBERS),
        (NUMBER, np.array([1, 2.5, None, pd.NA, True], object), NUMBERS),
        (NUMBER, pd.Series([1, 2.5, None, np.nan, 1], dtype="Float64"), NUMBERS),
        (NUMBER, pl.Series([1, 2.5, None, None, 1], strict=False), NUMBERS),
        (NUMBER, np.array([1, 2.5, np.nan, np.nan, 1], np.float32), NUMBERS),
        (WRITTEN, ["1", " 2.5", " ", None, 1], NUMBERS),
        (WRITTEN, np.array(["1", "2.5e0", "", "nan", "1.0"]), NUMBERS),
        ({**WHOLE, "from_texts": True}, ["3", 4], [3, 4]),
        (WHOLE, [2**62 + 1, -(2**63)], [2**62 + 1, -(2**63)]),
        (WHOLE, [3.0], [3]),
        (KEY, [3, 4.0, None], [3, 4, np.nan]),
        (CODE, [1, None, 3.0, np.nan], [1, -1, 3, -1]),
        (CODE, np.array([1.0, np.nan]), [1, -1]),
        (BAG, [["a", "b"], [], None, ["c"]], LISTS),
        (BAG, ["a|b", "", None, "c"], LISTS),
        (BAG, pd.Series([["a", "b"], [], None, ["c"]]), LISTS),
        (BAG, pl.Series([["a", "b"], [], None, ["c"]]), LISTS),
        (BAG, pa.array([["a", "b"], [], None, ["c"]]), LISTS),
        (BAG, [("a", "b"), np.array([]), np.nan, "c"], LISTS),
        ({**BAG, "delimiter": r"\w+"}, [True, "It is"], [["true", ""], ["it", "is"]]),
        (BAG, [[], None], np.zeros((2, 0))),
        (IDS, [[], []], np.zeros((2, 0))),
        (IDS, [], np.zeros((0, 0))),
        (
            *(VECTORS, [[[1, 2], [3, 4]], [], [[5, 6]]]),
            [[[1, 2], [3, 4]], [NO_STEP, NO_STEP], [[5, 6], NO_STEP]],
        ),
        (VECTORS, [[]], np.zeros((1, 0, 2))),
    ],
)
def test_values(spec, values, expected):
    found = Feature("f", spec).feed(values)
    assert found.dtype == (object if spec["dtype"] == "string" else spec["dtype"])
    assert {type(cell) for cell in found.ravel()} <= {str} or found.dtype != object
    expected = np.array(expected, dtype=found.dtype)
    expected = expected[:, None] if expected.ndim == 1 else expected
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize(
    ("spec", "values", "error", "message"),
    [
        (TEXT, "Paris", TypeError, "one value for each row.*'Paris'"),
        ({**TEXT, "missing": None}, [None], ValueError, "was trained without"),
        (TEXT, [b"a"], TypeError, "takes texts; got b'a'"),
        ({**TEXT, "texts_only": True}, ["a", 3], TypeError, "texts; got 3 of type int"),
        ({**TEXT, "booleans": True}, [True, "t"], ValueError, "takes True and .*'t'"),
        (TEXT, ["\ud800"], ValueError, "a text that is no Unicode"),
        (NUMBER, ["3"], TypeError, "takes numbers; got '3'"),
        (WRITTEN, ["3 rooms"], TypeError, "numbers, also as texts; got '3 rooms'"),
        (WRITTEN, ["1e999"], ValueError, "holds infinity"),
        ({**WRITTEN, "missing": None}, [" "], ValueError, "trained without"),
        (NUMBER, [[1, 2]], ValueError, r"shape \(any, 1\); got \(1, 2\)"),
        (NUMBER, [np.inf], ValueError, "holds infinity"),
        ({**NUMBER, "missing": None}, [np.nan], ValueError, "trained without"),
        (WHOLE, [2.5], ValueError, "takes whole numbers of dtype int64; got"),
        (WHOLE, [None], ValueError, "was trained without"),
        (WHOLE, [True, False], TypeError, "takes whole numbers; got booleans"),
        (KEY, [None, 1.5], ValueError, "whole numbers below 2.*categories.*got 1.5"),
        (KEY, [2**53 + 1], ValueError, "takes whole numbers below 2"),
        (KEY, [True, False], TypeError, "takes whole numbers; got booleans"),
        (NUMBER, [10**400], ValueError, "a number that is too large for a float"),
        (WHOLE, [10**4000], ValueError, r"got 1000+\.\.\.0+\.$"),
    ],
)
def test_wrong_values(spec, values, error, message):
    with pytest.raises(error, match=f"'f'.*{message}"):
        Feature("f", spec).feed(values)


PAIR = {"dtype": "float32", "shape": [None, 2], "missing": "nan"}
COLUMNS = {"a": [1, 2], "b": ["x", "y"], "other": [0, 0]}


@pytest.mark.parametrize(
    "table",
    [
        COLUMNS,
        pd.DataFrame(COLUMNS),
        pl.DataFrame(COLUMNS),
        pa.table(COLUMNS),
        [{"a": 1, "b": "x"}, {"a": 2, "b": "y", "other": 0}],
    ],
    ids=lambda table: type(table).__module__.partition(".")[0],
)
def test_tables(table):
    found = columns_of(table, ["b", "a"])
    assert list(found) == ["b", "a"]
    assert np.array_equal(found["a"], [1, 2])
    assert np.array_equal(found["b"], ["x", "y"])


def test_an_arrow_table_of_one_column_is_no_matrix():
    table = pa.table({"a": [[1.0], [2.0, 3.0]]})
    assert columns_of(table, ["a"])["a"].to_pylist() == [[1.0], [2.0, 3.0]]


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
    feature = Feature("x", {**PAIR, "columns": ["a", "b"]})
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
    feature = Feature("x", {**PAIR, "missing": None, "columns": ["a", "b"]})
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
    for wrong in ("soon", "today", "20240301", "1709251200", b"2024-03-01", True):
        with pytest.raises(TypeError, match="'t' takes dates, also as texts in ISO"):
            feature.feed([wrong])


def test_numbers_that_are_written_as_strings(tmp_path):
    charges = [f"{0.37 * i:.2f}" for i in range(40)]
    table = pd.DataFrame({"charges": charges, "sex": ["f", "m"] * 20})
    table.loc[::9, "charges"] = " "
    y = [0] * 20 + [1] * 20
    model = skest.LinearClassifier(max_iter=2, random_state=0).fit(table, y)
    served = export.load(model.export(tmp_path))
    expected = model.predict_proba(table)
    np.testing.assert_allclose(served.predict_proba(table), expected, atol=1e-6)
    rows = table.to_dict("records")
    np.testing.assert_allclose(served.predict_proba(rows), expected, atol=1e-6)
    numbers = table.assign(charges=pd.to_numeric(table["charges"], errors="coerce"))
    np.testing.assert_allclose(served.predict_proba(numbers), expected, atol=1e-6)
    with pytest.raises(TypeError, match="'charges' takes numbers, also as texts"):
        served.predict_proba(table.assign(charges="12 €"))


def test_booleans(tmp_path):
    flags = [True, False, True, None] * 10
    notes = [f"It is true that {i} of them were seen" for i in range(40)]
    table = pd.DataFrame({"flag": pd.Series(flags, dtype=object), "note": notes})
    model = skest.LinearClassifier(max_iter=9, random_state=0)
    served = export.load(model.fit(table, [0, 1] * 20).export(tmp_path))
    for row in ({"flag": 1}, {"flag": 0}, {"flag": "False"}, {"note": True}):
        cells = {"flag": None, "note": "It is"} | row
        rows = pd.DataFrame(
            {key: pd.Series([c], dtype=object) for key, c in cells.items()}
        )
        found = served.predict_proba([cells])
        np.testing.assert_allclose(found, model.predict_proba(rows), atol=1e-6)
    for wrong in ("true", "TRUE", "f"):
        with pytest.raises(ValueError, match=f"'flag' takes True and False.*{wrong!r}"):
            served.predict_proba({"flag": [wrong], "note": ["It is"]})


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
