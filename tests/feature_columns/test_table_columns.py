# SPDX-License-Identifier: Apache-2.0
"""Tests of `skest.feature_columns.table`."""

import numpy as np
import pandas as pd
import pytest

from skest import DNNLinearCombinedClassifier
from skest import feature_columns as fc
from skest.feature_columns import table as table_module
from skest.feature_columns.table import TableColumns


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
