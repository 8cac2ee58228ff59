# SPDX-License-Identifier: Apache-2.0
"""Activation functions by name."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["ACTIVATIONS", "get_activation"]

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
    >>> from skest.networks.activations import get_activation
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
