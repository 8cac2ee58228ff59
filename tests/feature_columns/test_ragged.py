# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pandas as pd
import pytest

from skest import feature_columns as fc
from skest.feature_columns.table import Table


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
