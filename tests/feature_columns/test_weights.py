# SPDX-License-Identifier: Apache-2.0
"""What weights of rows mean for all that is learned by counting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from skest import feature_columns as fc

WEIGHTS = st.floats(1e-3, 1e3)


def boundaries(X, weight):
    column = fc.bucketized_column(fc.numeric_column("x"), "quantiles:10")
    return column.fit(X, sample_weight=weight).boundaries_


def scaled_boundaries(X, weight):
    source = fc.numeric_column("x", default_value="mean", normalizer="standard")
    column = fc.bucketized_column(source, "quantiles:4")
    return column.fit(X, sample_weight=weight).boundaries_


def quantile_map(X, weight):
    column = fc.numeric_column("x", normalizer="quantile")
    return np.concatenate(column.fit(X, sample_weight=weight).quantile_maps_[0])


def most_frequent(X, weight):
    column = fc.categorical_column_with_vocabulary_list("c", max_categories=3)
    return list(column.fit(X, sample_weight=weight).vocabulary_)


def shared(X, weight):
    columns = [
        fc.categorical_column_with_vocabulary_list(key, max_categories=3)
        for key in "cd"
    ]
    column = fc.shared_embeddings(columns, 2)[0].fit(X, sample_weight=weight)
    return list(column.categorical_column_.vocabulary_)


def share(X, weight):
    """Have 9 in just as many rows as are needed."""
    added = {key: np.append(values, [9, 9]) for key, values in X.items()}
    n_other = len(X["c"])
    column = fc.categorical_column_with_vocabulary_list(
        "c", min_frequency=2 / (n_other + 2)
    )
    if weight is not None:
        weight = np.append(weight, [weight[0]] * 2)
    return list(column.fit(added, sample_weight=weight).vocabulary_)


@st.composite
def tables(draw):
    x = draw(st.lists(st.integers(-4, 9), min_size=1, max_size=30))
    other = draw(st.permutations(x))
    return {"x": np.array(x) / 8, "c": np.array(x), "d": np.array(other)}


@pytest.mark.parametrize(
    "learned",
    [boundaries, scaled_boundaries, quantile_map, most_frequent, shared, share],
)
@given(X=tables(), weight=WEIGHTS)
def test_equal_weights_are_no_weights(learned, X, weight):
    weights = np.full(len(X["x"]), weight)
    if (X["c"] != -1).any():  # else there is no vocabulary
        assert_array_equal(learned(X, weights), learned(X, None))


def test_equal_weights_of_many_rows():
    for n_rows in [10, 11, 1000, 12345]:
        for weight in [0.1, 1 / 3, 1e-300, 1e300]:
            X = {"x": np.arange(n_rows)}
            weights = np.full(n_rows, weight)
            assert_array_equal(boundaries(X, weights), boundaries(X, None))
            assert_array_equal(quantile_map(X, weights), quantile_map(X, None))


@pytest.mark.parametrize("learned", [boundaries, quantile_map, most_frequent, shared])
@given(X=tables(), data=st.data())
def test_integers_are_repetitions(learned, X, data):
    n_rows = len(X["x"])
    draw = st.lists(st.integers(0, 5), min_size=n_rows, max_size=n_rows)
    weights = np.array(data.draw(draw))
    repeated = {key: np.repeat(values, weights) for key, values in X.items()}
    if (repeated["c"] != -1).any():
        assert_array_equal(learned(X, weights), learned(repeated, None))


@pytest.mark.parametrize("learned", [boundaries, quantile_map, most_frequent, shared])
@given(X=tables(), data=st.data())
def test_the_order_of_rows_does_not_matter(learned, X, data):
    n_rows = len(X["x"])
    tenths = st.integers(1, 9).map(lambda n: n / 10)
    weights = np.array(data.draw(st.lists(tenths, min_size=n_rows, max_size=n_rows)))
    order = np.array(data.draw(st.permutations(range(n_rows))))
    other = {key: values[order] for key, values in X.items()}
    if (X["c"] != -1).any():
        assert_array_equal(learned(X, weights), learned(other, weights[order]))
