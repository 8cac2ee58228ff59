# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from skest import feature_columns as fc


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def assert_no_row_knows_its_label(column, X, y):
    """Assert that what stands for a row in training does not depend on its own label."""
    columns = fc.FeatureColumns([column]).fit(X, y)
    changed = y.copy()
    changed[7] += 100
    before, after = (columns.training_features(X, own, seed=1) for own in (y, changed))
    (before,), (after,) = before.values(), after.values()
    assert_array_equal(before[7], after[7])
    assert (before != after).any()
