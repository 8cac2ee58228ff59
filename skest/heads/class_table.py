# SPDX-License-Identifier: Apache-2.0
"""`ClassTable`: the output layer for very many classes, and samples of its logits."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skest._checks import check_choice, check_integer
from skest.feature_columns.lookup import row_lookup, row_table

__all__ = ["ClassTable", "class_shares", "sampled_logits"]

# Classes are drawn as integers below this, the finest steps that float64 has at 1.
_WHOLE = 2**53
_SMALLEST_SHARE = 1e-15
_NAMED: Mapping[str, Callable[[int], np.ndarray]] = {
    "log_uniform": lambda n: np.log1p(1 / np.arange(1, n + 1)) / np.log1p(n),
    "uniform": lambda n: np.full(n, 1 / n),
}


class ClassTable(nn.Module):
    """A linear map to logits whose gradient has the rows of few classes only.

    In evaluation mode it returns the logits of all classes. In training mode it draws
    some classes, with replacement and the same for all rows of a batch, and returns what
    `sampled_logits` needs; the logits of all classes are never computed.

    Parameters
    ----------
    in_features : int
        Width of the last hidden layer.
    n_classes : int
        Number of classes.
    num_sampled : int
        Draws per batch.
    class_distribution : {"log_uniform", "uniform"} or array-like of n_classes floats, \
default="log_uniform"
        What the classes are drawn from; see `SampledSoftmaxHead`.
    dtype : torch.dtype, default=None
        Floating type of the parameters; None is torch's default.
    generator : torch.Generator, default=None
        Draws the initial weights, Glorot-uniform; None is torch's global generator.
    initialize : bool, default=True
        Without, the parameters are left as memory was, for a checkpoint to fill.

    Attributes
    ----------
    weight : row table of shape (n_classes, in_features)
    bias : row table of shape (n_classes, 1)
    generator : torch.Generator or None
        Draws the classes. The training run sets it; None is torch's global generator.

    Raises
    ------
    ValueError
        If a number is not positive or the distribution is wrong.
    TypeError
        If a number is no integer or the distribution no array of numbers.

    Examples
    --------
    >>> import torch
    >>> from skest.heads.class_table import ClassTable
    >>> layer, hidden = ClassTable(2, n_classes=1000, num_sampled=20), torch.ones(3, 2)
    >>> layer.eval()(hidden).shape
    torch.Size([3, 1000])
    >>> list(layer.train()(hidden))
    ['hidden', 'weight', 'bias', 'sampled', 'log_expected_count']
    """

    edges: Tensor

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        num_sampled: int,
        class_distribution: Any = "log_uniform",
        *,
        dtype: torch.dtype | None = None,
        generator: torch.Generator | None = None,
        initialize: bool = True,
    ) -> None:
        super().__init__()
        for name, value in (
            ("in_features", in_features),
            ("n_classes", n_classes),
            ("num_sampled", num_sampled),
        ):
            check_integer(value, name, "ClassTable", 1)
        self.n_classes = n_classes
        self.num_sampled = num_sampled
        self.generator: torch.Generator | None = None
        shares = class_shares(class_distribution, n_classes, "ClassTable")
        # Integers, so that no change of the network's type makes them coarser. They
        # follow from the arguments and take no part in checkpoints.
        self.register_buffer("edges", _edges(shares), persistent=False)
        weight = torch.empty(n_classes, in_features, dtype=dtype)
        bias = torch.empty(n_classes, 1, dtype=dtype)
        if initialize:
            nn.init.xavier_uniform_(weight, generator=generator)
            nn.init.zeros_(bias)
        self.weight = row_table(weight)
        self.weight.is_multiplied = True  # type: ignore[attr-defined]
        self.bias = row_table(bias)

    def forward(self, hidden: Tensor) -> Tensor | dict[str, Tensor]:
        """Return logits, or in training mode a sample for `sampled_logits`.

        Parameters
        ----------
        hidden : Tensor of shape (..., in_features)
            The last hidden layer.

        Returns
        -------
        Tensor of shape (..., n_classes), or dict of str to Tensor
            The dictionary holds `hidden`, `weight`, `bias`, the ids ``sampled`` of shape
            (num_sampled,), and ``log_expected_count``, the logarithm of how often each
            of them is expected among the draws.
        """
        if not self.training:
            return F.linear(hidden, self.weight, self.bias[:, 0])
        sampled, log_expected_count = self._sample()
        return {
            "hidden": hidden,
            "weight": self.weight,
            "bias": self.bias,
            "sampled": sampled,
            "log_expected_count": log_expected_count.to(hidden.dtype),
        }

    def _sample(self) -> tuple[Tensor, Tensor]:
        """Draw ids by the inverse of the distribution function."""
        draws = torch.randint(
            _WHOLE,
            (self.num_sampled,),
            generator=self.generator,
            device=self.edges.device,
        )
        ids = torch.searchsorted(self.edges, draws, right=True) - 1
        widths = (self.edges[ids + 1] - self.edges[ids]).to(
            torch.promote_types(self.weight.dtype, torch.float32)
        )
        return ids, widths.log() + math.log(self.num_sampled / _WHOLE)

    def extra_repr(self) -> str:
        """Return what stands in the brackets of the module's text."""
        return (
            f"in_features={self.weight.shape[1]}, n_classes={self.n_classes}, "
            f"num_sampled={self.num_sampled}"
        )


