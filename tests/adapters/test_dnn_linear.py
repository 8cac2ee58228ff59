# SPDX-License-Identifier: Apache-2.0
"""The model function of wide & deep models."""

import numpy as np

from skest import feature_columns as fc
from skest.canned.dnn_linear import dnn_linear_combined_model_fn
from skest.heads import RegressionHead


def test_auto_is_the_rate_of_the_original():
    def rates(n_columns, **options):
        columns = fc.FeatureColumns(
            [fc.numeric_column(str(i)) for i in range(n_columns)]
        )
        spec = dnn_linear_combined_model_fn(
            {str(i): np.ones(2) for i in range(n_columns)},
            np.ones(2),
            "train",
            head=RegressionHead(),
            linear_columns=columns,
            dnn_columns=None,
            dnn_hidden_units=[2],
            **options,
        )
        return [o.param_groups[0]["lr"] for o in spec.optimizers]

    assert rates(4) == [0.05]
    assert rates(4, linear_learning_rate="auto") == [0.005]
