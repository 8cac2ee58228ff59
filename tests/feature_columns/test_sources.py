# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse

from skest.feature_columns import infer_feature_columns
from skest.feature_columns.table import Table
from tests._forms import FORMS, REFUSED, REFUSED_TABLES


def tables_of(column):
    """The column in a dict, and in the frames that hold such columns."""
    numbers = np.arange(4.0)
    tables = {"dict": {"n": numbers, "c": column}}
    if isinstance(column, pd.Series):
        index = [9, 9, 7, 8]
        frame = pd.DataFrame({"n": numbers, "c": column}).set_axis(index, axis=0)
        tables["pandas"] = frame
    elif isinstance(column, pl.Series):
        tables["polars"] = pl.DataFrame({"n": numbers, "c": column})
    elif isinstance(column, pa.Array | pa.ChunkedArray):
        tables["pyarrow"] = pa.table({"n": numbers, "c": column})
    return tables


def values_of(cells):
    values = np.append(cells.distinct.astype(object), None)
    return values[cells.codes].tolist()


def test_every_form_is_read_as_what_it_is():
    for form, (make, kind, expected) in FORMS.items():
        for X in tables_of(make()).values():
            table = Table(X)
            encoded = infer_feature_columns(X).fit(X).encode(X)
            if kind == "numbers":
                np.testing.assert_array_equal(table.numbers("c"), expected, form)
                assert "c" in encoded, form
            else:
                assert values_of(table.factorized("c")) == expected, form
                assert "c_ids" in encoded, form


def test_columns_that_cannot_be_read_are_named():
    for make, error, message in REFUSED.values():
        for X in tables_of(make()).values():
            with pytest.raises(error, match=message):
                infer_feature_columns(X).fit(X)


def test_what_is_no_table():
    for make, error, message in REFUSED_TABLES.values():
        with pytest.raises(error, match=message):
            infer_feature_columns(make()).fit(make())


def test_sparse_matrices_of_every_form_are_the_same():
    dense = np.array([[0, 1, 0], [1, 0, 1], [0, 0, 0]])
    forms = ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"]
    dtypes = itertools.cycle([bool, np.int8, np.float64, np.longdouble])
    for form, dtype in zip(forms, dtypes, strict=False):
        made = scipy.sparse.csr_array(dense.astype(dtype)).asformat(form)
        for X, key in ((made, "x"), ({"a": made}, "a")):
            encoded = infer_feature_columns(X).fit(X).encode(X)
            assert encoded[f"{key}_ids"].tolist() == [[1, -1], [0, 2], [-1, -1]]


def test_integers_in_lists_with_gaps():
    for large in [2**50 + 1, 2**60 + 1]:
        cells = [[large, None], [3, large + 1], None]
        lists = pa.list_(pa.int64())
        for column in [
            cells,
            pl.Series(cells),
            pl.Series(cells, dtype=pl.Array(pl.Int64, 2)),
            pa.array(cells, lists),
            pa.array(cells, pa.list_(pa.int64(), 2)),
            pd.Series(cells, dtype=pd.ArrowDtype(lists)),
        ]:
            table = Table({"c": column})
            if large > 2**53:  # gaps make floats of them
                with pytest.raises(ValueError, match="too large to be exact .* float"):
                    table.factorized("c")
            else:
                expected = [[large, None], [3, large + 1], [None, None]]
                assert values_of(table.factorized("c")) == expected