def sampled_logits(labels: Tensor, sample: Mapping[str, Tensor]) -> Tensor:
    """Return the logits of the labels, and corrected ones of the sampled classes.

    Parameters
    ----------
    labels : Tensor of shape (..., 1), int64
        Class ids.
    sample : dict
        Result of a `ClassTable` in training mode.

    Returns
    -------
    Tensor of shape (..., 1 + num_sampled)
        First the logit of the label. Then ``logit - log_expected_count`` of the sampled
        classes, -inf where one is the label: the sum of their exponentials has the sum
        over all classes but the label as its expectation.

    Examples
    --------
    >>> import torch
    >>> from skest.heads.class_table import sampled_logits
    >>> sample = {
    ...     "hidden": torch.tensor([[2.0]]),
    ...     "weight": torch.tensor([[1.0], [2.0], [3.0]]),
    ...     "bias": torch.tensor([[0.0], [0.5], [0.0]]),
    ...     "sampled": torch.tensor([1, 2]),
    ...     "log_expected_count": torch.tensor([-1.0, -2.0]),
    ... }
    >>> sampled_logits(torch.tensor([[2]]), sample)
    tensor([[6.0000, 5.5000,   -inf]])
    """
    hidden, sampled = sample["hidden"], sample["sampled"]
    n_labels = labels.numel()
    ids = torch.cat([labels.flatten(), sampled])
    rows, bias = row_lookup(sample["weight"], ids), row_lookup(sample["bias"], ids)
    of_labels = (hidden * rows[:n_labels].view_as(hidden)).sum(-1, keepdim=True)
    of_sampled = F.linear(hidden, rows[n_labels:], bias[n_labels:, 0])
    others = (of_sampled - sample["log_expected_count"]).masked_fill(
        labels == sampled, -math.inf
    )
    return torch.cat([of_labels + bias[:n_labels].view_as(labels), others], dim=-1)


def class_shares(distribution: Any, n_classes: int, owner: str) -> np.ndarray:
    """Return the probability of every class.

    Parameters
    ----------
    distribution : {"log_uniform", "uniform"} or array-like of shape (n_classes,)
        A name, or frequencies in any unit.
    n_classes : int
        Number of classes.
    owner : str
        Whose parameter it is, for the message.

    Returns
    -------
    ndarray of float64, shape (n_classes,)

    Raises
    ------
    ValueError
        If the name is unknown, the shape differs, or a frequency is not finite or too
        small to be drawn.
    TypeError
        If the frequencies are no numbers.

    Examples
    --------
    >>> from skest.heads.class_table import class_shares
    >>> class_shares([1, 2, 1], 3, "ClassTable")
    array([0.25, 0.5 , 0.25])
    """
    if isinstance(distribution, str):
        check_choice(distribution, "class_distribution", owner, _NAMED)
        return _NAMED[distribution](n_classes)
    frequencies = np.asarray(distribution)
    if frequencies.dtype.kind not in "iuf":
        raise TypeError(
            f"'class_distribution' of {owner} must be {' or '.join(map(repr, _NAMED))}, "
            f"or the frequencies of the classes as numbers; got {distribution!r}."
        )
    if frequencies.shape != (n_classes,):
        raise ValueError(
            f"'class_distribution' of {owner} must have one frequency for each of the "
            f"{n_classes} classes; got an array of shape {frequencies.shape}."
        )
    frequencies = frequencies.astype(np.float64)
    total = np.abs(frequencies[np.isfinite(frequencies)]).sum()
    right = np.isfinite(frequencies) & (frequencies > _SMALLEST_SHARE * total)
    if not right.all():
        wrong = int(np.argmin(right))
        raise ValueError(
            f"'class_distribution' of {owner} must hold finite frequencies above "
            f"{_SMALLEST_SHARE:g} of their sum; got {frequencies[wrong]:g} for class "
            f"{wrong}. A class that is never drawn would never be learned as a wrong "
            "one: give classes that did not occur a small count, such as 1."
        )
    return frequencies / total


def _edges(shares: np.ndarray) -> Tensor:
    """Return ends of intervals in [0, _WHOLE], as long as the classes are probable."""
    ends = np.cumsum(shares)
    edges = np.zeros(len(shares) + 1, dtype=np.int64)
    edges[1:] = np.rint(ends / ends[-1] * _WHOLE)
    return torch.from_numpy(edges)
