# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.preprocessing import QuantileTransformer, StandardScaler

from skest import feature_columns as fc
from skest.feature_columns import numeric_column, statistics
from skest.feature_columns.statistics import UniformMap, mean_and_scale


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["normal", "mostly zero", "few", "counts"])
def test_close_to_scikit_learn(kind, dtype, rng):
    values = {
        "normal": rng.normal(size=(5000, 2)),
        "mostly zero": rng.normal(size=(5000, 2)) * (rng.random((5000, 2)) < 0.1),
        "few": rng.exponential(size=(20, 2)),
        "counts": rng.poisson(4, size=(5000, 2)),
    }[kind].astype(dtype)
    column = numeric_column("x", shape=2, dtype=dtype, normalizer="quantile")
    actual = column.fit_transform({"x": values})
    n_quantiles = min(1000, len(values))
    scaler = QuantileTransformer(n_quantiles=n_quantiles, subsample=None)
    assert actual.dtype == dtype
    assert_allclose(actual, scaler.fit_transform(values), atol=1.5 / n_quantiles)
    assert actual.min() == 0
    assert actual.max() == 1


def test_numbers_that_are_nearly_the_same():
    for low, high in [(0.0, 1e-300), (1.0, np.nextafter(1.0, 2))]:
        values = np.array([low, high])
        assert UniformMap.learned(values, None)(values).tolist() == [0, 1]


def test_numbers_too_far_apart():
    column = numeric_column("x", normalizer="quantile")
    with pytest.raises(ValueError, match="'x' holds numbers too large"):
        column.fit({"x": [-3e38, 3e38]})


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pieces_give_what_scikit_learn_does(monkeypatch, order, dtype):
    monkeypatch.setattr(statistics, "_BLOCK", 60)
    for shape in ((1000, 3), (7, 40), (1, 5), (50, 1)):
        values = np.random.default_rng(0).normal(1e3, 2, shape)
        values[0, 0] = 1e7  # far from all others
        values[:, -1] = 0.1  # of a mean that is rounded
        values = np.array(values, dtype, order=order)
        mean, scale = mean_and_scale(values, None, np.ones(len(values)))
        expected = StandardScaler().fit(values.astype(np.float64))
        assert_allclose(mean, expected.mean_, rtol=1e-12)
        assert_allclose(scale, expected.scale_, rtol=1e-9)


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


@pytest.mark.parametrize("wrong", [2**31 - 1, 1e12, 9.97e36])
@pytest.mark.parametrize("n_wrong", [1, 60])
def test_wrong_numbers_do_not_take_the_edges_of_the_others(wrong, n_wrong):
    days = np.random.default_rng(0).integers(400, size=2000).astype(float)
    column = fc.piecewise_linear_column(numeric_column("days"))
    (expected,) = column.fit({"days": days}).edges
    days[:n_wrong] = wrong
    (edges,) = column.fit({"days": days}).edges
    assert len(edges) >= len(expected) - 2
