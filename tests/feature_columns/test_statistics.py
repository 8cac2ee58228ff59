# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.preprocessing import QuantileTransformer, StandardScaler

from skest.feature_columns import numeric_column, statistics
from skest.feature_columns.statistics import Distribution, UniformMap, mean_and_scale


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(1, 4)), min_size=1))
def test_weights_are_repetitions(rows):
    values, weights = (np.array(column) for column in zip(*rows, strict=True))
    repeated = np.repeat(values, weights)
    weighted = Distribution.of(values, weights)
    for actual, expected in zip(weighted, Distribution.of(repeated, None), strict=True):
        assert_array_equal(actual, expected)
    levels = np.arange(1, 10) / 10
    numpys = np.quantile(values, levels, weights=weights, method="inverted_cdf")
    assert_array_equal(weighted.distinct[weighted.quantiles(levels)], numpys)


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
