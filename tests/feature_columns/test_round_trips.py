# SPDX-License-Identifier: Apache-2.0
"""The same values have the same ids, in whatever they are stored and however cut."""

import itertools
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.base import clone

from skest import feature_columns as fc

TEXT = st.text(max_size=3)  # with NUL, without surrogates
HUGE = st.integers(-(2**63), 2**63 - 1)
# Numbers without gaps, which Int64 and lists of Python integers hold as they are.
VALUES = st.one_of(
    st.lists(TEXT, min_size=1), st.lists(HUGE.filter(lambda v: v != -1), min_size=1)
)
LISTS = st.one_of(
    st.lists(st.lists(TEXT, max_size=3), min_size=1),
    st.lists(st.lists(HUGE.filter(lambda v: v != -1), max_size=3), min_size=1),
)


def vocabulary_column(delimiter=None):
    return fc.categorical_column_with_vocabulary_list(
        "c", num_oov_buckets=3, delimiter=delimiter
    )


def hashed(delimiter=None):
    return fc.categorical_column_with_hash_bucket("c", 2**30, delimiter=delimiter)


def crossed(delimiter=None):
    column = fc.categorical_column_with_vocabulary_list("c", delimiter=delimiter)
    return fc.crossed_column([column, "other"], 2**40)


EVERY_KIND = pytest.mark.parametrize("make", [vocabulary_column, hashed, crossed])


def as_objects(values):
    return np.fromiter(values, dtype=object, count=len(values))


def table(cells):
    return {"c": cells, "other": np.arange(len(cells)) % 2}


def trimmed(ids):
    """Ids without what stands behind the end of shorter cells."""
    return [[int(i) for i in row if i >= 0] for row in ids]


