# SPDX-License-Identifier: Apache-2.0
"""Means and deviations of large matrices, and copies of them."""

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

from skest.feature_columns import statistics as moments
from skest.feature_columns.statistics import copied_by_rows, mean_and_scale


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1000, 3), (7, 40), (1, 5), (50, 1)])
def test_pieces_give_what_scikit_learn_does(monkeypatch, order, dtype, shape):
    monkeypatch.setattr(moments, "_SMALL", 0)
    monkeypatch.setattr(moments, "_BLOCK", 60)
    values = np.random.default_rng(0).normal(1e3, 2, shape)
    values[0, 0] = 1e7  # far from all others
    values[:, -1] = 0.1  # of a mean that is rounded
    values = np.array(values, dtype, order=order)
    mean, scale = mean_and_scale(values, np.zeros(shape, bool), np.ones(len(values)))
    expected = StandardScaler().fit(values.astype(np.float64))
    np.testing.assert_allclose(mean, expected.mean_, rtol=1e-12)
    np.testing.assert_allclose(scale, expected.scale_, rtol=1e-9)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("n_columns", [1, 16, 37])
def test_a_copy_has_its_rows_one_behind_the_other(order, n_columns):
    values = np.array(np.arange(5.0 * n_columns).reshape(5, -1), order=order)
    copy = copied_by_rows(values, "float32")
    assert copy.flags.c_contiguous and copy.dtype == np.float32
    assert not np.shares_memory(copy, values)
    np.testing.assert_array_equal(copy, values)
