# SPDX-License-Identifier: Apache-2.0
import itertools

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skest import feature_columns as fc
from skest.feature_columns.categorical import DEFAULT_HASH_KEY, int64_keys
from skest.feature_columns.crossed import fingerprint_cat64

VOCABULARY = fc.categorical_column_with_vocabulary_list("v", ["ant", "bee"])


def ids(column, **X):
    return column.encode({k: np.asarray(v) for k, v in X.items()})[
        column.encoded_key
    ].tolist()


def bucket(*values, size, start=DEFAULT_HASH_KEY):
    chain = np.array([start], dtype=np.uint64)
    for value in values:
        array = np.array([value], dtype=object if isinstance(value, str) else np.int64)
        chain = fingerprint_cat64(chain, int64_keys(array))
    return int(chain[0] % np.uint64(size))


def test_nested_crosses_are_flat():
    nested = fc.crossed_column([fc.crossed_column(["a", VOCABULARY], 5), "b"], 1000)
    flat = fc.crossed_column(["a", VOCABULARY, "b"], 1000)
    X = {"a": ["x"], "b": ["y"], "v": ["ant"]}
    assert nested.name == flat.name == "a_X_b_X_v"
    assert ids(nested, **X) == ids(flat, **X)


def test_product_of_columns_with_several_values():
    for cells, delimiter in [
        ([["ant", "bee"], ["bee"]], None),
        (["ant|bee", "bee"], "|"),
    ]:
        animals = fc.categorical_column_with_vocabulary_list(
            "v", ["ant", "bee"], delimiter=delimiter
        )
        pages = fc.categorical_column_with_identity("n", 9)
        column = fc.crossed_column([animals, pages, "a"], 1000)
        X = {"v": cells, "n": [[4, 5], [6]], "a": [["x", "y", "z"], ["x"]]}
        rows = [([0, 1], [4, 5], ["x", "y", "z"]), ([1], [6], ["x"])]
        expected = [
            sorted(bucket(*values, size=1000) for values in itertools.product(*row))
            for row in rows
        ]
        encoded = column.encode(X)[column.encoded_key]
        assert encoded.shape == (2, 2 * 2 * 3)
        assert [sorted(row[row >= 0]) for row in encoded] == expected


CELLS = st.tuples(
    st.sampled_from(["", "x", "y"]),
    st.sampled_from(["", "ant", "bee", "cat"]),
    st.sampled_from([None, 5, 6]),
)


@given(st.lists(CELLS, min_size=1, max_size=4), st.sampled_from([1, 50]))
def test_many_rows_are_as_one(cells, n_copies):
    column = fc.crossed_column(["a", VOCABULARY, "n"], 2**40)
    vocabulary = {"ant": 0, "bee": 1, "cat": -1}  # the last one has no id
    expected = [
        [bucket(vocabulary[v], a, n, size=2**40) if a and v and n else -1]
        for a, v, n in cells
    ]
    a, v, n = (np.array(values, dtype=object) for values in zip(*cells, strict=True))
    X = pd.DataFrame({"a": a, "v": v, "n": pd.array(n, dtype="Int64")})
    X = pd.concat([X] * n_copies)
    assert column.encode(X)[column.encoded_key].tolist() == expected * n_copies


def test_parameters_refused():
    for keys, options, error, message in [
        (["a"], {}, ValueError, "two or more names or categorical columns; got"),
        ("ab", {}, TypeError, "'keys' .* must be a list or tuple .*; got 'ab'"),
        ({"a", "b"}, {}, TypeError, "'keys' .* whose order counts; got {'"),
        (
            ["a", fc.numeric_column("x")],
            {},
            TypeError,
            "Cut numbers with bucketized_column",
        ),
        (["a", 1.5], {}, TypeError, "names of raw columns or categorical columns"),
        (
            ["a", "b"],
            {"hash_bucket_size": 0},
            ValueError,
            "'hash_bucket_size' of crossed",
        ),
        (
            ["a", "b"],
            {"hash_bucket_size": 2**63 + 1},
            ValueError,
            r"from 1 to 9223372036854775808; got 9223372036854775809",
        ),
        (
            ["a", "b"],
            {"hash_key": -1},
            ValueError,
            "'hash_key' .* from 0 to 18446744073709551615",
        ),
    ]:
        with pytest.raises(error, match=message):
            fc.crossed_column(keys, **{"hash_bucket_size": 5, **options})
