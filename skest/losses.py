# SPDX-License-Identifier: Apache-2.0
"""Losses as functions of labels and logits: one value per example, then one per batch.

All are pure tensor functions that never wait for the device. Labels and logits have the
same floating type, unless a function says otherwise.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from skest.core.checks import check_choice

__all__ = [
    "LOSS_REDUCTIONS",
    "absolute_error",
    "huber_error",
    "poisson_loss",
    "quantile_error",
    "reduce_loss",
    "sigmoid_cross_entropy",
    "softmax_cross_entropy",
    "squared_error",
]

#: What `reduce_loss` takes: the weighted sum divided by the number of examples, or not;
#: "auto" is the former.
LOSS_REDUCTIONS = ("sum_over_batch_size", "sum", "auto")


def sigmoid_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    """Cross-entropy of independent binary labels.

    Parameters
    ----------
    labels : Tensor of shape (...)
        Probabilities of the positive class, in [0, 1].
    logits : Tensor of shape (...)
        Log-odds of the positive class.

    Returns
    -------
    Tensor of shape (...)
        As ``tf.nn.sigmoid_cross_entropy_with_logits``.

    Examples
    --------
    >>> import torch
    >>> from skest.losses import sigmoid_cross_entropy
    >>> sigmoid_cross_entropy(torch.tensor([1.0, 0.0]), torch.tensor([0.0, -2.0]))
    tensor([0.6931, 0.1269])
    """
    return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")


def softmax_cross_entropy(labels: Tensor, logits: Tensor) -> Tensor:
    """Cross-entropy of one class out of several.

    Parameters
    ----------
    labels : Tensor of shape (..., 1), int64
        Class ids in [0, n_classes).
    logits : Tensor of shape (..., n_classes)
        Unnormalised log-probabilities.

    Returns
    -------
    Tensor of shape (..., 1)
        As ``tf.nn.sparse_softmax_cross_entropy_with_logits``.

    Examples
    --------
    >>> import torch
    >>> from skest.losses import softmax_cross_entropy
    >>> softmax_cross_entropy(torch.tensor([[2]]), torch.tensor([[0.0, 0.0, 1.0]]))
    tensor([[0.5514]])
    """
    flat = logits.reshape(-1, logits.shape[-1])
    loss = F.cross_entropy(flat, labels.reshape(-1), reduction="none")
    return loss.reshape(labels.shape)


def squared_error(labels: Tensor, logits: Tensor) -> Tensor:
    """Squared difference, without a factor of one half.

    Parameters
    ----------
    labels, logits : Tensor of shape (...)
        True and predicted values.

    Returns
    -------
    Tensor of shape (...)
        As ``tf.keras.losses.MeanSquaredError`` before any mean.

    Examples
    --------
    >>> import torch
    >>> from skest.losses import squared_error
    >>> squared_error(torch.tensor([3.0]), torch.tensor([1.0]))
    tensor([4.])
    """
    return torch.square(labels - logits)


def absolute_error(labels: Tensor, logits: Tensor) -> Tensor:
    """Absolute difference.

    Parameters
    ----------
    labels, logits : Tensor of shape (...)
        True and predicted values.

    Returns
    -------
    Tensor of shape (...)

    Examples
    --------
    >>> import torch
    >>> from skest.losses import absolute_error
    >>> absolute_error(torch.tensor([3.0]), torch.tensor([1.0]))
    tensor([2.])
    """
    return torch.abs(labels - logits)


def huber_error(labels: Tensor, logits: Tensor, delta: float = 1.0) -> Tensor:
    """Half the squared difference when it is small, linear beyond `delta`.

    Parameters
    ----------
    labels, logits : Tensor of shape (...)
        True and predicted values.
    delta : float, unit of the labels, default=1.0
        Where the loss becomes linear.

    Returns
    -------
    Tensor of shape (...)
        As ``tf.keras.losses.Huber`` before any mean.

    Examples
    --------
    >>> import torch
    >>> from skest.losses import huber_error
    >>> huber_error(torch.tensor([0.5, 3.0]), torch.tensor([0.0, 0.0]))
    tensor([0.1250, 2.5000])
    """
    return F.huber_loss(logits, labels, reduction="none", delta=delta)


def quantile_error(labels: Tensor, logits: Tensor, quantile: float = 0.5) -> Tensor:
    """Pinball loss, whose minimum is a quantile of the labels.

    Parameters
    ----------
    labels, logits : Tensor of shape (...)
        True and predicted values.
    quantile : float in (0, 1), default=0.5
        Which quantile; 0.5 is half the absolute error.

    Returns
    -------
    Tensor of shape (...)
        As ``sklearn.metrics.mean_pinball_loss`` before the mean.

    Examples
    --------
    >>> import torch
    >>> from skest.losses import quantile_error
    >>> quantile_error(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 1.0]), 0.9)
    tensor([0.9000, 0.1000])
    """
    difference = labels - logits
    return torch.maximum(quantile * difference, (quantile - 1) * difference)


def poisson_loss(labels: Tensor, logits: Tensor, full: bool = True) -> Tensor:
    """Negative log-likelihood of counts whose log-mean are the logits.

    Parameters
    ----------
    labels : Tensor of shape (...)
        Counts, not negative.
    logits : Tensor of shape (...)
        Logarithm of the expected count.
    full : bool, default=True
        Add Stirling's approximation of log(labels!) to labels above 1. It does not
        depend on the logits.

    Returns
    -------
    Tensor of shape (...)
        As ``tf.nn.log_poisson_loss``; NaN for a negative label when `full`.

    Examples
    --------
    >>> import torch
    >>> from skest.losses import poisson_loss
    >>> poisson_loss(torch.tensor([0.0, 1.0, 3.0]), torch.tensor([1.0, 1.0, 1.0]))
    tensor([2.7183, 1.7183, 1.4824])
    """
    loss = torch.exp(logits) - logits * labels
    if not full:
        return loss
    stirling = (
        labels * torch.log(labels) - labels + 0.5 * torch.log(2 * math.pi * labels)
    )
    return loss + stirling.masked_fill((labels >= 0) & (labels <= 1), 0.0)


def reduce_loss(
    per_example: Tensor,
    weights: Tensor | None = None,
    reduction: str = "sum_over_batch_size",
) -> Tensor:
    """Return one loss for a batch.

    Parameters
    ----------
    per_example : Tensor of shape (..., k)
        Losses.
    weights : Tensor that broadcasts to the shape of `per_example`, default=None
        Factors of the losses; None is 1.
    reduction : {"sum_over_batch_size", "sum", "auto"}, default="sum_over_batch_size"
        "sum" is Σ w·l. "sum_over_batch_size" divides this by the number of losses, not
        by Σ w, as ``tf.losses.Reduction.SUM_OVER_BATCH_SIZE``; "auto" is the same.

    Returns
    -------
    Tensor of shape ()
        The loss; 0 for an empty batch.

    Raises
    ------
    ValueError
        If the reduction is unknown.

    Examples
    --------
    >>> import torch
    >>> from skest.losses import reduce_loss
    >>> losses, weights = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 0.0])
    >>> reduce_loss(losses, weights)
    tensor(1.5000)
    >>> reduce_loss(losses, weights, "sum")
    tensor(3.)
    """
    check_choice(reduction, "reduction", "reduce_loss", LOSS_REDUCTIONS)
    if weights is None and reduction != "sum" and per_example.numel():
        return per_example.mean()  # one node of the backward pass instead of two
    weighted = per_example
    if weights is not None:
        weighted = per_example * weights.to(per_example.dtype)
    total = weighted.sum()
    return total if reduction == "sum" else total / max(per_example.numel(), 1)
