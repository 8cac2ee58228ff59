# SPDX-License-Identifier: Apache-2.0
"""`dnn_model_fn`: a perceptron on feature columns, or several behind one head.

Of several members each has its loss, and they predict together. Their logits have a first
dimension for them: (n_members, n_rows, logits_dimension).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skest.canned.optimization import Part, optimization
from skest.engine.model import pure_model_fn
from skest.feature_columns.columns import FeatureColumns, as_feature_columns
from skest.feature_columns.encoding import Encoding
from skest.feature_columns.modules import DenseFeatures
from skest.heads.base import Head
from skest.heads.classification import BinaryClassHead, MultiClassHead
from skest.heads.multi_head import MultiHead
from skest.heads.multi_label import MultiLabelHead
from skest.heads.regression import LogisticRegressionHead, PoissonRegressionHead
from skest.keys import ModeKeys
from skest.networks.dnn import DNN
from skest.optimizers.named import OptimizersLike
from skest.optimizers.schedules import LRSchedulerLike, RateFunction
from skest.spec import EstimatorSpec


@pure_model_fn
def dnn_model_fn(
    features: Any,
    labels: Any,
    mode: str,
    *,
    head: Any,
    columns: FeatureColumns | Sequence[Any],
    hidden_units: Sequence[int] | int,
    activation: str | Callable[[Tensor], Tensor] = "relu",
    dropout: float = 0.0,
    batch_norm: bool = False,
    batch_norm_momentum: float = 0.9,
    optimizer: OptimizersLike = "adagrad",
    # That of version 1 of tf.estimator. With .001, which version 2 took over from
    # Keras, 300 steps on the same data ended at a loss of 9.45 in place of 0.0167.
    learning_rate: float | RateFunction | None = 0.05,
    weight_decay: float = 0.0,
    lr_scheduler: LRSchedulerLike | None = None,
    clip_norm: float | None = None,
    n_members: int = 1,
    dtype: torch.dtype = torch.float32,
) -> EstimatorSpec:
    """Describe a DNN for `skest.Estimator`; bind what follows `mode` with partial.

    Parameters
    ----------
    features, labels : arrays or dictionaries of arrays
        The first batch; labels are None in prediction.
    mode : str
        One of `skest.ModeKeys`.
    head : Head
        Loss, predictions and metrics.
    columns : FeatureColumns or list of columns
        Fitted columns, or such that learn nothing from data; all dense.
    hidden_units, activation, dropout, batch_norm
        See `DNNClassifier`.
    optimizer, learning_rate, weight_decay
        See `skest.optimizers.make_optimizers`.
    batch_norm_momentum : float, default=0.9
        See `skest.networks.BatchNorm`.
    lr_scheduler, clip_norm
        See `skest.optimizers.schedules.make_lr_schedulers` and `skest.EstimatorSpec`.
    n_members : int, default=1
        See `DNNClassifier`.
    dtype : torch.dtype, default=torch.float32
        Floating type of the network.

    Returns
    -------
    EstimatorSpec
        The model, for every mode.
    """
    # To evaluate or predict, a checkpoint fills the variables: drawing them would take
    # longer than a prediction.
    columns = as_feature_columns(columns)
    network = DNN(
        DenseFeatures(columns, dtype=dtype, initialize=mode == ModeKeys.TRAIN),
        as_units(hidden_units),
        head.logits_dimension,
        activation=activation,
        dropout=dropout,
        batch_norm=batch_norm,
        batch_norm_momentum=batch_norm_momentum,
        dtype=dtype,
        initialize=mode == ModeKeys.TRAIN,
        output=head.output_layer,
        n_members=n_members,
        mean_logits=MeanLogits(head) if n_members > 1 else None,
    )
    spec = head.create_estimator_spec(
        features,
        mode,
        network,
        labels=labels,
        encode=Encoding(columns, dtype),
        clip_norm=clip_norm,
        **optimization(
            mode,
            lr_scheduler,
            Part.of(network, optimizer, learning_rate, weight_decay=weight_decay),
        ),
    )
    return with_members(spec, head) if n_members > 1 else spec


def with_members(spec: EstimatorSpec, head: Head) -> EstimatorSpec:
    """Let every member of a network have its loss in training."""
    if spec.mode != ModeKeys.TRAIN:
        return spec
    summaries = spec.summaries and partial(member_summaries, spec.summaries)
    return replace(spec, loss=partial(member_loss, head), summaries=summaries)


def as_units(
    hidden_units: Sequence[int] | int, name: str = "hidden_units"
) -> tuple[int, ...]:
    """Return the parameter `name` as a tuple of positive integers."""
    # As scikit-learn's MLP, one number is one layer.
    units = (hidden_units,) if isinstance(hidden_units, Integral) else hidden_units
    wrong = [n for n in units if not isinstance(n, Integral) or n < 1]  # type: ignore[union-attr]
    if wrong:
        raise ValueError(
            f"'{name}' must be positive integers; got {tuple(units)!r}."  # type: ignore[arg-type]
        )
    return tuple(int(n) for n in units)  # type: ignore[union-attr]


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
    # In evaluation mode, as for rows that are held out, the members are one.
    if logits.ndim < 3:
        return head.compute_loss(labels, logits, features)
    n_members = len(logits)
    heads: Any = getattr(head, "heads", [head])
    keys = {key for part in heads for key in (part.weight_key, part.features_key)}
    # Weights, and what a loss_fn reads: all else of the features is the network's.
    beside = {key: features[key] for key in keys if key in (features or ())}
    loss = head.compute_loss(
        # (n_members * n_rows, ...), member by member, as the logits below.
        _repeated(labels, n_members),
        # Rows of members are rows as any: no head has to know of them.
        logits.flatten(0, 1),
        _repeated(beside, n_members),
    )
    # A mean over all rows is the mean over the members already.
    return loss / n_members if head.loss_reduction == "sum" else loss


def member_summaries(
    summaries: Callable[[Any, Any, Any], Mapping[str, Tensor]],
    labels: Any,
    logits: Tensor,
    features: Any,
) -> dict[str, Tensor]:
    """Return the means, over the members, of the summaries of a head."""
    # Of each member by itself, for a head knows logits of rows only.
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
    # `Tensor.repeat` does the same in twenty times the time.
    return (
        rows.expand(n, *rows.shape).flatten(0, 1) if isinstance(rows, Tensor) else rows
    )


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
    >>> from skest.canned.dnn import mean_logits
    >>> logits = torch.tensor([[[-1.0]], [[3.0]]])
    >>> mean = mean_logits(BinaryClassHead(), logits)
    >>> torch.allclose(mean.sigmoid(), logits.sigmoid().mean(0))
    True
    """
    if isinstance(head, MultiHead):
        # Each head has a mean of its own kind.
        sizes = [part.logits_dimension for part in head.heads]
        parts = zip(head.heads, logits.split(sizes, dim=-1), strict=True)
        return torch.cat([mean_logits(*part) for part in parts], dim=-1)
    if isinstance(head, MultiClassHead):
        # Logs of mean probabilities: their softmax gives these back.
        return _log_mean_exp(F.log_softmax(logits, dim=-1))
    if isinstance(head, BinaryClassHead | MultiLabelHead | LogisticRegressionHead):
        # log p - log(1 - p) of the mean p, exact where p is rounded to 0 or 1.
        return _log_mean_exp(F.logsigmoid(logits)) - _log_mean_exp(
            F.logsigmoid(-logits)
        )
    # The mean of counts, which are the exponential.
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
    # (n_members, n_rows, k) to (n_rows, k), without leaving the scale of logs.
    return torch.logsumexp(x, dim=0) - math.log(len(x))
