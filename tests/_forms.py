# SPDX-License-Identifier: Apache-2.0
"""Columns and tables in every form that users have, and what is right for each.

All have four rows. `FORMS` are columns that can be read, with their values; `REFUSED` are
columns that cannot, and `REFUSED_TABLES` tables, with the error.
"""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import scipy.sparse
import torch

NAN = np.nan
DAY = datetime.date(2026, 1, 2)
NEXT_DAY = datetime.date(2026, 1, 3)
MOMENT = datetime.datetime(2026, 1, 2, 3)
SPAN = datetime.timedelta(days=5)
HUGE = 10**400


def repeated(*values):
    """Four rows of the values in turn."""
    return [values[i % len(values)] for i in range(4)]


def arrow_series(values, kind=None):
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, type=kind)))


def objects(*values):
    return pd.Series(repeated(*values), dtype=object)


def polars(*values, dtype=None):
    return pl.Series(repeated(*values), dtype=dtype)


def arrow(*values, kind=None):
    return pa.array(repeated(*values), type=kind)


def masked(*values):
    return np.ma.masked_array(repeated(*values), mask=[False, True, False, True])


def structs():
    return pa.array([{"a": 1}] * 4)


A_B = ["a", "b", "a", "b"]
A_NONE = ["a", None, "a", None]
ONE_NAN = [1.5, NAN, 1.5, NAN]
VECTORS = [[1.5, 2.0], [3.0, 4.0], [1.5, 2.0], [3.0, 4.0]]

# What is read, as categories or as numbers.
FORMS = {
    "category of floats": (
        lambda: pd.Series(repeated(1.5, 2.5), dtype="category"),
        "numbers",
        repeated(1.5, 2.5),
    ),
    # polars
    "polars Categorical": (
        lambda: polars("a", None, dtype=pl.Categorical),
        "categories",
        A_NONE,
    ),
    "polars Binary": (lambda: polars(b"a", None), "categories", A_NONE),
    "polars Boolean": (
        lambda: polars(True, None),
        "categories",
        repeated("True", None),
    ),
    "polars Int128": (
        lambda: polars(1, None, dtype=pl.Int128),
        "numbers",
        repeated(1, NAN),
    ),
    "polars List of floats": (lambda: polars(*VECTORS[:2]), "numbers", VECTORS),
    # pandas
    "pandas Sparse numbers": (
        lambda: pd.Series(pd.arrays.SparseArray([0.0, NAN, 0.0, 2.0])),
        "numbers",
        [0, NAN, 0, 2],
    ),
    "pandas category of integers": (
        lambda: pd.Series(repeated(7, None), dtype="category"),
        "categories",
        repeated(7, None),
    ),
    "pandas, strings of pyarrow": (lambda: arrow_series(A_NONE), "categories", A_NONE),
    "pandas Index": (lambda: pd.Index(A_B), "categories", A_B),
    # objects
    "decimals": (lambda: objects(Decimal("1.5"), Decimal("NaN")), "numbers", ONE_NAN),
    "bytes": (lambda: objects(b"a", None), "categories", A_NONE),
    "strings with NaN": (lambda: objects("a", NAN), "categories", A_NONE),
    "lists of integers with gaps": (
        lambda: polars([1, None], [2, 3]),
        "categories",
        repeated([1, None], [2, 3]),
    ),
    # pyarrow
    "pyarrow dictionary": (
        lambda: arrow("a", None).dictionary_encode(),
        "categories",
        A_NONE,
    ),
    "pyarrow string_view": (
        lambda: arrow("a", None, kind=pa.string_view()),
        "categories",
        A_NONE,
    ),
    "pyarrow integer": (lambda: arrow(3, None), "numbers", repeated(3, NAN)),
    "pyarrow list": (
        lambda: arrow(["a"], ["b", "a"]),
        "categories",
        repeated(["a", None], ["b", "a"]),
    ),
    "pyarrow list of fixed size": (
        lambda: arrow(*VECTORS[:2], kind=pa.list_(pa.float64(), 2)),
        "numbers",
        VECTORS,
    ),
    "pyarrow chunks": (
        lambda: pa.chunked_array([["a", None], ["b"], ["a"]]),
        "categories",
        ["a", None, "b", "a"],
    ),
    # NumPy
    "masked floats": (lambda: masked(1.5, 2.5), "numbers", ONE_NAN),
    "masked integers": (lambda: masked(3, 4), "numbers", repeated(3, NAN)),
    "long doubles": (
        lambda: np.array(repeated(1.5, 2), dtype=np.longdouble),
        "numbers",
        repeated(1.5, 2),
    ),
    "big-endian floats": (
        lambda: np.array(repeated(1.5, 2), dtype=">f8"),
        "numbers",
        repeated(1.5, 2),
    ),
    "three dimensions": (
        lambda: np.arange(16.0).reshape(4, 2, 2),
        "numbers",
        np.arange(16.0).reshape(4, 2, 2).tolist(),
    ),
    "torch": (lambda: torch.arange(4.0), "numbers", [0, 1, 2, 3]),
}

