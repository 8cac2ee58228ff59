# SPDX-License-Identifier: Apache-2.0
"""`BinaryClassHead` and `MultiClassHead`: one class per example."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from skest.core.checks import check_integer
from skest.heads.labels import (
    WeightColumn,
    check_range,
    check_vocabulary,
    class_names,
    numbers,
    vocabulary_ids,
    vocabulary_index,
)
from skest.heads.single_task import SingleTaskHead
from skest.keys import MetricKeys, PredictionKeys
from skest.losses import sigmoid_cross_entropy, softmax_cross_entropy
from skest.metrics import AUC, Accuracy, BinaryBaseline, Mean, Metric, Precision, Recall


class SingleLabelHead(SingleTaskHead):
    """Base of the heads whose labels name one of several classes.

    A subclass defines `n_classes` before it calls this constructor.

    Parameters
    ----------
    label_vocabulary : sequence of str, default=None
        Names of the classes, in the order of their ids. With it, raw labels are names;
        without, they are ids from 0, and the names are their decimal digits.
    weight_column, loss_reduction, loss_fn, name
        See `skest.heads.SingleTaskHead`.
    """

    n_classes: int

    def __init__(
        self,
        weight_column: str | WeightColumn | None,
        label_vocabulary: Sequence[str] | None,
        loss_reduction: str,
        loss_fn: Callable[..., Tensor] | None,
        name: str | None,
    ) -> None:
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        check_vocabulary(label_vocabulary, self.n_classes, self._title)
        self.label_vocabulary = label_vocabulary

    def __getstate__(self) -> dict[str, Any]:
        # skops takes no index of pandas.
        return {name: v for name, v in vars(self).items() if name != "_index"}

    # Both take milliseconds for very many classes and are needed for every batch.

    @cached_property
    def _index(self) -> pd.Index | None:
        return vocabulary_index(self.label_vocabulary)

    @cached_property
    def _names(self) -> np.ndarray:
        return class_names(self.label_vocabulary, self.n_classes)

    @property
    def _label_dimension(self) -> int:
        return 1

    @abstractmethod
    def _class_ids(self, logits: Tensor) -> Tensor:
        """Predicted classes (..., 1); the lowest id among equals."""

    @abstractmethod
    def _probabilities(self, logits: Tensor) -> Tensor:
        """Probabilities of the classes (..., n_classes)."""

    @abstractmethod
    def _check_ids(self, labels: np.ndarray) -> np.ndarray:
        """Check class ids; return them as numbers of one of three types."""

    def _encode_array(self, array: np.ndarray, is_encoded: bool) -> np.ndarray:
        if not is_encoded:
            array = vocabulary_ids(array, self._index, self._title)
        return self._check_ids(array)

    def _predictors(self) -> dict[str, Callable[[Tensor], Any]]:
        # int32 as in tf.estimator, whose tf.range gives it; class_ids are int64.
        ids = torch.arange(self.n_classes, dtype=torch.int32)

        def rows(logits: Tensor) -> tuple[int, int]:
            return logits.shape[0], self.n_classes

        return {
            PredictionKeys.LOGITS: lambda logits: logits,
            PredictionKeys.PROBABILITIES: self._probabilities,
            PredictionKeys.CLASS_IDS: self._class_ids,
            PredictionKeys.CLASSES: lambda z: self._names[
                self._class_ids(z).cpu().numpy()
            ],
            # Views of one row: a thousand classes times all rows would not be small.
            PredictionKeys.ALL_CLASS_IDS: lambda z: ids.to(z.device).expand(rows(z)),
            PredictionKeys.ALL_CLASSES: lambda z: np.broadcast_to(self._names, rows(z)),
        }


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
        # Probabilities, too: sigmoid cross-entropy is as good for them, and TensorFlow
        # takes them.
        labels = numbers(labels, self._title)
        check_range(labels, 1, self._title, "classes 0 and 1 or probabilities of 1")
        return labels

    def _default_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        return sigmoid_cross_entropy(labels, logits)

    def _class_ids(self, logits: Tensor) -> Tensor:
        # Not >=: of two classes that are equally likely, TensorFlow's argmax takes the
        # first.
        return (logits > 0).long()

    def _probabilities(self, logits: Tensor) -> Tensor:
        # Not 1 - p: that would round a small probability of class 0 to nothing.
        # (..., 1) twice to (..., 2).
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
            # What a model that always says the more frequent class would reach.
            MetricKeys.ACCURACY_BASELINE: BinaryBaseline(),
            MetricKeys.AUC: AUC(),
            MetricKeys.AUC_PR: AUC("PR"),
            **threshold_metrics(self._thresholds),
        }

    def _metric_inputs(
        self, labels: Tensor, logits: Tensor
    ) -> dict[str, tuple[Tensor, ...]]:
        # All of shape (..., 1), as the labels are.
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


class MultiClassHead(SingleLabelHead):
    """Head for one of several classes (``tf.estimator.MultiClassHead``).

    The loss is softmax cross-entropy. Labels are integers from 0, or names of the
    vocabulary. Among equal logits, the lowest class id is predicted.

    Predictions are logits, probabilities, class_ids, classes, all_class_ids and
    all_classes; metrics are average_loss and accuracy.

    Parameters
    ----------
    n_classes : int, at least 3
        Number of classes.
    weight_column : str or NumericColumn, default=None
        See `skest.heads.SingleTaskHead`.
    label_vocabulary : sequence of n_classes str, default=None
        Names of the classes, in the order of their ids.
    loss_reduction, loss_fn, name
        See `skest.heads.SingleTaskHead`.

    Raises
    ------
    ValueError
        If the number of classes, the vocabulary or the reduction is wrong.
    TypeError
        If an argument has the wrong type.

    Examples
    --------
    >>> import torch
    >>> from skest.heads import MultiClassHead
    >>> head = MultiClassHead(3)
    >>> logits = torch.tensor([[0.0, 0.0, 1.0]])
    >>> head.loss([2], logits)
    tensor(0.5514)
    >>> head.predictions(logits, keys=["class_ids"])
    {'class_ids': tensor([[2]])}
    """

    _labels_are_ids = True

    def __init__(
        self,
        n_classes: int,
        weight_column: str | WeightColumn | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Tensor] | None = None,
        name: str | None = None,
    ) -> None:
        owner = type(self).__name__
        # The loss of two softmax outputs has one parameter too many; TensorFlow refuses
        # it, too.
        if n_classes == 2:
            raise ValueError(
                f"'n_classes' of {owner} must be greater than 2; got 2. "
                "Use BinaryClassHead."
            )
        check_integer(n_classes, "n_classes", owner, 3)
        self.n_classes = n_classes
        super().__init__(weight_column, label_vocabulary, loss_reduction, loss_fn, name)

    @property
    def logits_dimension(self) -> int:
        """Number of classes."""
        return self.n_classes

    def _check_ids(self, labels: np.ndarray) -> np.ndarray:
        ids = numbers(labels, self._title)
        # Rounded, 1.9 would be class 1.
        if ids.dtype.kind == "f":
            raise ValueError(
                f"{self._title} needs integer labels; got {labels.dtype}. Convert them "
                "with labels.astype(int), or use RegressionHead for real numbers."
            )
        check_range(ids, self.n_classes - 1, self._title, "one id for each class")
        return ids

    def _default_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        return softmax_cross_entropy(labels, logits)

    def _class_ids(self, logits: Tensor) -> Tensor:
        return logits.argmax(dim=-1, keepdim=True)

    def _probabilities(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1)

    def _metrics(self) -> dict[str, Metric]:
        return {MetricKeys.ACCURACY: Accuracy()}

    def _metric_inputs(
        self, labels: Tensor, logits: Tensor
    ) -> dict[str, tuple[Tensor, ...]]:
        return {MetricKeys.ACCURACY: (self._class_ids(logits), labels)}


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
    # At 0 and 1 a sigmoid decides nothing: all rows, or none, are beyond them.
    # Kept as a tuple: arrays have no truth value, and generators end.
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
        # Such as "precision/positive_threshold_0.25".
        key % threshold: metric(threshold)
        for threshold in thresholds
        for key, metric in _METRICS.items()
    }


def threshold_inputs(
    thresholds: Sequence[float], probabilities: Tensor, labels: Tensor
) -> dict[str, tuple[Tensor, ...]]:
    """Return the arguments of ``update`` for the same keys."""
    return dict.fromkeys(threshold_metrics(thresholds), (probabilities, labels))
