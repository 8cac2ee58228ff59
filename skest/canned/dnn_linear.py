# SPDX-License-Identifier: Apache-2.0
"""`dnn_linear_combined_model_fn`: wide & deep."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from skest.canned.dnn import MeanLogits, as_units, with_members
from skest.canned.linear import auto_learning_rate, ftrl_penalties
from skest.canned.optimization import Part, optimization
from skest.engine.model import pure_model_fn
from skest.feature_columns.columns import FeatureColumns, as_feature_columns
from skest.feature_columns.encoding import PartsEncoding
from skest.feature_columns.modules import DenseFeatures, LinearFeatures
from skest.keys import ModeKeys
from skest.networks.dnn import DNN, Combined
from skest.optimizers.named import OptimizersLike
from skest.optimizers.schedules import LRSchedulerLike, RateFunction
from skest.spec import EstimatorSpec

# The linear part of tf.estimator.DNNLinearCombinedClassifier has a lower one than a
# linear model by itself.
_MAX_LINEAR_LEARNING_RATE = 0.005


@pure_model_fn
def dnn_linear_combined_model_fn(
    features: Any,
    labels: Any,
    mode: str,
    *,
    head: Any,
    linear_columns: FeatureColumns | Sequence[Any] | None,
    dnn_columns: FeatureColumns | Sequence[Any] | None,
    dnn_hidden_units: Sequence[int] | int,
    dnn_activation: str | Callable[[Tensor], Tensor] = "relu",
    dnn_dropout: float = 0.0,
    batch_norm: bool = False,
    batch_norm_momentum: float = 0.9,
    dnn_optimizer: OptimizersLike = "adagrad",
    dnn_learning_rate: float | RateFunction | None = 0.05,
    linear_optimizer: OptimizersLike = "ftrl",
    linear_learning_rate: float | str | RateFunction | None = 0.05,
    linear_sparse_combiner: str = "sum",
    l1: float = 0.0,
    l2: float = 0.0,
    weight_decay: float = 0.0,
    lr_scheduler: LRSchedulerLike | None = None,
    clip_norm: float | None = None,
    n_members: int = 1,
    dtype: torch.dtype = torch.float32,
) -> EstimatorSpec:
    """Describe a wide & deep model for `skest.Estimator`; bind what follows `mode`.

    Each part has its optimizer, and both minimise the same loss.

    Parameters
    ----------
    features, labels : arrays or dictionaries of arrays
        The first batch; labels are None in prediction.
    mode : str
        One of `skest.ModeKeys`.
    head : Head
        Loss, predictions and metrics.
    linear_columns, dnn_columns : FeatureColumns, list of columns, or None
        Columns of the parts, fitted or such that learn nothing from data; None leaves a
        part out.
    dnn_hidden_units, dnn_activation, dnn_dropout, batch_norm, linear_sparse_combiner, \
l1, l2
        See `DNNLinearCombinedClassifier`.
    batch_norm_momentum : float, default=0.9
        See `skest.networks.BatchNorm`.
    dnn_optimizer, dnn_learning_rate, weight_decay
        See `skest.optimizers.make_optimizers`. The names of parameters begin with "dnn.".
    linear_optimizer, linear_learning_rate
        The same for names that begin with "linear."; the rate may be "auto", as in
        `DNNLinearCombinedClassifier`.
    lr_scheduler, clip_norm
        See `skest.optimizers.schedules.make_lr_schedulers` and `skest.EstimatorSpec`.
    n_members : int, default=1
        See `DNNLinearCombinedClassifier`.
    dtype : torch.dtype, default=torch.float32
        Floating type of the network.

    Returns
    -------
    EstimatorSpec
        The model, for every mode.
    """
    initialize = mode == ModeKeys.TRAIN
    linear = dnn = linear_part = dnn_part = None
    if linear_columns is not None:
        linear_columns = as_feature_columns(linear_columns)
        linear = LinearFeatures(
            linear_columns,
            head.logits_dimension,
            linear_sparse_combiner,
            dtype=dtype,
            initialize=initialize,
        )
        linear_part = Part(
            # Names as in `Combined`, by which slots are found in a checkpoint.
            linear.named_parameters("linear"),
            linear_optimizer,
            auto_learning_rate(
                linear_learning_rate, linear_columns, _MAX_LINEAR_LEARNING_RATE
            ),
            ftrl_penalties(linear_optimizer, l1, l2),
        )
    if dnn_columns is not None:
        dnn_columns = as_feature_columns(dnn_columns)
        dnn = DNN(
            DenseFeatures(dnn_columns, dtype=dtype, initialize=initialize),
            as_units(dnn_hidden_units, "dnn_hidden_units"),
            head.logits_dimension,
            activation=dnn_activation,
            dropout=dnn_dropout,
            batch_norm=batch_norm,
            batch_norm_momentum=batch_norm_momentum,
            dtype=dtype,
            initialize=initialize,
            n_members=n_members,
        )
        dnn_part = Part(
            dnn.named_parameters("dnn"),
            dnn_optimizer,
            dnn_learning_rate,
            {"weight_decay": weight_decay},
        )
    # Trained jointly, each part by its own optimizer: the paper has FTRL for the wide
    # and Adagrad for the deep one (Cheng et al. 2016, section 3.3).
    # In this order slots are numbered in a checkpoint.
    optimized = [part for part in (dnn_part, linear_part) if part is not None]
    # Encoded apart: a column may be in both, in another form.
    parts = {"linear": linear_columns, "dnn": dnn_columns}
    # Members share the linear part, as they share the hidden layers.
    has_members = dnn is not None and n_members > 1
    mean = MeanLogits(head) if has_members else None
    spec = head.create_estimator_spec(
        features,
        mode,
        Combined(linear, dnn, mean),
        labels=labels,
        encode=PartsEncoding(parts, dtype),
        clip_norm=clip_norm,
        **optimization(mode, lr_scheduler, *optimized),
    )
    return with_members(spec, head) if has_members else spec
