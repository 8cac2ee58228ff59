# SPDX-License-Identifier: Apache-2.0
"""Areas under curves as TensorFlow estimates them; those of skest are exact."""

from skest.metrics import AUC


class TensorFlowAUC(AUC):
    """AUC from TensorFlow's 200 thresholds at once, which makes 199 buckets."""

    _BUCKETS = 199

    def __init__(self, curve):
        super().__init__(curve, max_points=0)


def as_tensorflow(metrics):
    return {
        key: TensorFlowAUC(metric.curve) if isinstance(metric, AUC) else metric
        for key, metric in metrics.items()
    }
