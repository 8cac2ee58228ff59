# SPDX-License-Identifier: Apache-2.0
"""`RegressionHead` and its kin: real numbers, counts, and probabilities."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skest.core.checks import check_integer
from skest.heads.labels import WeightColumn, check_range, numbers
from skest.heads.single_task import SingleTaskHead
from skest.keys import MetricKeys, PredictionKeys
from skest.losses import poisson_loss, sigmoid_cross_entropy, squared_error
from skest.metrics import Mean, Metric


class RegressionHead(SingleTaskHead):
    """Head for real numbers (``tf.estimator.RegressionHead``).

    The loss is the squared error, of which the batch takes the mean over rows and label
    dimensions. Weights may have the shape (n, label_dimension), one for every number.

    Predictions are predictions and, with an inverse link, logits; metrics are
    average_loss, prediction/mean and label/mean.

    Parameters
    ----------
    label_dimension : int, at least 1, default=1
        Numbers per example.
    weight_column, loss_reduction, loss_fn
        See `skest.heads.SingleTaskHead`.
    inverse_link_fn : callable, default=None
        Logits to predictions, as `torch.exp`; None leaves them as they are.
    name : str, default=None
        See `skest.heads.SingleTaskHead`.

    Raises
    ------
    ValueError
        If the dimension or the reduction is wrong.
    TypeError
        If an argument has the wrong type.

    Examples
    --------
    >>> import torch
    >>> from skest.heads import RegressionHead
    >>> head = RegressionHead(label_dimension=2, weight_column="w")
    >>> logits = torch.zeros(1, 2)
    >>> head.loss([[1.0, 3.0]], logits, features={"w": [2.0]})
    tensor(10.)
    >>> head.predictions(logits)
    {'predictions': tensor([[0., 0.]])}
    """

    # As TensorFlow's RegressionHead (`allow_per_logit_weights`): labels of one row may
    # count differently.
    _weights_per_logit = True

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: str | WeightColumn | None = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Tensor] | None = None,
        inverse_link_fn: Callable[[Tensor], Tensor] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        check_integer(label_dimension, "label_dimension", self._title, 1)
        if inverse_link_fn is not None and not callable(inverse_link_fn):
            raise TypeError(
                f"'inverse_link_fn' of {self._title} must be a function; "
                f"got {inverse_link_fn!r}."
            )
        self.label_dimension = label_dimension
        self.inverse_link_fn = inverse_link_fn

    @property
    def logits_dimension(self) -> int:
        """Label dimension."""
        return self.label_dimension

    @property
    def _label_dimension(self) -> int:
        return self.label_dimension

    def _encode_array(self, array: np.ndarray, is_encoded: bool) -> np.ndarray:
        values = numbers(array, self._title)
        # One NaN among the labels would make all variables NaN.
        finite = np.isfinite(values)
        if not finite.all():
            raise ValueError(
                f"{self._title} needs finite labels; got {values[~finite][0]} in row "
                f"{np.argwhere(~finite)[0][0]}. Leave out such rows."
            )
        return values

    def _default_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        return squared_error(labels, logits)

    def _predictors(self) -> dict[str, Callable[[Tensor], Any]]:
        if self.inverse_link_fn is None:
            # Logits would be the same numbers again: tf.estimator gives none here.
            return {PredictionKeys.PREDICTIONS: lambda logits: logits}
        return {
            PredictionKeys.PREDICTIONS: self.inverse_link_fn,
            PredictionKeys.LOGITS: lambda logits: logits,
        }

    def _metrics(self) -> dict[str, Metric]:
        return {MetricKeys.PREDICTION_MEAN: Mean(), MetricKeys.LABEL_MEAN: Mean()}

    def _metric_inputs(
        self, labels: Tensor, logits: Tensor
    ) -> dict[str, tuple[Tensor, ...]]:
        # On the scale of the labels, to be compared with their mean.
        predictions = self._predictors()[PredictionKeys.PREDICTIONS](logits)
        return {
            MetricKeys.PREDICTION_MEAN: (predictions,),
            MetricKeys.LABEL_MEAN: (labels,),
        }


class PoissonRegressionHead(RegressionHead):
    """Head for counts (``tf.estimator.PoissonRegressionHead``).

    The loss is `skest.losses.poisson_loss`, and predictions are the exponential of the
    logits. As in TensorFlow, negative labels are not refused; their full loss is NaN.
    Keys of predictions and metrics are those of `RegressionHead`.

    Parameters
    ----------
    label_dimension : int, at least 1, default=1
        Counts per example.
    weight_column, loss_reduction
        See `skest.heads.SingleTaskHead`.
    compute_full_loss : bool, default=True
        Whether the loss has the term of the label alone.
    name : str, default=None
        See `skest.heads.SingleTaskHead`.

    Raises
    ------
    ValueError
        If the dimension or the reduction is wrong.
    TypeError
        If an argument has the wrong type.

    Examples
    --------
    >>> import torch
    >>> from skest.heads import PoissonRegressionHead
    >>> head = PoissonRegressionHead()
    >>> head.loss([3], torch.ones(1, 1))
    tensor(1.4824)
    >>> head.predictions(torch.zeros(1, 1))
    {'predictions': tensor([[1.]]), 'logits': tensor([[0.]])}
    """

    def __init__(
        self,
        label_dimension: int = 1,
        weight_column: str | WeightColumn | None = None,
        loss_reduction: str = "sum_over_batch_size",
        # As in tf.estimator: Stirling's term has no gradient, but is a part of the
        # likelihood.
        compute_full_loss: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(
            label_dimension=label_dimension,
            weight_column=weight_column,
            loss_reduction=loss_reduction,
            # The log link, so that means are positive.
            inverse_link_fn=torch.exp,
            name=name,
        )
        self.compute_full_loss = compute_full_loss

    def _default_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        return poisson_loss(labels, logits, full=self.compute_full_loss)


class LogisticRegressionHead(RegressionHead):
    """Head for labels in [0, 1] (``tf.estimator.LogisticRegressionHead``).

    The loss is sigmoid cross-entropy, and predictions are the sigmoid of the logits.
    Keys of predictions and metrics are those of `RegressionHead`.

    Parameters
    ----------
    weight_column : str or NumericColumn, default=None
        See `skest.heads.SingleTaskHead`.
    loss_reduction, name
        See `skest.heads.SingleTaskHead`.
    label_dimension : int, at least 1, default=1
        Probabilities per example; the original has one.

    Raises
    ------
    ValueError
        If the reduction or the dimension is wrong.
    TypeError
        If an argument has the wrong type.

    Examples
    --------
    >>> import torch
    >>> from skest.heads import LogisticRegressionHead
    >>> head = LogisticRegressionHead()
    >>> head.loss([0.5], torch.zeros(1, 1))
    tensor(0.6931)
    >>> head.predictions(torch.zeros(1, 1), keys=["predictions"])
    {'predictions': tensor([[0.5000]])}
    """

    def __init__(
        self,
        weight_column: str | WeightColumn | None = None,
        loss_reduction: str = "sum_over_batch_size",
        name: str | None = None,
        # tf.estimator's has one label. Last, so that its arguments keep their places.
        label_dimension: int = 1,
    ) -> None:
        super().__init__(
            label_dimension=label_dimension,
            weight_column=weight_column,
            loss_reduction=loss_reduction,
            inverse_link_fn=torch.sigmoid,
            name=name,
        )

    def _encode_array(self, array: np.ndarray, is_encoded: bool) -> np.ndarray:
        values = super()._encode_array(array, is_encoded)
        check_range(values, 1, self._title, "probabilities")
        return values

    def _default_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        return sigmoid_cross_entropy(labels, logits)
