# SPDX-License-Identifier: Apache-2.0
"""Activation functions by name, `BatchNorm` and `Dropout` as the original has them."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Activations by name: functions of a tensor.
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu": F.elu,
    "gelu": F.gelu,
    "identity": lambda x: x,
    # 0.2 is the slope of tf.nn.leaky_relu.
    "leaky_relu": partial(F.leaky_relu, negative_slope=0.2),
    "logistic": torch.sigmoid,
    "relu": torch.relu,
    "selu": F.selu,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
}


def get_activation(
    activation: str | Callable[[Tensor], Tensor],
) -> Callable[[Tensor], Tensor]:
    """Return the function for a name; a function is returned as it is.

    Raises
    ------
    ValueError
        If the name is unknown.

    Examples
    --------
    >>> import torch
    >>> from skest.networks.layers import get_activation
    >>> get_activation("relu")(torch.tensor([-1.0, 2.0]))
    tensor([0., 2.])
    """
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"'activation' must be a function or one of {', '.join(ACTIVATIONS)}; "
            f"got {activation!r}."
        )
    return ACTIVATIONS[activation]


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
    >>> from skest.networks.layers import BatchNorm
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


# 16 bits decide about an element.
_N_VALUES, _PER_WORD = 2**16, 4


class Dropout(nn.Module):
    """Zeroes elements at random in training and scales the others up.

    ``torch.nn.Dropout`` draws from the one generator of the process; this draws from
    `generator`, which the training run sets, so that runs do not disturb each other. On a
    CPU the probability is rounded to a multiple of 2**-16.

    Parameters
    ----------
    p : float
        Probability that an element is zeroed, ``0 <= p < 1``.

    Examples
    --------
    >>> import torch
    >>> from skest.networks.layers import Dropout
    >>> Dropout(0.5).eval()(torch.ones(2))
    tensor([1., 1.])
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"'dropout' must be in [0, 1); got {p!r}.")
        self.p = p
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return `x` with elements dropped in training, `x` itself otherwise."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            kept = torch.empty_like(x).bernoulli_(1 - self.p, generator=self.generator)
            return x * kept.div_(1 - self.p)
        # Bernoulli draws would take as long as a layer; these cost a third.
        words = torch.empty(-(-x.numel() // _PER_WORD), dtype=torch.int64)
        words.random_(-(2**63), None, generator=self.generator)
        bits = words.view(torch.int16)[: x.numel()].view(x.shape)
        n_kept = min(max(1, round(_N_VALUES * (1 - self.p))), _N_VALUES - 1)
        # Bits below the bound become 1, others 0; comparisons take several times as long.
        bound = n_kept - _N_VALUES // 2
        kept = bits.clamp_(bound - 1, bound).to(x.dtype).sub_(bound).neg_()
        return x * kept.mul_(1 / (1 - self.p))

    def extra_repr(self) -> str:
        """Return what stands in the brackets of the module's text."""
        return f"p={self.p}"

    def __deepcopy__(self, memo: dict[int, object]) -> "Dropout":
        copied = Dropout(self.p)  # generators can't be copied; the next run sets one
        return copied.train(self.training)
