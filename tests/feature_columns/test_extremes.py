# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest

from skest.feature_columns.statistics import extremes


@pytest.mark.parametrize("n_rows", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("n_columns", [1, 3])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_they_are_those_of_each_column(n_rows, n_columns, order, dtype):
    generator = np.random.default_rng(n_rows)
    numbers = generator.normal(scale=1e3, size=(n_rows, n_columns))
    values = np.asarray(numbers, dtype=dtype, order=order)
    found = extremes(values)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, [values.min(axis=0), values.max(axis=0)])


def test_those_of_every_other_row():
    values = np.arange(400.0).reshape(200, 2)[::2]
    np.testing.assert_array_equal(extremes(values), [[0, 1], [396, 397]])
