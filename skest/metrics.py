# SPDX-License-Identifier: Apache-2.0
"""Metrics that accumulate over batches and merge over workers.

``update`` takes predictions before labels, as torchmetrics does. It works on the device
of its arguments, in float64, and never waits for the device; ``compute`` does. Weights
have the shape of the values, lack its last dimension, or broadcast along it.

A quotient with denominator 0 is 0, as in TensorFlow (``div_no_nan``).
"""

from abc import ABC, abstractmethod
from typing import Any, Self

import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike
from torch import Tensor

__all__ = [
    "AUC",
    "Accuracy",
    "BinaryBaseline",
    "Mean",
    "Metric",
    "Precision",
    "Recall",
]


class Metric(ABC):
    """A number about a model that is accumulated batch by batch.

    Subclasses keep their settings in public attributes and their state in private ones.

    Examples
    --------
    >>> from skest.metrics import Accuracy
    >>> accuracy, of_another_worker = Accuracy(), Accuracy()
    >>> accuracy.update([1, 0], [1, 1])
    >>> of_another_worker.update([2, 2], [2, 2])
    >>> accuracy.merge(of_another_worker).compute()
    0.75
    """

    @abstractmethod
    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add a batch."""

    @abstractmethod
    def compute(self) -> Any:
        """Return the number, or the array, of all batches since the last `reset`."""

    @abstractmethod
    def reset(self) -> None:
        """Forget all batches."""

    def merge(self, other: "Metric") -> Self:
        """Add the batches that another metric of the same kind has seen.

        Parameters
        ----------
        other : Metric
            Of the same class, with the same settings; it is left as it is.

        Returns
        -------
        self

        Raises
        ------
        TypeError
            If the class differs.
        ValueError
            If the settings differ.
        """
        if type(other) is not type(self):
            raise TypeError(
                f"{type(self).__name__} merges with its own kind only; "
                f"got {type(other).__name__}."
            )
        if repr(other) != repr(self):
            raise ValueError(f"{self!r} can't merge with {other!r}: settings differ.")
        self._merge(other)
        return self

    @abstractmethod
    def _merge(self, other: Any) -> None:
        """Add the state of a metric of this class and these settings."""

    def __repr__(self) -> str:
        settings = (f"{k}={v!r}" for k, v in vars(self).items() if k[0] != "_")
        return f"{type(self).__name__}({', '.join(settings)})"


class _Ratio(Metric):
    """A sum over the batches, divided by another."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._sums = torch.zeros(2, dtype=torch.float64)

    def compute(self) -> float:
        return _divide(*self._sums).item()

    def _add(self, numerators: Tensor, denominators: Tensor) -> None:
        self._add_sums(torch.stack([numerators.sum(), denominators.sum()]))

    def _add_sums(self, sums: Tensor) -> None:
        self._sums = self._sums.to(sums.device) + sums

    def _merge(self, other: "_Ratio") -> None:
        self._add_sums(other._sums.to(self._sums.device))


class Mean(_Ratio):
    """Weighted mean of values (``tf.keras.metrics.Mean``).

    Examples
    --------
    >>> from skest.metrics import Mean
    >>> mean = Mean()
    >>> mean.update([1.0, 4.0], weights=[2.0, 1.0])
    >>> mean.compute()
    2.0
    """

    def update(self, values: ArrayLike | Tensor, weights: Any = None) -> None:
        """Add a batch.

        Parameters
        ----------
        values : array-like or Tensor of any shape
            What is averaged.
        weights : array-like or Tensor, default=None
            Weight of every value; None is 1.

        Raises
        ------
        ValueError
            If the weights don't fit the values.
        """
        values = _tensor(values)
        weights = _weights_of(values, weights)
        self._add(values.double() * weights, weights)


