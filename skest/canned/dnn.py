# SPDX-License-Identifier: Apache-2.0
"""`dnn_model_fn`: a perceptron on feature columns."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from skest.canned.optimization import Part, optimization
from skest.engine.model import pure_model_fn
from skest.feature_columns.columns import FeatureColumns, as_feature_columns
from skest.feature_columns.encoding import Encoding
from skest.feature_columns.modules import DenseFeatures
from skest.heads.base import Head
from skest.heads.ensemble import MeanLogits, member_loss, member_summaries
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
            Part(
                network.named_parameters(),
                optimizer,
                learning_rate,
                {"weight_decay": weight_decay},
            ),
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
    units = (hidden_units,) if isinstance(hidden_units, Integral) else hidden_units
    wrong = [n for n in units if not isinstance(n, Integral) or n < 1]  # type: ignore[union-attr]
    if wrong:
        raise ValueError(
            f"'{name}' must be positive integers; got {tuple(units)!r}."  # type: ignore[arg-type]
        )
    return tuple(int(n) for n in units)  # type: ignore[union-attr]
