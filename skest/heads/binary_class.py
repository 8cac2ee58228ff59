# SPDX-License-Identifier: Apache-2.0
"""`BinaryClassHead`: two classes, one logit."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skest.heads.labels import check_range, numbers
from skest.heads.single_label import SingleLabelHead
from skest.heads.thresholds import (
    check_thresholds,
    threshold_inputs,
    threshold_metrics,
)
from skest.heads.weights import WeightColumn
from skest.keys import MetricKeys, PredictionKeys
from skest.losses import sigmoid_cross_entropy
from skest.metrics import AUC, Accuracy, BinaryBaseline, Mean, Metric, Precision, Recall

__all__ = ["BinaryClassHead"]


class BinaryClassHead(SingleLabelHead):
    """Head for two classes (``tf.estimator.BinaryClassHead``).

    The loss is sigmoid cross-entropy. Labels are 0 and 1, probabilities of class 1 in
    between, or names of the vocabulary. A logit of 0 predicts class 0.

    Predictions are logits, logistic (the probability of class 1), probabilities,
    class_ids, classes, all_class_ids and all_classes; metrics are average_loss,
    accuracy, precision, recall, prediction/mean, label/mean, accuracy_baseline, auc,
    auc_precision_recall, and three for each threshold. Precision, recall and the areas
    count every label above 0 as positive.

    Parameters
    ----------
    weight_column : str or NumericColumn, default=None
        See `skest.heads.SingleTaskHead`.
    thresholds : sequence of float in (0, 1), default=None
        Where to take "accuracy/positive_threshold_<t>", precision and recall.
    label_vocabulary : sequence of two str, default=None
        Names of class 0 and class 1.
    loss_reduction, loss_fn, name
        See `skest.heads.SingleTaskHead`.

    Raises
    ------
    ValueError
        If a threshold, the vocabulary or the reduction is wrong.
    TypeError
        If an argument has the wrong type.

    Examples
    --------
    >>> import torch
    >>> from skest.heads import BinaryClassHead
    >>> head = BinaryClassHead(label_vocabulary=["no", "yes"])
    >>> head
    BinaryClassHead(label_vocabulary=['no', 'yes'])
    >>> logits = torch.tensor([[0.0], [2.0]])
    >>> head.loss(["no", "yes"], logits)
    tensor(0.4100)
    >>> head.predictions(logits, keys=["classes"])["classes"]
    array([['no'],
           ['yes']], dtype=object)
    >>> metrics = head.metrics()
    >>> head.update_metrics(metrics, ["no", "yes"], logits)
    >>> metrics["auc"].compute()
    1.0
    """

    n_classes = 2

    def __init__(
        self,
        weight_column: str | WeightColumn | None = None,
        thresholds: Sequence[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Tensor] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(weight_column, label_vocabulary, loss_reduction, loss_fn, name)
        self.thresholds = thresholds
        self._thresholds = check_thresholds(thresholds, self._title)

    @property
    def logits_dimension(self) -> int:
        """1."""
        return 1

    def _check_ids(self, labels: np.ndarray) -> np.ndarray:
        labels = numbers(labels, self._title)
        check_range(labels, 1, self._title, "classes 0 and 1 or probabilities of 1")
        return labels

    def _default_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        return sigmoid_cross_entropy(labels, logits)

    def _class_ids(self, logits: Tensor) -> Tensor:
        return (logits > 0).long()

    def _probabilities(self, logits: Tensor) -> Tensor:
        # Not 1 - p: that would round a small probability of class 0 to nothing.
        return torch.cat([torch.sigmoid(-logits), torch.sigmoid(logits)], dim=-1)

    def _predictors(self) -> dict[str, Callable[[Tensor], Any]]:
        return {**super()._predictors(), PredictionKeys.LOGISTIC: torch.sigmoid}

    def _metrics(self) -> dict[str, Metric]:
        return {
            MetricKeys.ACCURACY: Accuracy(),
            MetricKeys.PRECISION: Precision(),
            MetricKeys.RECALL: Recall(),
            MetricKeys.PREDICTION_MEAN: Mean(),
            MetricKeys.LABEL_MEAN: Mean(),
            MetricKeys.ACCURACY_BASELINE: BinaryBaseline(),
            MetricKeys.AUC: AUC(),
            MetricKeys.AUC_PR: AUC("PR"),
            **threshold_metrics(self._thresholds),
        }

    def _metric_inputs(
        self, labels: Tensor, logits: Tensor
    ) -> dict[str, tuple[Tensor, ...]]:
        class_ids, probability = self._class_ids(logits), torch.sigmoid(logits)
        return {
            MetricKeys.ACCURACY: (class_ids, labels),
            MetricKeys.PRECISION: (class_ids, labels),
            MetricKeys.RECALL: (class_ids, labels),
            MetricKeys.PREDICTION_MEAN: (probability,),
            MetricKeys.LABEL_MEAN: (labels,),
            MetricKeys.ACCURACY_BASELINE: (labels,),
            MetricKeys.AUC: (probability, labels),
            MetricKeys.AUC_PR: (probability, labels),
            **threshold_inputs(self._thresholds, probability, labels),
        }
