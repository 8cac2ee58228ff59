# SPDX-License-Identifier: Apache-2.0
"""Tests of `skest.feature_columns.table`."""

import pickle

import numpy as np
import pandas as pd
import pytest

from skest import DNNLinearCombinedClassifier
from skest import feature_columns as fc
from skest.feature_columns import table as table_module
from skest.feature_columns.table import Table, TableColumns
from skest.inputs import ArrayDataset

COLORS = np.array(["red", "green", "red"])


def test_there_is_one_table_until_it_is_let_go():
    columns = TableColumns({"color": COLORS})
    table = Table(columns)
    assert Table(columns) is table
    columns.let_go()
    assert Table(columns) is not table


def test_other_columns_take_along_what_was_read():
    columns = TableColumns({"color": COLORS})
    read = Table(columns).factorized("color")
    joined = columns | {"weight": np.ones(3)}
    assert columns.table is None
    assert Table(joined).factorized("color") is read
    assert Table(joined).numbers("weight").tolist() == [1, 1, 1]
    assert list(joined) == ["color", "weight"]


def test_other_columns_must_be_as_long():
    columns = TableColumns({"color": COLORS})
    Table(columns)
    with pytest.raises(ValueError, match="'weight' has 2"):
        columns | {"weight": np.ones(2)}


def test_columns_in_place_of_others_are_read_anew():
    columns = TableColumns({"color": COLORS})
    Table(columns).factorized("color")
    replaced = columns | {"color": np.array(["blue"])}
    assert Table(replaced).factorized("color").distinct.tolist() == ["blue"]


def test_a_copy_has_read_nothing():
    columns = TableColumns({"color": COLORS})
    Table(columns)
    copy = pickle.loads(pickle.dumps(columns))
    assert isinstance(copy, TableColumns)
    assert copy.table is None
    np.testing.assert_equal(copy, columns)


def test_a_dataset_keeps_them():
    columns = TableColumns({"color": COLORS})
    assert ArrayDataset(columns).features is columns


@pytest.mark.parametrize("weight", [None, np.linspace(0.5, 2, 40)])
def test_a_fit_reads_strings_once_and_keeps_nothing(monkeypatch, weight):
    read, let_go = [], []
    factorize, forget = table_module.factorize, TableColumns.let_go

    def counted(cells, key):
        read.append((key, len(cells)))
        return factorize(cells, key)

    def noted(columns):
        let_go.append(columns)
        forget(columns)

    monkeypatch.setattr(table_module, "factorize", counted)
    monkeypatch.setattr(TableColumns, "let_go", noted)
    X = pd.DataFrame({"a": list("abcd") * 10, "b": list("xxyyz") * 8})
    columns = [fc.categorical_column_with_vocabulary_list(name) for name in X]
    model = DNNLinearCombinedClassifier(
        (4,),
        linear_feature_columns=columns,
        dnn_feature_columns=[fc.embedding_column(column, 2) for column in columns],
        max_iter=2,
        random_state=0,
    )
    model.fit(X, np.arange(40) % 2, weight)
    assert sorted(entry for entry in read if entry[1] == 40) == [("a", 40), ("b", 40)]
    assert let_go
    assert all(columns.table is None for columns in let_go)