DATES = r"'c' holds dates or durations \(.*Derive numbers or categories"
DICT = r"'c' holds {'a': 1} \(dict\); a cell .* a column of its own"
STRUCT = r"'c' holds structs \(.*Struct.*\)\. Give each of their fields a column"

# Dates, some of them missing.
DATE_FORMS = {
    "polars Date": lambda: polars(DAY, NEXT_DAY),
    "polars Datetime": lambda: polars(MOMENT, MOMENT + SPAN),
    "pandas dates": lambda: pd.Series(pd.date_range("2026", periods=4)),
    "pandas dates with zone": (
        lambda: pd.Series(pd.date_range("2026", periods=4, tz="UTC"))
    ),
    "pandas, dates of pyarrow": lambda: arrow_series([DAY, NEXT_DAY] * 2),
    "date objects": lambda: objects(DAY, None),
    "NumPy dates": lambda: np.array(["2026", "2027"] * 2, "M8[D]"),
    "masked dates": (
        lambda: np.ma.masked_array(
            np.array(["2026", "2027"] * 2, "M8[D]"), mask=[1, 0, 0, 0]
        )
    ),
    "pyarrow date": lambda: arrow(DAY, None),
}
# What is refused, and how.
REFUSED = {
    # Durations, and dates in lists
    "polars Duration": (lambda: polars(SPAN), ValueError, DATES),
    "pandas durations": (
        lambda: pd.Series(pd.to_timedelta(range(4), unit="D")),
        ValueError,
        DATES,
    ),
    "lists of dates": (lambda: objects([DAY]), ValueError, DATES),
    # Cells of several kinds, or of none
    "strings and integers": (
        lambda: objects("a", 1),
        ValueError,
        r"got 1 \(int\) and 'a' \(str\)\. Convert the column to one type",
    ),
    "dicts": (lambda: objects({"a": 1}), TypeError, DICT + ".*json_normalize"),
    "sets": (
        lambda: objects({"a"}),
        TypeError,
        r"'c' holds {'a'} \(set\); a cell used as .*e\.g\. with \.map\(sorted",
    ),
    "polars Struct": (lambda: polars({"a": 1}), TypeError, STRUCT),
    "pyarrow struct": (structs, TypeError, STRUCT),
    "pyarrow map": (
        lambda: arrow([("a", 1)], kind=pa.map_(pa.string(), pa.int64())),
        ValueError,
        "'c' holds lists of lists",
    ),
    "lists of floats that differ in length": (
        lambda: objects([1.5], [1.5, 2.5]),
        ValueError,
        "'c' must hold numbers, or lists of the same length; got lists of 1 to 2",
    ),
    "vectors with a gap": (
        lambda: objects([1.5, 2.5], None),
        ValueError,
        r"got lists of 0 to 2 values, \d of them empty or missing\. Fill gaps",
    ),
    "bytes that are not UTF-8": (
        lambda: polars(b"\xff"),
        ValueError,
        r"'c' holds bytes that are not UTF-8: b'\\xff'\. Decode",
    ),
    "integers beyond floats": (
        lambda: objects(HUGE, 1),
        ValueError,
        r"'c' holds 10+\.\.\.0+, which is too large for a float\. Scale",
    ),
    # No columns
    "complex": (lambda: np.ones(4) * 1j, ValueError, "not supported: column 'c'"),
    "fields": (
        lambda: np.zeros(4, dtype=[("n", "f8"), ("m", "f8")]),
        ValueError,
        "'c' must hold .*; got an array with the fields 'n', 'm'. Make each field",
    ),
    "no values": (lambda: np.ones((4, 0)), ValueError, r"'c' has .* shape is \(4, 0\)"),
    "a number": (lambda: 3.0, ValueError, r"'c' must be .* scalar 3.0\. A single row"),
    "a dict": (lambda: {"d": [1]}, TypeError, "'c' must be one column; got a dict"),
    "a frame": (
        lambda: pd.DataFrame({"d": [1]}),
        TypeError,
        "'c' must be one column; got a DataFrame. Give each column in it an entry",
    ),
    "another length": (lambda: [1, 2], ValueError, "column 'n' has 4 and .* 'c' has 2"),
    "sparse, one dimension": (
        lambda: scipy.sparse.coo_array(np.arange(4.0)),
        ValueError,
        r"'c' is a sparse array of shape \(4,\); two dimensions .*reshape",
    ),
    "torch, sparse": (
        lambda: torch.ones(4).to_sparse(),
        TypeError,
        "'c' cannot be read as an array: .*to_dense",
    ),
}