@EVERY_KIND
@given(cells=st.one_of(VALUES, LISTS))
def test_chunks(make, cells):
    X = table(as_objects(cells))
    column = fit(make(), X)
    whole = trimmed(column.encode(X)[column.encoded_key])
    column = pickle.loads(pickle.dumps(column))
    for n_rows in (1, max(1, len(cells) // 2), len(cells)):
        parts = [
            {k: v[start : start + n_rows] for k, v in X.items()}
            for start in range(0, len(cells), n_rows)
        ]
        ids = [trimmed(column.encode(part)[column.encoded_key]) for part in parts]
        assert list(itertools.chain(*ids)) == whole


def fit(column, X):
    """Fit, with a value of the same kind added: a vocabulary must not be empty."""
    flat = [v for c in X["c"] for v in (c if isinstance(c, list) else [c])]
    extra = 7 if flat and isinstance(flat[0], int) else "7"
    more = [extra] if not isinstance(X["c"][0], list) else [[extra]]
    return column.fit(table(as_objects([*X["c"], *more])))


@given(cells=st.lists(st.lists(TEXT, max_size=3), min_size=1))
@EVERY_KIND
def test_lists_and_delimited_strings(make, cells):
    cells = [[value.replace("|", "_") for value in cell] for cell in cells]
    of_lists = fit(make(), table(as_objects(cells)))
    split = make("|")
    joined = as_objects(["|".join(cell) for cell in cells])
    split.fit(table(as_objects([*joined, "7"])))
    key = of_lists.encoded_key
    assert trimmed(split.encode(table(joined))[key]) == trimmed(
        of_lists.encode(table(as_objects(cells)))[key]
    )


@given(values=VALUES)
def test_inverse_of_a_vocabulary(values):
    X = table(as_objects(values))
    column = fit(vocabulary_column(), X)
    found = column.inverse(column.encode(X)["c_ids"])[:, 0].tolist()
    assert found == [None if value == "" else value for value in values]


STRING_FORMS = {
    "list": lambda values: {"c": values},
    "numpy objects": lambda values: {"c": np.array(values, dtype=object)},
    "numpy str": lambda values: {"c": np.array([v or "" for v in values])},
    "numpy StringDType": lambda values: {
        "c": np.array(values, dtype=np.dtypes.StringDType(na_object=None))
    },
    "pandas objects": lambda values: pd.DataFrame({"c": pd.Series(values, dtype=object)}),
    "pandas str": lambda values: pd.DataFrame({"c": pd.Series(values, dtype="str")}),
    "pandas string": lambda values: pd.DataFrame({"c": pd.array(values, dtype="string")}),
    "pandas category": lambda values: pd.DataFrame(
        {"c": pd.Categorical(pd.Series(values, dtype=object))}
    ),
    "polars": lambda values: pl.DataFrame({"c": pl.Series(values, dtype=pl.String)}),
    "polars category": lambda values: pl.DataFrame(
        {"c": pl.Series(values, dtype=pl.Categorical)}
    ),
    "pyarrow": lambda values: pa.table({"c": pa.array(values, type=pa.string())}),
    "pyarrow dictionary": lambda values: pa.table(
        {"c": pa.array(values, type=pa.string()).dictionary_encode()}
    ),
}  # fmt: skip
INTEGER_FORMS = {
    "list": lambda values: {"c": values},
    "numpy": lambda values: {"c": np.array(values, dtype=np.int64)},
    "numpy objects": lambda values: {"c": np.array(values, dtype=object)},
    "pandas": lambda values: pd.DataFrame({"c": np.array(values, dtype=np.int64)}),
    "pandas nullable": lambda values: pd.DataFrame({"c": pd.array(values, "Int64")}),
    "pandas category": lambda values: pd.DataFrame({"c": pd.Categorical(values)}),
    "polars": lambda values: pl.DataFrame({"c": pl.Series(values, dtype=pl.Int64)}),
    "pyarrow": lambda values: pa.table({"c": pa.array(values, type=pa.int64())}),
    "pyarrow dictionary": lambda values: {
        "c": pa.chunked_array([pa.array(values).dictionary_encode()])
    },
}
STRINGS = ["b", None, "a", "", "é", "b", "nan", "😀", "x y"]
INTEGERS = [7, -1, 2**62 + 1, 0, -(2**63), 2**63 - 1, 7]


def check_form(X, values):
    column = fc.categorical_column_with_vocabulary_list("c", num_oov_buckets=3)
    columns = fc.FeatureColumns([column, fc.crossed_column([column, "c"], 2**40)])
    columns.fit({"c": as_objects(values)})
    expected = columns.encode({"c": as_objects(values)})
    for key, ids in columns.encode(X).items():
        assert_array_equal(ids, expected[key])
    buckets = fc.categorical_column_with_hash_bucket("c", 2**30)
    expected_buckets = buckets.encode({"c": as_objects(values)})["c_ids"]
    assert_array_equal(buckets.encode(X)["c_ids"], expected_buckets)


def test_forms_of_strings():
    for form in STRING_FORMS:
        check_form(STRING_FORMS[form](STRINGS), STRINGS)


def test_forms_of_integers():
    for form in INTEGER_FORMS:
        check_form(INTEGER_FORMS[form](INTEGERS), INTEGERS)


def test_forms_of_lists():
    for make in [
        lambda lists: {"c": lists},
        lambda lists: {"c": [np.array(cell, dtype=object) for cell in lists]},
        lambda lists: pd.DataFrame({"c": lists}),
        lambda lists: pl.DataFrame({"c": lists}),
        lambda lists: pa.table({"c": lists}),
    ]:
        lists = [["a", "b"], [], ["c", "é", "a"]]
        column = fc.categorical_column_with_vocabulary_list("c", ["a", "b", "c", "é"])
        encoded = column.encode(make(lists))["c_ids"]
        assert encoded.tolist() == [[0, 1, -1], [-1, -1, -1], [2, 3, 0]]


@EVERY_KIND
def test_surrogates_are_refused(make):
    array = np.array(["a\ud800"], dtype=object)
    for cells in (["a\ud800", "b"], [["b"], ["a\ud800"]], [array]):
        with pytest.raises(ValueError, match=r"Column 'c' holds 'a\\ud800', .* surrog"):
            make().fit(table(as_objects(cells)))


def test_surrogates_in_a_vocabulary_are_refused():
    with pytest.raises(ValueError, match=r"column 'c' holds '\\udfff', which is not"):
        fc.categorical_column_with_vocabulary_list("c", ["a", "\udfff"])


def test_integers_beyond_64_bits_are_refused():
    for value in (2**63, -(2**63) - 1):
        with pytest.raises(ValueError, match=f"integer {value}, .* range of int64"):
            hashed().encode({"c": as_objects([5, value])})


def test_weights_of_parts_are_those_of_the_whole():
    words = fc.categorical_column_with_vocabulary_list("w", ["a", "b"], delimiter="|")
    column = fc.weighted_categorical_column(words, "f")
    lists = pd.DataFrame(
        {"w": pd.Series(["a|b", "a"], dtype="category"), "f": [[1.0, 2.0], [5.0]]}
    )
    padded = {
        "w": np.array(["a|b", "a"], dtype=object),
        "f": np.array([[1.0, 2.0], [5.0, np.nan]]),
    }
    last = {key: values[1:] for key, values in padded.items()}
    expected = [[1, 2], [5, 0]]
    for whole, part in ((lists, lists.iloc[1:]), (padded, last)):
        assert column.transform(whole).toarray().tolist() == expected
        assert column.transform(part).toarray().tolist() == expected[1:]
    with pytest.raises(ValueError, match="must have a weight for each value"):
        column.transform({"w": ["a", "b"], "f": [[1.0, 4.0], [3.0, 2.0]]})


SCALED = {
    "minmax": fc.numeric_column("a", normalizer="minmax"),
    "auto": fc.numeric_column("a", normalizer="auto"),
    "standard": fc.numeric_column("a", normalizer="standard"),
    "filled": fc.numeric_column("a", default_value=0, normalizer="minmax"),
    "bucketized": fc.bucketized_column(
        fc.numeric_column("a", normalizer="minmax"), [0.5]
    ),
    "sequence": fc.sequence_numeric_column("a", normalizer="minmax"),
    "matrix": fc.SparseMatrixColumn("a"),
}


@pytest.mark.parametrize("column", SCALED.values(), ids=SCALED.keys())
def test_numbers_that_become_infinite_are_refused(column):
    train = {"a": np.array([[0.0], [1e-6]], dtype=np.float32)}
    X = {"a": np.array([[0.0], [1e35]], dtype=np.float32)}
    for made in (fc.FeatureColumns([column]).fit(train), clone(column).fit(train)):
        for method in (made.encode, made.transform):
            if column.length_key is not None:
                method = made.encode  # there is no plain matrix of sequences
            with pytest.raises(ValueError, match="'a' holds a number that is infinite"):
                method(X)


def test_numbers_that_become_infinite_in_the_type_of_the_network():
    column = fc.numeric_column("a", dtype="float64")
    with pytest.raises(ValueError, match="'a' holds a number .* is infinite .*float32"):
        fc.FeatureColumns([column]).encode({"a": [1e300]})
    assert column.transform({"a": [1e300]}) == 1e300
