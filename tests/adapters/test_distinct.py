# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pandas as pd
import polars as pl
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from skest.adapters.features import Rows, count_samples, distinct_rows

COLUMNS = {
    "floats": np.array([0.5, np.nan, -0.0, 1e300, 2.0]),
    "float32": np.array([0.1, 0.2, 0.3, np.nan, 0.1], dtype=np.float32),
    "integers": np.array([2**63 - 1, -1, 0, 5, 7]),
    "unsigned": np.array([2**64 - 1, 0, 3, 5, 7], dtype=np.uint64),
    "booleans": np.array([True, False, True, True, False]),
    "matrix": np.arange(10.0).reshape(5, 2) % 7,
    "strings": np.array(["", "é", "a\0b", None, "a"], dtype=object),
    "text": np.array(["b", "a", "c", "aa", ""]),
    "lists": np.fromiter([["a"], [], ["b", "a"], ["a", "b"], ["aa"]], object, 5),
    "vectors": np.fromiter(
        [[[1.0, 2.0]], [], [[2.0, 1.0]], [[1.0, 2.0]] * 2, [[1.0, 3.0]]], object, 5
    ),
    "category": pd.Series(["x", None, "y", "z", "x"], dtype="category"),
    "nullable": pd.Series([1, None, 3, 4, 5], dtype="Int64"),
    "polars": pl.Series(["u", None, "v", "w", "x"]),
    "sparse": scipy.sparse.csr_array(
        np.array([[0, 1.0], [2, 0], [0, 0], [2, 1], [1, 2]])
    ),
}


def test_different_values_stay_apart_and_equal_ones_become_one():
    times = np.array([1, 3, 2, 1, 2])
    index = np.random.default_rng(0).permutation(np.repeat(np.arange(5), times))
    for name, column in COLUMNS.items():
        whole = Rows({"c": column}, np.arange(5), None)
        alone = distinct_rows(whole._replace(weight=times.astype(float)))
        repeated = distinct_rows(whole.take(index))
        assert sorted(alone.labels) == [0, 1, 2, 3, 4], name
        assert_array_equal(alone.labels, repeated.labels)
        assert_array_equal(alone.weight, repeated.weight)
        assert_array_equal(alone.weight, times[alone.labels])
        if name not in ("booleans", "float32", "category"):  # without equal values
            assert distinct_rows(whole._replace(labels=np.zeros(5))).n_rows == 5


@settings(max_examples=50)
@given(
    st.lists(
        st.tuples(st.integers(-3, 3), st.sampled_from(["a", "b", ""]), st.booleans()),
        min_size=1,
        max_size=30,
    ),
    st.randoms(use_true_random=False),
)
def test_the_result_is_that_of_counting(cells, random):
    def distinct(cells):
        numbers, strings, labels = zip(*cells, strict=True)
        features = {"n": np.array(numbers), "s": np.array(strings, dtype=object)}
        return distinct_rows(Rows(features, np.array(labels), None))

    found = distinct(cells)
    counted = {
        (n, s, bool(y)): w
        for n, s, y, w in zip(
            found.features["n"],
            found.features["s"],
            found.labels,
            found.weight,
            strict=True,
        )
    }
    assert counted == {cell: cells.count(cell) for cell in set(cells)}
    random.shuffle(cells)
    again = distinct(cells)
    assert_array_equal(again.features["n"], found.features["n"])
    assert_array_equal(again.features["s"], found.features["s"])
    assert count_samples(again.features) == found.n_rows
