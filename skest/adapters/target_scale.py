# SPDX-License-Identifier: Apache-2.0
"""The scale of a regression target, which the network need not learn."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logit

from skest.keys import ModeKeys
from skest.model_fn import draws_only_to_train
from skest.spec import EstimatorSpec

__all__ = ["TargetScale", "scaled_target_model_fn"]


class TargetScale(NamedTuple):
    """Center and scale of a target.

    The first steps of a network would not reach numbers far from zero, and learning rates
    suit no other scale than one. So a network whose output is the target itself learns
    ``(y - center) / scale``; one behind a link (Poisson, logistic) starts at the mean.

    Attributes
    ----------
    center, scale : ndarray of shape () or (n_outputs,)
        Added to and multiplied with the logits.
    is_linked : bool
        Whether the logits pass a link; they are only shifted then, in training too.
    """

    center: NDArray[Any]
    scale: NDArray[Any]
    is_linked: bool

    @classmethod
    def of(
        cls, y: NDArray[Any], weight: NDArray[Any] | None, loss: str
    ) -> "TargetScale":
        """Learn the scale of targets of shape (n_samples,) or (n_samples, n_outputs)."""
        mean = np.average(y, axis=0, weights=weight)
        tiny = np.finfo(np.float32).tiny
        if loss == "poisson":
            return cls(np.log(np.maximum(mean, tiny)), np.ones_like(mean), True)
        if loss == "logistic":
            share = np.clip(mean, 1e-6, 1 - 1e-6)
            return cls(logit(share), np.ones_like(mean), True)
        variance = np.average((y - mean) ** 2, axis=0, weights=weight)
        constant = variance <= np.finfo(np.float64).eps * mean**2
        return cls(mean, np.where(constant, 1.0, np.sqrt(variance)), False)


@draws_only_to_train
def scaled_target_model_fn(
    features: Any,
    labels: Any,
    mode: str,
    *,
    model_fn: Callable[..., EstimatorSpec],
    target: TargetScale,
) -> EstimatorSpec:
    """Let the network of `model_fn` learn a scaled target and otherwise speak of ``y``."""
    spec = model_fn(features, labels, mode)
    if spec.network is not None:
        spec.network.register_forward_hook(partial(_unscale, target))
    if target.is_linked or mode != ModeKeys.TRAIN or spec.encode_labels is None:
        return spec
    return replace(
        spec, encode_labels=partial(_scaled_labels, target, spec.encode_labels)
    )


def _scaled_labels(
    target: TargetScale, encode_labels: Callable[[Any], Any], y: Any
) -> Any:
    return encode_labels((np.asarray(y) - target.center) / target.scale)


def _unscale(
    target: TargetScale, network: torch.nn.Module, inputs: Any, logits: torch.Tensor
) -> torch.Tensor:
    if network.training and not target.is_linked:
        return logits
    return logits * logits.new_tensor(target.scale) + logits.new_tensor(target.center)
