# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
from numpy.testing import assert_allclose

from skest import feature_columns as fc


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def assert_no_row_knows_its_label(column, X, y):
    """Assert that what stands for a row in training does not depend on its own label."""

    def learned(own):
        columns = fc.FeatureColumns([column]).fit(X, own)
        (numbers,) = columns.training_features(X, own, seed=1).values()
        # As before they were standardised, to which all rows are needed.
        unscaled = vars(columns.active[0])
        return numbers * unscaled.get("scale_", 1.0) + unscaled.get("center_", 0.0)

    changed = y.copy()
    changed[7] += 100
    before, after = learned(y), learned(changed)
    assert_allclose(before[7], after[7], rtol=1e-4)
    assert np.abs(before - after).max() > 0.1
