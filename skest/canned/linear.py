# SPDX-License-Identifier: Apache-2.0
"""`linear_model_fn`, and `baseline_model_fn`, which has a bias and no weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from skest.canned.optimization import Part, optimization
from skest.canned.sdca import as_sdca, sdca_spec
from skest.engine.model import pure_model_fn
from skest.feature_columns.columns import FeatureColumns, as_feature_columns
from skest.feature_columns.encoding import Encoding
from skest.feature_columns.modules import LinearFeatures
from skest.inputs.array_dataset import count_rows
from skest.keys import ModeKeys
from skest.networks.dnn import Baseline
from skest.optimizers.named import OptimizersLike
from skest.optimizers.schedules import LRSchedulerLike, RateFunction
from skest.spec import EstimatorSpec

# As tf.estimator.LinearClassifier: the smaller one of 0.2 and 1 / sqrt(n_columns).
_MAX_LEARNING_RATE = 0.2


@pure_model_fn
def linear_model_fn(
    features: Any,
    labels: Any,
    mode: str,
    *,
    head: Any,
    columns: FeatureColumns | Sequence[Any],
    sparse_combiner: str = "sum",
    optimizer: Any = "ftrl",
    learning_rate: float | str | RateFunction | None = "auto",
    l1: float = 0.0,
    l2: float = 0.0,
    weight_decay: float = 0.0,
    lr_scheduler: LRSchedulerLike | None = None,
    clip_norm: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> EstimatorSpec:
    """Describe a linear model for `skest.Estimator`; bind what follows `mode`.

    Parameters
    ----------
    features, labels : arrays or dictionaries of arrays
        The first batch; labels are None in prediction.
    mode : str
        One of `skest.ModeKeys`.
    head : Head
        Loss, predictions and metrics.
    columns : FeatureColumns or list of columns
        Fitted columns, or such that learn nothing from data; dense or categorical.
    sparse_combiner, l1, l2
        See `LinearClassifier`.
    optimizer, learning_rate, weight_decay
        See `skest.optimizers.make_optimizers`; the rate may be "auto", as in
        `LinearClassifier`.
    lr_scheduler, clip_norm
        See `skest.optimizers.schedules.make_lr_schedulers` and `skest.EstimatorSpec`.
    dtype : torch.dtype, default=torch.float32
        Floating type of the network.

    Returns
    -------
    EstimatorSpec
        The model, for every mode.
    """
    columns = as_feature_columns(columns)
    network = LinearFeatures(
        columns,
        head.logits_dimension,
        sparse_combiner,
        dtype=dtype,
        initialize=mode == ModeKeys.TRAIN,
    )
    encode = Encoding(columns, dtype)
    # Evaluation and prediction are those of any linear model.
    sdca = as_sdca(optimizer) if mode == ModeKeys.TRAIN else None
    if sdca is not None:
        check_unused(
            learning_rate=learning_rate,
            l1=l1,
            l2=l2,
            weight_decay=weight_decay,
            lr_scheduler=lr_scheduler,
            clip_norm=clip_norm,
        )
        return sdca_spec(
            sdca,
            features,
            labels,
            head=head,
            columns=columns,
            network=network,
            encode=encode,
        )
    rate = auto_learning_rate(learning_rate, columns, _MAX_LEARNING_RATE)
    penalties = ftrl_penalties(optimizer, l1, l2)
    part = Part.of(network, optimizer, rate, weight_decay=weight_decay, **penalties)
    return head.create_estimator_spec(
        features,
        mode,
        network,
        labels=labels,
        encode=encode,
        clip_norm=clip_norm,
        **optimization(mode, lr_scheduler, part),
    )


def auto_learning_rate(
    learning_rate: float | str | RateFunction | None,
    columns: FeatureColumns,
    at_most: float,
) -> float | RateFunction | None:
    """Return the learning rate; "auto" is ``min(at_most, 1 / sqrt(n_columns))``."""
    if learning_rate == "auto":
        # _get_default_optimizer of tf.estimator's linear models counts columns, not
        # weights; each number of an array is one, as it is in a frame.
        n_columns = sum(getattr(column, "n_elements", 1) for column in columns.active)
        return min(at_most, n_columns**-0.5)
    return learning_rate  # type: ignore[return-value]


def ftrl_penalties(optimizer: Any, l1: float, l2: float) -> dict[str, float]:
    """Return the penalties as arguments of the optimizer."""
    # Proximal steps make weights exactly zero; the gradient of an L1 penalty would not.
    if isinstance(optimizer, str) and optimizer.lower() in ("ftrl", "proximaladagrad"):
        return {"l1": l1, "l2": l2}
    if l1 or l2:
        raise ValueError(
            "'l1' and 'l2' need the optimizer \"ftrl\" or \"proximaladagrad\"; got "
            f"{optimizer!r}. "
            "Use 'weight_decay' for an L2 penalty with it."
        )
    return {}


def check_unused(**settings: Any) -> None:
    """Refuse settings that dual coordinate ascent does not take from the estimator."""
    for name, value in settings.items():
        # Defaults, also those of `LinearClassifier`.
        if value not in (0, "auto", None):
            raise ValueError(
                f"{name!r} has no meaning for LinearSDCA; got {value!r}. It has no "
                "learning rate; set its penalties with LinearSDCA(l1=..., l2=...)."
            )


@pure_model_fn
def baseline_model_fn(
    features: Any,
    labels: Any,
    mode: str,
    *,
    head: Any,
    optimizer: OptimizersLike = "ftrl",
    # As tf.estimator's Baseline, with Ftrl.
    learning_rate: float | RateFunction | None = 0.3,
    lr_scheduler: LRSchedulerLike | None = None,
    clip_norm: float | None = None,
    dtype: torch.dtype = torch.float32,
) -> EstimatorSpec:
    """Describe a model without features for `skest.Estimator`; bind what follows `mode`.

    Parameters
    ----------
    features, labels : arrays or dictionaries of arrays
        The first batch; labels are None in prediction.
    mode : str
        One of `skest.ModeKeys`.
    head : Head
        Loss, predictions and metrics.
    optimizer, learning_rate
        See `skest.optimizers.make_optimizers`.
    lr_scheduler, clip_norm
        See `skest.optimizers.schedules.make_lr_schedulers` and `skest.EstimatorSpec`.
    dtype : torch.dtype, default=torch.float32
        Floating type of the network.

    Returns
    -------
    EstimatorSpec
        The model, for every mode.
    """
    network = Baseline(head.logits_dimension, dtype)
    return head.create_estimator_spec(
        features,
        mode,
        network,
        labels=labels,
        encode=_encode_rows,
        clip_norm=clip_norm,
        **optimization(mode, lr_scheduler, Part.of(network, optimizer, learning_rate)),
    )


def _encode_rows(features: Any) -> dict[str, Tensor]:
    # A network takes tensors: one without columns tells how many rows there are.
    return {"rows": torch.empty(count_rows(features, "features"), 0)}
