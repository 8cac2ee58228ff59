# SPDX-License-Identifier: Apache-2.0
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import torch

from skest.feature_columns.numeric import numeric_column
from skest.feature_columns.table import Table


def test_pandas_category_keeps_its_order() -> None:
    values = pd.Categorical(["b", None, "a"], categories=["unused", "a", "b"])
    cells = Table(pd.DataFrame({"c": values})).factorized("c")
    assert cells.codes.tolist() == [1, -1, 0]
    assert cells.distinct.tolist() == ["a", "b"]


def test_a_category_without_cells_is_not_looked_at() -> None:
    for unused in [7, 2.5, b"", pd.Timestamp(0)]:
        values = pd.Categorical(["b", "a"], categories=[unused, "a", "b"])
        assert Table({"c": values}).factorized("c").distinct.tolist() == ["a", "b"]


def test_integers_of_every_form_give_the_same() -> None:
    for values in [
        np.array([7, -1, 7]),
        np.array([7, -1, 7], dtype=">i4"),
        np.ma.array([7, -1, 7]),
        pa.array([7, -1, 7]),
        np.array([7, -1, 7], dtype=object),
        pd.Series([7, -1, 7], dtype="Int16"),
        pd.Series([7.0, -1.0, 7.0]),
        pd.Series([7, -1, 7], dtype="category"),
        [7, -1, 7],
    ]:
        cells = Table({"c": values}).factorized("c")
        assert cells.distinct[cells.codes].tolist() == [7, -1, 7]
        assert cells.distinct.dtype == np.int64
        assert cells.are_integers


def test_equal_values_of_two_kinds_are_refused() -> None:
    for other in (True, 1.0, Decimal(1)):
        for values in ([1, other, 2], [other, 1, 2], [None, 2, 1, other]):
            cells = np.array(values, dtype=object)
            forms: list[Any] = [{"c": cells}, pd.DataFrame({"c": cells})]
            if not isinstance(other, float):  # in a list, an integer beside gaps
                forms.append({"c": [[v] for v in values]})
            message = rf"{type(other).__name__}\).*to one type"
            for X in forms:
                with pytest.raises(ValueError, match=message):
                    Table(X).factorized("c")


def test_one_cell_is_read_as_two_are() -> None:
    for cell in ["a", "", None, 5, -1, True, b"a", np.nan, pd.NA, [1, 2], ["a"], []]:
        for form in ["array", "frame"]:
            both = np.fromiter([cell, cell], dtype=object, count=2)
            one, two = (
                Table(pd.DataFrame({"c": cells}) if form == "frame" else {"c": cells})
                for cells in (both[:1], both)
            )
            expected, actual = two.factorized("c"), one.factorized("c")
            np.testing.assert_array_equal(actual.codes, expected.codes[:1])
            assert actual.distinct.tolist() == expected.distinct.tolist()
            assert actual.codes.dtype == np.int64


def test_keys_of_arrays() -> None:
    X = np.arange(6.0).reshape(2, 3)
    table = Table(X)
    assert table.keys == ["x0", "x1", "x2"]
    assert (len(table), table.n_rows, table.n_features) == (2, 2, 3)
    for key in (1, "x1"):
        np.testing.assert_array_equal(table.column(key), X[:, 1])
    np.testing.assert_array_equal(table.column("x"), X)
    named = Table(X, feature_names=["a", "b", "c"])
    np.testing.assert_array_equal(named.column("b"), X[:, 1])
    assert Table(torch.from_numpy(X)).column("x0").tolist() == [0.0, 3.0]
    assert Table(X.tolist()).keys == table.keys


def test_positions_in_frames() -> None:
    X = pd.DataFrame({"a": [1, 2], "b": [3, 4]})
    for table in (Table(X), Table(X.to_numpy(), feature_names=["a", "b"])):
        np.testing.assert_array_equal(table.numbers(1), [3, 4])
        assert table.keys == ["a", "b"]
        for key in (2, "x", "x0"):
            with pytest.raises(ValueError, match=f"Column {key!r} is not in X"):
                table.cells(key)


def test_a_position_is_the_column_that_was_there_in_fit() -> None:
    for library in [pd.DataFrame, pl.DataFrame]:
        X = library({"a": [1.0, 2.0], "b": [3.0, 4.0]})
        column = numeric_column(1).fit(X)
        np.testing.assert_array_equal(column.transform(X[["b", "a"]])[:, 0], [3, 4])
        with pytest.raises(ValueError, match="Column 'b' is not in X"):
            column.transform(library({"a": [1.0], "c": [3.0]}))


def test_sparse_matrices_are_not_made_dense() -> None:
    for X, key in [
        ({"a": scipy.sparse.eye_array(2)}, "a"),
        (scipy.sparse.eye_array(2), "x"),
        (scipy.sparse.eye_array(2), "x0"),
        (scipy.sparse.eye_array(2).todok(), 1),
    ]:
        table = Table(X)
        assert table.n_rows == 2
        with pytest.raises(TypeError, match=f"{key!r} is a sparse matrix, .*toarray"):
            table.cells(key)


def test_stored_zeros_and_duplicates_of_sparse_matrices() -> None:
    entries = ([1.0, 2.0, 0.0], ([0, 0, 1], [1, 1, 0]))
    matrix = scipy.sparse.coo_array(entries, shape=(2, 2))
    made = Table({"a": matrix}).sparse("a")
    assert made.toarray().tolist() == [[0, 3], [0, 0]]
    assert made.nnz == 1
    assert matrix.nnz == 3


def test_unknown_column() -> None:
    with pytest.raises(ValueError, match=r"'agee' is not in X, .*Did you mean 'age'\?"):
        Table({"age": [1]}).column("agee")
    with pytest.raises(ValueError, match=r"has 'x', 'x0', .*, …\. Add"):
        Table(np.ones((1, 30))).column("income")


def test_no_categories() -> None:
    for values, error, message in [
        (
            ["a", 1],
            ValueError,
            r"'c' must hold either strings or .*1 \(int\) and 'a' \(str\)",
        ),
        (np.array([1.0]), ValueError, "'c' holds floats of a NumPy array"),
        (pd.Series([1.5]), ValueError, r"'c' holds numbers that are not whole, .*1\.5"),
        (
            pd.Series([2.0**53, None]),
            ValueError,
            r"'c' holds the float 9007199254740992\.0 .* too large to be exact as a float",
        ),
        (np.array([2**63], dtype=np.uint64), ValueError, "outside the range of int64"),
        (np.array(["2020"], "M8[D]"), ValueError, "'c' holds dates or durations"),
        (
            np.array([{"a": 1}], object),
            TypeError,
            "argument must be a string or an .*num",
        ),
    ]:
        with pytest.raises(error, match=message):
            Table({"c": values}).factorized("c")


def test_no_numbers() -> None:
    for values, error, message in [
        (
            ["1", "2"],
            ValueError,
            "'x' must hold numbers; got the string '1'.*to_numeric",
        ),
        (np.array([1.0, "a"], dtype=object), ValueError, "got the string 'a'"),
        (np.array(["2020"], "M8[D]"), ValueError, "'x' holds dates or durations"),
        (np.array([10**400]), ValueError, r"'x' holds 2\*\*1329 .* too large"),
        (np.array([{"a": 1}], object), TypeError, "argument must be a string .*number"),
        (np.zeros(1, dtype=[("f", "i4")]), ValueError, "must hold numbers, strings or"),
    ]:
        with pytest.raises(error, match=message):
            Table({"x": values}).numbers("x")
