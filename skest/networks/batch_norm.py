# SPDX-License-Identifier: Apache-2.0
"""`BatchNorm` with the rules of the original."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["BatchNorm"]


class BatchNorm(nn.Module):
    """Normalises each feature by the batch in training, by moving averages otherwise.

    It differs from ``torch.nn.BatchNorm1d`` where the original does: the moving variance
    averages the biased variances of the batches, and a batch of one row is allowed (it
    gives the bias), because the last batch of an epoch may be one.

    Parameters
    ----------
    num_features : int
        Width of the input.
    momentum : float, default=0.9
        Weight of the old value in the moving averages. TensorFlow's canned estimators
        have 0.999, which needs thousands of steps before predictions make sense.
    eps : float, default=1e-3
        Added to the variance.

    Notes
    -----
    As ``tf.keras.layers.BatchNormalization``.

    Examples
    --------
    >>> import torch
    >>> from skest.networks.batch_norm import BatchNorm
    >>> BatchNorm(2)(torch.tensor([[1.0, 2.0], [3.0, 2.0]])).round()
    tensor([[-1.,  0.],
            [ 1.,  0.]], grad_fn=<RoundBackward0>)
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, num_features: int, momentum: float = 0.9, eps: float = 1e-3
    ) -> None:
        super().__init__()
        self.momentum = momentum
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("running_mean", torch.zeros(num_features))
        self.register_buffer("running_var", torch.ones(num_features))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised `x` of shape (n_rows, num_features)."""
        if not self.training:
            mean, variance = self.running_mean, self.running_var
            return F.batch_norm(x, mean, variance, self.weight, self.bias, eps=self.eps)
        with torch.no_grad():
            variance, mean = torch.var_mean(x, dim=0, correction=0)
            self.running_mean.lerp_(mean, 1 - self.momentum)
            self.running_var.lerp_(variance, 1 - self.momentum)
        if len(x) == 1:
            return (x - x) * self.weight + self.bias
        return F.batch_norm(
            x, None, None, self.weight, self.bias, training=True, eps=self.eps
        )
