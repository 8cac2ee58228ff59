# SPDX-License-Identifier: Apache-2.0
"""`RegressionHead`: one or more real numbers."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from skest._checks import check_integer
from skest.heads.labels import numbers
from skest.heads.single_task import SingleTaskHead
from skest.heads.weights import WeightColumn
from skest.keys import MetricKeys, PredictionKeys
from skest.losses import squared_error
from skest.metrics import Mean, Metric

__all__ = ["RegressionHead"]


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
        predictions = self._predictors()[PredictionKeys.PREDICTIONS](logits)
        return {
            MetricKeys.PREDICTION_MEAN: (predictions,),
            MetricKeys.LABEL_MEAN: (labels,),
        }
