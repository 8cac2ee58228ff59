# SPDX-License-Identifier: Apache-2.0
"""Metrics at thresholds of a probability, for heads with binary labels."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from skest.keys import MetricKeys
from skest.metrics import Accuracy, Metric, Precision, Recall

__all__ = ["check_thresholds", "threshold_inputs", "threshold_metrics"]

_METRICS: dict[str, Callable[[float], Metric]] = {
    MetricKeys.ACCURACY_AT_THRESHOLD: Accuracy,
    MetricKeys.PRECISION_AT_THRESHOLD: Precision,
    MetricKeys.RECALL_AT_THRESHOLD: Recall,
}


def check_thresholds(thresholds: Any, owner: str) -> tuple[float, ...]:
    """Return the thresholds as a tuple, empty for None.

    Raises
    ------
    ValueError
        If one is not between 0 and 1.
    """
    values = () if thresholds is None else tuple(thresholds)
    for value in values:
        if not 0 < value < 1:
            raise ValueError(
                f"'thresholds' of {owner} must lie between 0 and 1, both excluded; "
                f"got {value!r}."
            )
    return values


def threshold_metrics(thresholds: Sequence[float]) -> dict[str, Metric]:
    """Return accuracy, precision and recall at every threshold, by key."""
    return {
        key % threshold: metric(threshold)
        for threshold in thresholds
        for key, metric in _METRICS.items()
    }


def threshold_inputs(
    thresholds: Sequence[float], probabilities: Tensor, labels: Tensor
) -> dict[str, tuple[Tensor, ...]]:
    """Return the arguments of ``update`` for the same keys."""
    return dict.fromkeys(threshold_metrics(thresholds), (probabilities, labels))
