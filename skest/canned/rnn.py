# SPDX-License-Identifier: Apache-2.0
"""`rnn_model_fn`: a recurrent network on sequences."""

from collections.abc import Sequence
from typing import Any

import torch

from skest.canned.dnn import as_units
from skest.canned.optimization import Part, optimization
from skest.engine.model import pure_model_fn
from skest.feature_columns.columns import FeatureColumns, as_feature_columns
from skest.feature_columns.encoding import PartsEncoding
from skest.feature_columns.modules import DenseFeatures, SequenceFeatures
from skest.keys import ModeKeys
from skest.networks.rnn import RNN
from skest.optimizers.named import OptimizersLike
from skest.optimizers.schedules import LRSchedulerLike, RateFunction
from skest.spec import EstimatorSpec


@pure_model_fn
def rnn_model_fn(
    features: Any,
    labels: Any,
    mode: str,
    *,
    head: Any,
    sequence_columns: FeatureColumns | Sequence[Any],
    context_columns: FeatureColumns | Sequence[Any] | None,
    units: Sequence[int] | int,
    cell_type: str = "simple_rnn",
    optimizer: OptimizersLike = "adagrad",
    learning_rate: float | RateFunction | None = 0.05,
    weight_decay: float = 0.0,
    lr_scheduler: LRSchedulerLike | None = None,
    # As RNNEstimator of tf.estimator, whose Adagrad has .05 and a clipnorm of 5.
    clip_norm: float | None = 5.0,
    dtype: torch.dtype = torch.float32,
) -> EstimatorSpec:
    """Describe an RNN for `skest.Estimator`; bind what follows `mode` with partial.

    Parameters
    ----------
    features, labels : arrays or dictionaries of arrays
        The first batch; labels are None in prediction.
    mode : str
        One of `skest.ModeKeys`.
    head : Head
        Loss, predictions and metrics.
    sequence_columns : FeatureColumns or list of columns
        All sequences; fitted, or such that learn nothing from data.
    context_columns : FeatureColumns, list of columns, or None
        The same, all dense.
    units, cell_type, clip_norm
        See `RNNClassifier`.
    optimizer, learning_rate, weight_decay
        See `skest.optimizers.make_optimizers`.
    lr_scheduler
        See `skest.optimizers.schedules.make_lr_schedulers`.
    dtype : torch.dtype, default=torch.float32
        Floating type of the network.

    Returns
    -------
    EstimatorSpec
        The model, for every mode.
    """
    # Otherwise a checkpoint fills the variables.
    initialize = mode == ModeKeys.TRAIN
    sequence_columns = as_feature_columns(sequence_columns)
    context = None
    if context_columns is not None:
        context_columns = as_feature_columns(context_columns)
        context = DenseFeatures(context_columns, dtype=dtype, initialize=initialize)
    # As RNNEstimator of TensorFlow: the context is repeated beside every step.
    network = RNN(
        SequenceFeatures(sequence_columns, dtype=dtype, initialize=initialize),
        context,
        as_units(units, "units"),
        head.logits_dimension,
        cell_type=cell_type,
        dtype=dtype,
        initialize=initialize,
    )
    # The names under which `RNN` looks for its features.
    parts = {"sequence": sequence_columns, "context": context_columns}
    return head.create_estimator_spec(
        features,
        mode,
        network,
        labels=labels,
        encode=PartsEncoding(parts, dtype),
        clip_norm=clip_norm,
        **optimization(
            mode,
            lr_scheduler,
            Part.of(network, optimizer, learning_rate, weight_decay=weight_decay),
        ),
    )