class BinaryBaseline(Mean):
    """Accuracy of always predicting the more frequent of two classes.

    Examples
    --------
    >>> from skest.metrics import BinaryBaseline
    >>> baseline = BinaryBaseline()
    >>> baseline.update([0, 0, 0, 1])
    >>> baseline.compute()
    0.75
    """

    def compute(self) -> float:
        """Return max(m, 1 - m) for the mean m of the labels."""
        positives, total = self._sums
        return _divide(torch.maximum(positives, total - positives), total).item()


class _Labelled(_Ratio):
    """A ratio of sums over predictions and labels, both of the same shape."""

    def update(
        self,
        predictions: ArrayLike | Tensor,
        labels: ArrayLike | Tensor,
        weights: Any = None,
    ) -> None:
        """Add a batch.

        Parameters
        ----------
        predictions : array-like or Tensor of any shape
            Scores, or class ids.
        labels : array-like or Tensor, same shape
            True classes. Where two classes are meant, anything but 0 is positive.
        weights : array-like or Tensor, default=None
            Weight of every prediction; None is 1.

        Raises
        ------
        ValueError
            If the shapes don't fit each other.
        """
        predictions, labels = _same_shape(predictions, labels)
        weights = _weights_of(predictions, weights)
        self._add_batch(predictions, labels, weights)

    @abstractmethod
    def _add_batch(self, predictions: Tensor, labels: Tensor, weights: Tensor) -> None:
        """Add a batch of tensors of one shape."""


class Accuracy(_Labelled):
    """Share of predictions that equal their label.

    Parameters
    ----------
    threshold : float, default=None
        Predictions above it count as class 1, others as class 0
        (``tf.keras.metrics.BinaryAccuracy``). None means that predictions are classes.

    Examples
    --------
    >>> from skest.metrics import Accuracy
    >>> accuracy = Accuracy(threshold=0.5)
    >>> accuracy.update([0.9, 0.5], [1, 1])
    >>> accuracy.compute()
    0.5
    """

    def __init__(self, threshold: float | None = None) -> None:
        super().__init__()
        self.threshold = threshold

    def _add_batch(self, predictions: Tensor, labels: Tensor, weights: Tensor) -> None:
        if self.threshold is not None:
            predictions = predictions > self.threshold
        self._add((predictions == labels) * weights, weights)


class Precision(_Labelled):
    """Share of positives among what is predicted positive.

    Parameters
    ----------
    threshold : float, default=0.5
        Predictions above it are positive (``tf.keras.metrics.Precision``).

    Examples
    --------
    >>> from skest.metrics import Precision
    >>> precision = Precision()
    >>> precision.update([0.9, 0.8, 0.1], [1, 0, 1])
    >>> precision.compute()
    0.5
    """

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = threshold

    def _add_batch(self, predictions: Tensor, labels: Tensor, weights: Tensor) -> None:
        predicted = (predictions > self.threshold) * weights
        self._add(predicted * (labels != 0), predicted)


class Recall(_Labelled):
    """Share of what is predicted positive among the positives.

    Parameters
    ----------
    threshold : float, default=0.5
        Predictions above it are positive (``tf.keras.metrics.Recall``).

    Examples
    --------
    >>> from skest.metrics import Recall
    >>> recall = Recall()
    >>> recall.update([0.9, 0.8, 0.1, 0.2], [1, 0, 1, 1], weights=[2, 1, 1, 1])
    >>> recall.compute()
    0.5
    """

    def __init__(self, threshold: float = 0.5) -> None:
        super().__init__()
        self.threshold = threshold

    def _add_batch(self, predictions: Tensor, labels: Tensor, weights: Tensor) -> None:
        positive = (labels != 0) * weights
        self._add(positive * (predictions > self.threshold), positive)


