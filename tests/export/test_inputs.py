# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse

from skest.export.onnx.inputs import Form, InputSpec, forms_of
from tests.export._feeds import feeds


@pytest.mark.parametrize(
    ("cells", "form"),
    [
        (["a", None], ("string", 1)),
        ([None, b"a"], ("string", 1)),
        ([None, True], ("string", 1)),
        (np.array([True]), ("string", 1)),
        ([1, None], ("int64", 1)),
        (np.arange(3), ("int64", 1)),
        (np.arange(3, dtype=np.uint8), ("int64", 1)),
        ([0.5], ("number", 1)),
        (pd.Series([1.0, None]), ("number", 1)),
        (pd.Series([1, None], dtype="Int64"), ("int64", 1)),
        (pd.Series(["b", "a"], dtype="category"), ("string", 1)),
        (pd.Series([2, 1], dtype="category"), ("int64", 1)),
        (pd.Series([None, "a"], dtype="string"), ("string", 1)),
        (pd.Series(["a"], dtype="str"), ("string", 1)),
        (pl.Series(["a", None]), ("string", 1)),
        (pl.Series([1, None]), ("int64", 1)),
        (pl.Series([[1, 2], []]), ("int64", None)),
        ([["a"], []], ("string", None)),
        ([[], [None, 2]], ("int64", None)),
        (np.zeros((3, 2)), ("number", None)),
        (np.zeros((3, 1), int), ("int64", 1)),
        (scipy.sparse.csr_array(np.eye(4)), ("number", 4)),
    ],
)
def test_forms(cells, form):
    assert forms_of({"x": cells}) == {"x": Form(*form)}


def test_columns_of_nothing_have_no_form():
    assert forms_of({"x": [None, np.nan], "y": [[], []]}) == {}


def spec(dtype, *shape, missing=None, **options):
    return InputSpec("in", "x", dtype, (None, *shape), missing, **options)


def fed(x, described):
    (values,) = feeds([described], {"x": x}).values()
    return values


@pytest.mark.parametrize(
    ("cells", "described", "expected"),
    [
        (["a", None], spec("string", 1, missing=""), [["a"], [""]]),
        ([True, None], spec("string", 1, missing=""), [["True"], [""]]),
        ([["a", None], []], spec("string", None, missing=""), [["a", ""], ["", ""]]),
        (["a|b"], spec("string", None, missing="", delimiter="|"), [["a", "b"]]),
        (pd.Series([1.0, None]), spec("int64", 1, missing=-1), [[1], [-1]]),
        ([[1], []], spec("int64", None, missing=-7), [[1], [-7]]),
        ([[], []], spec("int64", None, missing=-1), [[-1], [-1]]),
        ([1, 2], spec("float32", 1), [[1], [2]]),
        ([[1, 2]], spec("float64", 2), [[1, 2]]),
        ([2**60 + 1], spec("int64", 1), [[2**60 + 1]]),
        (np.ones((1, 2, 2)), spec("float32", 2, 2), [[[1, 1], [1, 1]]]),
        (scipy.sparse.csr_array(np.eye(2)), spec("float32", 2), [[1, 0], [0, 1]]),
    ],
)
def test_feeds(cells, described, expected):
    found = fed(cells, described)
    assert found.tolist() == expected
    assert found.dtype == (object if described.dtype == "string" else described.dtype)


def test_missing_numbers_are_nan():
    assert np.isnan(fed([None, 1.5], spec("float32", 1, missing=np.nan))[0, 0])
    padded = fed([[1.0], [1.0, 2.0]], spec("float32", None, missing=np.nan))
    np.testing.assert_array_equal(padded, [[1, np.nan], [1, 2]])


def test_feeds_refuse_another_type():
    with pytest.raises(ValueError, match="'string', by the exported input 'in'"):
        fed([1, 2], spec("string", 1, missing=""))
    with pytest.raises(ValueError, match="'int64', by the exported input 'in'"):
        fed(["a"], spec("int64", 1, missing=-1))
    with pytest.raises(ValueError, match="'x' holds NaN"):
        fed([1.0, None], spec("int64", 1))
    with pytest.raises(ValueError, match=r"'x' holds infinity \(inf\)"):
        fed([1.0, -np.inf], spec("float32", 1, missing=np.nan))
    with pytest.raises(ValueError, match="Column 'x' is not in X"):
        feeds([spec("int64", 1, missing=-1)], {"y": [1]})


def test_descriptions_for_json():
    described = spec("float32", 1, missing=np.nan, names=("a",)).to_json()
    assert described == {
        "dtype": "float32",
        "shape": [None, 1],
        "key": "x",
        "missing": "nan",
        "columns": ["a"],
    }
