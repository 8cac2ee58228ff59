# SPDX-License-Identifier: Apache-2.0
"""`LogisticRegressionHead`: a probability as a regression target."""

import numpy as np
import torch
from torch import Tensor

from skest.heads.labels import check_range
from skest.heads.regression import RegressionHead
from skest.heads.weights import WeightColumn
from skest.losses import sigmoid_cross_entropy

__all__ = ["LogisticRegressionHead"]


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