class AUC(Metric):
    """Area under the ROC curve or under the precision-recall curve.

    Up to `max_points` predictions are kept, and the area is exact: that of the curve
    through every distinct score. Beyond, they are counted in 2**20 buckets of equal
    width, for which scores have to be in [0, 1]; `error_bound` then tells how far the
    exact value can be. Both are finer than ``tf.keras.metrics.AUC`` with its 200
    thresholds; between the points of the precision-recall curve, true and false
    positives are interpolated as there.

    As in TensorFlow, the area under ROC is 0 if a class is missing, that under
    precision-recall 0 without positives and 1 without negatives. A NaN among the scores
    makes the result NaN.

    Parameters
    ----------
    curve : {"ROC", "PR"}, default="ROC"
        Which curve.
    max_points : int, default=1_000_000
        How many predictions are kept, 24 bytes each.

    Raises
    ------
    ValueError
        If the curve is unknown.

    Examples
    --------
    >>> from skest.metrics import AUC
    >>> auc = AUC()
    >>> auc.update([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1])
    >>> auc.compute()
    0.75
    """

    # 16 MiB of weights; what they cost in digits, `error_bound` says.
    _BUCKETS = 2**20

    def __init__(self, curve: str = "ROC", max_points: int = 1_000_000) -> None:
        if curve not in ("ROC", "PR"):
            raise ValueError(f"'curve' must be 'ROC' or 'PR'; got {curve!r}.")
        self.curve = curve
        self.max_points = max_points
        self.reset()

    def reset(self) -> None:
        """Forget all batches."""
        # Rows: score, weight if positive, weight if negative.
        self._points: list[Tensor] = []
        self._n_points = 0
        # The weights again, summed by bucket; None while all points are kept.
        self._buckets: Tensor | None = None
        self._outside = torch.zeros((), dtype=torch.bool)

    def update(
        self,
        predictions: ArrayLike | Tensor,
        labels: ArrayLike | Tensor,
        weights: Any = None,
    ) -> None:
        """Add a batch.

        Parameters
        ----------
        predictions : array-like or Tensor of any shape
            Scores: the higher, the more likely positive.
        labels : array-like or Tensor, same shape
            True classes; anything but 0 is positive.
        weights : array-like or Tensor, default=None
            Weight of every prediction; None is 1.

        Raises
        ------
        ValueError
            If the shapes don't fit each other.
        """
        predictions, labels = _same_shape(predictions, labels)
        weights = _weights_of(predictions, weights)
        scores = predictions.double()
        # A score of NaN has no place in the order: the area is to be NaN, too.
        weights = weights.masked_fill(scores.isnan(), torch.nan)
        positive = labels != 0
        columns = (scores, weights * positive, weights * ~positive)
        self._add(torch.stack([column.flatten() for column in columns]))

    def compute(self) -> float:
        """Return the area.

        Raises
        ------
        ValueError
            If more than `max_points` scores were seen and some are outside [0, 1].
        """
        tp, fp = self._cumulated()
        if self.curve == "ROC":
            recall, fall_out = _divide(tp, tp[-1]), _divide(fp, fp[-1])
            return torch.trapezoid(recall, fall_out).item()
        return _pr_area(tp, fp).item()

    def error_bound(self) -> float:
        """Return how far `compute` can be from the exact value, for weights ≥ 0.

        It is 0 as long as all points are kept. With buckets, the true curve runs
        within the rectangles whose corners are neighbouring points of the known one.
        """
        if self._buckets is None:
            return 0.0
        tp, fp = self._cumulated()
        recall = _divide(tp, tp[-1])
        if self.curve == "ROC":
            return (recall.diff() @ _divide(fp, fp[-1]).diff()).item() / 2
        highest = _divide(tp[1:], tp[1:] + fp[:-1])
        lowest = _divide(tp[:-1], tp[:-1] + fp[1:])
        # A bucket of only one class loses nothing.
        return (recall.diff() * (highest - lowest))[fp.diff() > 0].sum().item()

    def _add(self, points: Tensor) -> None:
        self._points.append(points)
        self._n_points += points.shape[1]
        if self._buckets is not None or self._n_points > self.max_points:
            self._fill_buckets()

    def _fill_buckets(self) -> Tensor:
        """Move the points into the buckets and return these."""
        scores, positive, negative = self._joined_points()
        self._points, self._n_points = [], 0
        if self._buckets is None:
            self._buckets = scores.new_zeros(2, self._BUCKETS)
        device = self._buckets.device
        bucket = (scores.nan_to_num() * self._BUCKETS).long().clip(0, self._BUCKETS - 1)
        weights = torch.stack([positive, negative])
        self._buckets.index_add_(1, bucket.to(device), weights.to(device))
        outside = ((scores < 0) | (scores > 1)).any()
        self._outside = self._outside.to(device) | outside.to(device)
        return self._buckets

    def _merge(self, other: "AUC") -> None:
        for points in other._points:
            self._add(points)
        if other._buckets is not None:
            buckets = self._fill_buckets()
            buckets += other._buckets.to(buckets.device)
            self._outside = self._outside | other._outside.to(buckets.device)

    def _joined_points(self) -> Tensor:
        if not self._points:
            return torch.zeros(3, 0, dtype=torch.float64)
        device = self._points[-1].device
        return torch.cat([points.to(device) for points in self._points], dim=1)

    def _cumulated(self) -> tuple[Tensor, Tensor]:
        """Weights of true and false positives, for thresholds from high to low."""
        if self._buckets is not None:
            if self._outside:
                raise ValueError(
                    f"AUC of more than max_points={self.max_points} predictions needs "
                    "scores in [0, 1]. Pass probabilities, or raise 'max_points'."
                )
            sums = self._buckets.flip(1).cumsum(1)
        else:
            points = self._joined_points()
            scores, order = points[0].sort(descending=True)
            sums = points[1:, order].cumsum(1)
            # Equal scores can't be told apart: only the sums behind the last count.
            last = torch.ones_like(scores, dtype=torch.bool)
            last[:-1] = scores[:-1] != scores[1:]
            sums = sums[:, last]
        tp, fp = F.pad(sums, (1, 0))
        return tp, fp


