# SPDX-License-Identifier: Apache-2.0
"""Several networks behind one head: each has its loss, and they predict together.

Logits of members have a first dimension for them: (n_members, n_rows, logits_dimension).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skest.heads.base import Head
from skest.heads.classification import BinaryClassHead, MultiClassHead
from skest.heads.multi_head import MultiHead
from skest.heads.multi_label import MultiLabelHead
from skest.heads.regression import LogisticRegressionHead, PoissonRegressionHead


def member_loss(head: Head, labels: Any, logits: Tensor, features: Any) -> Tensor:
    """Return the mean of the losses of the members.

    Each is trained on its own error, as in TabM (arXiv 2410.24210, section 3): the error
    of their mean would let them agree on a division of labour, and not on the truth.

    Parameters
    ----------
    head : Head
        Says the loss of one member.
    labels, features
        As for `Head.compute_loss`, of the rows.
    logits : Tensor of shape (n_members, n_rows, logits_dimension)
        In training; without the first dimension those of all together.

    Returns
    -------
    Tensor of shape ()
    """
    if logits.ndim < 3:
        return head.compute_loss(labels, logits, features)
    n_members = len(logits)
    heads: Any = getattr(head, "heads", [head])
    keys = {key for part in heads for key in (part.weight_key, part.features_key)}
    beside = {key: features[key] for key in keys if key in (features or ())}
    loss = head.compute_loss(
        _repeated(labels, n_members),
        logits.flatten(0, 1),
        _repeated(beside, n_members),
    )
    return loss / n_members if head.loss_reduction == "sum" else loss


def member_summaries(
    summaries: Callable[[Any, Any, Any], Mapping[str, Tensor]],
    labels: Any,
    logits: Tensor,
    features: Any,
) -> dict[str, Tensor]:
    """Return the means, over the members, of the summaries of a head."""
    found = [summaries(labels, member, features) for member in logits]
    return {
        name: torch.stack([values[name] for values in found]).mean(dim=0)
        for name in found[0]
    }


def _repeated(rows: Any, n: int) -> Any:
    """Return rows n times, of tensors in dictionaries and tuples."""
    if isinstance(rows, Mapping):
        return {key: _repeated(value, n) for key, value in rows.items()}
    if isinstance(rows, tuple):
        return type(rows)(_repeated(value, n) for value in rows)
    return rows.repeat(n, *[1] * (rows.ndim - 1)) if isinstance(rows, Tensor) else rows


def mean_logits(head: Head, logits: Tensor) -> Tensor:
    """Return the logits that stand for the mean of the members' predictions.

    The mean of probabilities for classes, of the predicted numbers for others; of the
    logits behind an ``inverse_link_fn`` of the user's.

    Parameters
    ----------
    head : Head
        Says what logits mean.
    logits : Tensor of shape (n_members, n_rows, logits_dimension)

    Returns
    -------
    Tensor of shape (n_rows, logits_dimension)

    Examples
    --------
    >>> import torch
    >>> from skest.heads import BinaryClassHead
    >>> from skest.heads.ensemble import mean_logits
    >>> logits = torch.tensor([[[-1.0]], [[3.0]]])
    >>> mean = mean_logits(BinaryClassHead(), logits)
    >>> torch.allclose(mean.sigmoid(), logits.sigmoid().mean(0))
    True
    """
    if isinstance(head, MultiHead):
        sizes = [part.logits_dimension for part in head.heads]
        parts = zip(head.heads, logits.split(sizes, dim=-1), strict=True)
        return torch.cat([mean_logits(*part) for part in parts], dim=-1)
    if isinstance(head, MultiClassHead):
        return _log_mean_exp(F.log_softmax(logits, dim=-1))
    if isinstance(head, BinaryClassHead | MultiLabelHead | LogisticRegressionHead):
        return _log_mean_exp(F.logsigmoid(logits)) - _log_mean_exp(
            F.logsigmoid(-logits)
        )
    if isinstance(head, PoissonRegressionHead):
        return _log_mean_exp(logits)
    return logits.mean(dim=0)


class MeanLogits:
    """`mean_logits` of a head."""

    def __init__(self, head: Head) -> None:
        self.head = head

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the logits of all members together."""
        return mean_logits(self.head, logits)


def _log_mean_exp(x: Tensor) -> Tensor:
    return torch.logsumexp(x, dim=0) - math.log(len(x))
