# SPDX-License-Identifier: Apache-2.0
"""`PoissonRegressionHead`: counts."""

import torch
from torch import Tensor

from skest.heads.regression import RegressionHead
from skest.heads.weights import WeightColumn
from skest.losses import poisson_loss

__all__ = ["PoissonRegressionHead"]


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
        compute_full_loss: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__(
            label_dimension=label_dimension,
            weight_column=weight_column,
            loss_reduction=loss_reduction,
            inverse_link_fn=torch.exp,
            name=name,
        )
        self.compute_full_loss = compute_full_loss

    def _default_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        return poisson_loss(labels, logits, full=self.compute_full_loss)