def _pr_area(tp: Tensor, fp: Tensor) -> Tensor:
    """Area under precision-recall, interpolated after Davis and Goadrich (2006).

    Between two points, true positives grow linearly with what is predicted positive,
    tp = a + b·p, and the area is the integral of (a + b·p) / p dtp. Segments where p
    does not grow, which negative weights can make, count nothing (as in Keras).
    """
    predicted = tp + fp
    slope = _divide(tp.diff(), predicted.diff().clip(min=0))
    intercept = tp[:-1] - slope * predicted[:-1]
    both = (predicted[:-1] > 0) & (predicted[1:] > 0)
    growth = torch.where(both, _divide(predicted[1:], predicted[:-1]), 1.0)
    areas = slope * (tp.diff() + intercept * growth.log())
    return _divide(areas.sum(), tp[-1].clip(min=0))


def _divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide, with 0 where the denominator is 0."""
    return torch.where(denominator == 0, 0.0, numerator / denominator)


def _tensor(values: Any) -> Tensor:
    """Return a tensor without history, on a device that has float64."""
    tensor = torch.as_tensor(values).detach()
    return tensor.cpu() if tensor.device.type == "mps" else tensor


def _same_shape(predictions: Any, labels: Any) -> tuple[Tensor, Tensor]:
    predictions = _tensor(predictions)
    labels = _tensor(labels).to(predictions.device)
    if predictions.shape != labels.shape:
        raise ValueError(
            "'predictions' and 'labels' must have the same shape; "
            f"got {tuple(predictions.shape)} and {tuple(labels.shape)}."
        )
    return predictions, labels


def _weights_of(values: Tensor, weights: Any) -> Tensor:
    """Return float64 weights in the shape of the values."""
    if weights is None:
        return torch.ones_like(values, dtype=torch.float64)
    weights = _tensor(weights).to(values.device).double()
    aligned = weights.unsqueeze(-1) if weights.ndim == values.ndim - 1 else weights
    fits = aligned.ndim == values.ndim and all(
        n in (1, size) for n, size in zip(aligned.shape, values.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"'weights' must fit values of shape {tuple(values.shape)}; got shape "
            f"{tuple(weights.shape)}. Pass one weight per row or per value."
        )
    return aligned.expand(values.shape)
