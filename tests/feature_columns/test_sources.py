# SPDX-License-Identifier: Apache-2.0

import itertools
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch

from skest import feature_columns as fc
from skest.feature_columns import infer_feature_columns
from skest.feature_columns.table import Table


def test_sparse_matrices_of_every_form_are_the_same():
    dense = np.array([[0, 1, 0], [1, 0, 1], [0, 0, 0]])
    forms = ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"]
    dtypes = itertools.cycle([bool, np.int8, np.float64, np.longdouble])
    for form, dtype in zip(forms, dtypes, strict=False):
        made = scipy.sparse.csr_array(dense.astype(dtype)).asformat(form)
        for X, key in ((made, "x"), ({"a": made}, "a")):
            encoded = infer_feature_columns(X).fit(X).encode(X)
            assert encoded[f"{key}_ids"].tolist() == [[1, -1], [0, 2], [-1, -1]]


def test_pandas_category_keeps_its_order():
    values = pd.Categorical(["b", None, "a"], categories=["unused", "a", "b"])
    cells = Table(pd.DataFrame({"c": values})).factorized("c")
    assert cells.codes.tolist() == [1, -1, 0]
    assert cells.distinct.tolist() == ["a", "b"]


def test_a_category_without_cells_is_not_looked_at():
    for unused in [7, 2.5, b"", pd.Timestamp(0)]:
        values = pd.Categorical(["b", "a"], categories=[unused, "a", "b"])
        assert Table({"c": values}).factorized("c").distinct.tolist() == ["a", "b"]


def test_equal_values_of_two_kinds_are_refused():
    for other in (True, 1.0, Decimal(1)):
        for values in ([1, other, 2], [other, 1, 2], [None, 2, 1, other]):
            cells = np.array(values, dtype=object)
            forms = [{"c": cells}, pd.DataFrame({"c": cells})]
            if not isinstance(other, float):  # in a list, an integer beside gaps
                forms.append({"c": [[v] for v in values]})
            message = rf"{type(other).__name__}\).*to one type"
            for X in forms:
                with pytest.raises(ValueError, match=message):
                    Table(X).factorized("c")


def test_keys_of_arrays():
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


def test_stored_zeros_and_duplicates_of_sparse_matrices():
    entries = ([1.0, 2.0, 0.0], ([0, 0, 1], [1, 1, 0]))
    matrix = scipy.sparse.coo_array(entries, shape=(2, 2))
    made = Table({"a": matrix}).sparse("a")
    assert made.toarray().tolist() == [[0, 3], [0, 0]]
    assert made.nnz == 1
    assert matrix.nnz == 3


def test_unknown_column():
    with pytest.raises(ValueError, match=r"'agee' is not in X, .*Did you mean 'age'\?"):
        Table({"age": [1]}).column("agee")
    with pytest.raises(ValueError, match=r"has 'x', 'x0', .*, …\. Add"):
        Table(np.ones((1, 30))).column("income")


def objects(values):
    return np.fromiter(values, dtype=object, count=len(values))


def test_no_lists_of_categories():
    for cells, message in [
        ([["a"], "b"], r"'c' holds lists, but also 'b', .* here \['b'\]"),
        ([["a"], 3], r"'c' holds lists, but also 3, which is none"),
        ([["a", 1]], "'c' must hold either strings or integers only"),
        ([np.array(["a"]), np.array([1])], "either strings or integers only"),
        ([[2**63 + 1]], "outside the range of int64"),
        ([[2**60 + 1, None]], "too large to be exact as a float"),
        ([[0.5], [1.0]], r"not whole, such as 0\.5, .*sequence_numeric_column"),
        ([[["a"], ["b"]], [["c"]]], "'c' holds lists of lists, where lists of strings"),
        ([[[1, 2]], [[3]]], "'c' holds lists of lists, .* differ in shape"),
        ([np.ones((1, 2)), np.ones((1, 3))], "'c' holds lists of lists, .*differ"),
        ([np.ones((1, 2)), np.ones(3)], "'c' holds lists of lists, .*differ"),
        ([[pd.Timestamp("2020")], []], "'c' holds dates"),
    ]:
        with pytest.raises(ValueError, match=message):
            Table({"c": objects(cells)}).factorized("c")


def test_lists_of_several_lengths_are_no_numbers():
    message = "'x' must hold numbers, .* got lists of 0 to 2 values.*sequence_numeric"
    with pytest.raises(ValueError, match=message):
        fc.numeric_column("x").encode({"x": [[1.0], [2.0, 3.0], None]})


def test_split_of_nothing_but_missing_cells():
    column = fc.categorical_column_with_vocabulary_list("c", ["a"], delimiter="|")
    encoded = column.encode({"c": np.array([None, ""], dtype=object)})
    assert encoded["c_ids"].tolist() == [[-1], [-1]]


def test_split_refused():
    for values, message in [
        ([1, 2], "'c' must hold one string in each cell, .*'|'; got integers"),
        ([["a", "b"]], "'c' must hold one string .*; got several values in a cell"),
    ]:
        column = fc.categorical_column_with_vocabulary_list("c", delimiter="|")
        with pytest.raises(ValueError, match=message):
            column.fit({"c": values})