def records():
    return np.array([(1.0, "a")] * 4, dtype=[("n", "f8"), ("c", "U1")])


KEYS = r"keys of a dict X must be names \(str\) or positions \(int\) .* got "

REFUSED_TABLES = {
    "polars LazyFrame": (
        lambda: pl.LazyFrame({"a": A_B}),
        TypeError,
        r"X is a LazyFrame; call its method collect\(\) first",
    ),
    "pyarrow RecordBatch": (
        lambda: pa.record_batch({"a": A_B}),
        TypeError,
        "X is a RecordBatch; convert it to a DataFrame",
    ),
    "names twice": (
        lambda: pd.DataFrame(np.ones((4, 2)), columns=["a", "a"]),
        ValueError,
        "'a' occurs 2 times in X; names must be unique. Rename",
    ),
    "names of two levels": (
        lambda: pd.DataFrame(
            np.ones((4, 2)), columns=pd.MultiIndex.from_product([["a"], ["b", 1]])
        ),
        ValueError,
        r"names of 2 levels \(a MultiIndex\), such as \('a', 'b'\).*X.columns = \[",
    ),
    "no columns": (lambda: pd.DataFrame(index=range(4)), ValueError, "0 feature"),
    "no rows": (
        lambda: pd.DataFrame({"a": [], "b": []}),
        ValueError,
        r"0 sample\(s\) \(shape=\(0, 2\)\)",
    ),
    "no rows, array": (lambda: np.ones((0, 3)), ValueError, r"\(shape=\(0, 3\)\)"),
    "empty dict": (lambda: {}, ValueError, "empty dict"),
    "key that is a tuple": (lambda: {("a", "b"): A_B}, TypeError, KEYS + r"\('a', 'b'"),
    "fields": (records, ValueError, r"fields 'n', 'c'.*pandas\.DataFrame\(array\)"),
    "list of dicts": (
        lambda: [{"a": 1}] * 4,
        TypeError,
        r"'X' is a list of dictionaries, .*pandas\.DataFrame\(X\)",
    ),
    "one dimension": (lambda: np.ones(4), ValueError, "Expected 2D array, got 1D"),
    "three dimensions": (lambda: np.ones((4, 2, 2)), ValueError, "3D array|dim 3"),
}
