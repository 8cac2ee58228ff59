# SPDX-License-Identifier: Apache-2.0
"""Optimizers and learning-rate schedulers of the canned model functions."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from skest.keys import ModeKeys
from skest.optimizer_state import NamedParameters
from skest.optimizers import OptimizersLike, make_optimizers
from skest.schedules import LRSchedulerLike, RateFunction, make_lr_schedulers

__all__ = ["Part", "optimization"]


class Part(NamedTuple):
    """Parameters of a network, and how they are optimized.

    Attributes
    ----------
    named_parameters : iterable of (str, Tensor)
        With the names that they have in the whole network.
    optimizer, learning_rate, options
        As in `skest.optimizers.make_optimizers`.
    """

    named_parameters: NamedParameters
    optimizer: OptimizersLike
    learning_rate: float | RateFunction | None
    options: Mapping[str, Any]


def optimization(
    mode: str, lr_scheduler: LRSchedulerLike | None, *parts: Part
) -> dict[str, list[Any]]:
    """Return the arguments of an EstimatorSpec that say how its network is optimized.

    Parameters
    ----------
    mode : str
        One of `skest.ModeKeys`; only TRAIN needs any.
    lr_scheduler : LRScheduler subclass, callable or None
        Makes a scheduler for every optimizer; see
        `skest.schedules.make_lr_schedulers`.
    *parts : Part
        All parameters to train, each in one part.

    Returns
    -------
    dict
        "optimizer" and "lr_scheduler", or nothing.

    Examples
    --------
    >>> import torch
    >>> from skest.adapters.optimization import Part, optimization
    >>> network = torch.nn.Linear(2, 1)
    >>> part = Part(network.named_parameters(), "adam", 0.01, {})
    >>> [type(o).__name__ for o in optimization("train", None, part)["optimizer"]]
    ['Adam']
    """
    if mode != ModeKeys.TRAIN:
        return {}
    optimizers = [
        made
        for part in parts
        for made in make_optimizers(
            part.optimizer, part.named_parameters, part.learning_rate, **part.options
        )
    ]
    return {
        "optimizer": optimizers,
        "lr_scheduler": make_lr_schedulers(lr_scheduler, optimizers),
    }
