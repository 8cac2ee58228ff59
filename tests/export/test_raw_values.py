# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pandas as pd
import polars as pl
import pytest

from skest.export.raw_values import Feature

TEXT = {"dtype": "string", "shape": [None, 1], "missing": ""}
NUMBER = {"dtype": "float64", "shape": [None, 1], "missing": "nan"}
WHOLE = {"dtype": "int64", "shape": [None, 1]}
CODE = {"dtype": "int32", "shape": [None, 1], "missing": -1}
BAG = {"dtype": "string", "shape": [None, None], "missing": "", "delimiter": "|"}
IDS = {"dtype": "int64", "shape": [None, None], "missing": -1}
VECTORS = {"dtype": "float64", "shape": [None, None, 2], "missing": "nan"}
VECTOR = {"dtype": "float32", "shape": [None, 3], "missing": "nan"}

TEXTS = [
    ["a", None, "", "naïve\0", float("nan"), np.str_("x")],
    np.array(["a", None, "", "naïve\0", np.nan, "x"], object),
    pd.Series(["a", None, "", "naïve\0", pd.NA, "x"], dtype="str"),
    pd.Series(["a", None, "", "naïve\0", None, "x"], dtype="category"),
    pl.Series(["a", None, "", "naïve\0", None, "x"]),
]


@pytest.mark.parametrize("values", TEXTS, ids=lambda v: type(v).__name__)
def test_texts(values):
    found = Feature("city", TEXT).feed(values)
    assert found.dtype == object and found.shape == (6, 1)
    assert found.ravel().tolist() == ["a", "", "", "naïve\0", "", "x"]
    assert {type(cell) for cell in found.ravel()} == {str}


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.5, None, np.nan, True],
        np.array([1, 2.5, None, pd.NA, True], object),
        pd.Series([1, 2.5, None, np.nan, 1], dtype="Float64"),
        pl.Series([1, 2.5, None, None, 1], strict=False),
        np.array([1, 2.5, np.nan, np.nan, 1], np.float32),
    ],
    ids=str,
)
def test_numbers(values):
    found = Feature("age", NUMBER).feed(values)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [[1], [2.5], [np.nan], [np.nan], [1]])


def test_whole_numbers():
    found = Feature("n", WHOLE).feed([2**62 + 1, -(2**63)])
    assert found.dtype == np.int64
    assert found.ravel().tolist() == [2**62 + 1, -(2**63)]
    assert Feature("n", WHOLE).feed([3.0]).tolist() == [[3]]
    np.testing.assert_array_equal(
        Feature("n", CODE).feed([1, None, 3.0, np.nan]), [[1], [-1], [3], [-1]]
    )
    np.testing.assert_array_equal(
        Feature("n", CODE).feed(np.array([1.0, np.nan])), [[1], [-1]]
    )


@pytest.mark.parametrize(
    "values",
    [
        [["a", "b"], [], None, ["c"]],
        ["a|b", "", None, "c"],
        pd.Series([["a", "b"], [], None, ["c"]]),
        [("a", "b"), np.array([]), np.nan, "c"],
    ],
    ids=str,
)
def test_lists_in_cells(values):
    found = Feature("tags", BAG).feed(values)
    assert found.tolist() == [["a", "b"], ["", ""], ["", ""], ["c", ""]]


def test_lists_of_nothing():
    assert Feature("tags", BAG).feed([[], None]).shape == (2, 0)
    assert Feature("ids", IDS).feed([[], []]).shape == (2, 0)
    assert Feature("ids", IDS).feed([]).shape == (0, 0)
    assert Feature("ids", IDS).feed([[], []]).dtype == np.int64


def test_lists_of_vectors():
    found = Feature("path", VECTORS).feed([[[1, 2], [3, 4]], [], [[5, 6]]])
    nan = [np.nan, np.nan]
    np.testing.assert_array_equal(found, [[[1, 2], [3, 4]], [nan, nan], [[5, 6], nan]])
    assert Feature("path", VECTORS).feed([[]]).shape == (1, 0, 2)


@pytest.mark.parametrize(
    ("spec", "values", "error", "message"),
    [
        (TEXT, "Paris", TypeError, "one value for each row.*'Paris'"),
        (TEXT, [1.5], TypeError, "takes texts; got 1.5 of type float"),
        ({**TEXT, "missing": None}, [None], ValueError, "was trained without"),
        (TEXT, [b"a"], TypeError, "takes texts; got b'a'"),
        ({**TEXT, "texts_only": True}, ["a", 3], TypeError, "texts; got 3 of type int"),
        (TEXT, ["\ud800"], ValueError, "a text that is no Unicode"),
        (NUMBER, ["3"], TypeError, "takes numbers; got '3'"),
        (NUMBER, [[1, 2]], ValueError, r"shape \(any, 1\); got \(1, 2\)"),
        (VECTOR, [[1, 2]], ValueError, r"shape \(any, 3\); got \(1, 2\)"),
        (NUMBER, [np.inf], ValueError, "holds infinity"),
        (
            {**NUMBER, "missing": None},
            np.array([np.nan]),
            ValueError,
            "trained without",
        ),
        (WHOLE, [2.5], ValueError, "takes whole numbers of dtype int64; got"),
        (WHOLE, [None], ValueError, "was trained without"),
        (WHOLE, [np.nan], ValueError, "was trained without"),
        (WHOLE, [2**64], ValueError, "takes whole numbers"),
        (WHOLE, [True, False], TypeError, "takes whole numbers; got booleans"),
        (CODE, np.array([True, None]), TypeError, "takes whole numbers; got booleans"),
        (CODE, [np.True_, 2**70], TypeError, "takes whole numbers; got booleans"),
        (CODE, [2**40], ValueError, "takes whole numbers"),
        (NUMBER, [10**400], ValueError, "a number that is too large for a float"),
        (WHOLE, [10**4000], ValueError, r"got 1000+\.\.\.0+\.$"),
    ],
)
def test_wrong_values(spec, values, error, message):
    with pytest.raises(error, match=f"'f'.*{message}"):
        Feature("f", spec).feed(values)
