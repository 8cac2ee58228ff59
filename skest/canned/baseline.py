# SPDX-License-Identifier: Apache-2.0
"""`baseline_model_fn`: what can be said without features."""

from typing import Any

import torch
from torch import Tensor

from skest.canned.optimization import Part, optimization
from skest.engine.model import pure_model_fn
from skest.inputs.array_dataset import count_rows
from skest.networks.dnn import Baseline
from skest.optimizers.named import OptimizersLike
from skest.optimizers.schedules import LRSchedulerLike, RateFunction
from skest.spec import EstimatorSpec


@pure_model_fn
def baseline_model_fn(
    features: Any,
    labels: Any,
    mode: str,
    *,
    head: Any,
    optimizer: OptimizersLike = "ftrl",
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
        **optimization(
            mode,
            lr_scheduler,
            Part(network.named_parameters(), optimizer, learning_rate, {}),
        ),
    )


def _encode_rows(features: Any) -> dict[str, Tensor]:
    return {"rows": torch.empty(count_rows(features, "features"), 0)}
