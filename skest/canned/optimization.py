# SPDX-License-Identifier: Apache-2.0
"""Optimizers and learning rates of the canned model functions, and their parts' names."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from skest.keys import ModeKeys
from skest.optimizers.named import OptimizersLike, make_optimizers
from skest.optimizers.row_sparse import is_row_table
from skest.optimizers.schedules import (
    CosineCycles,
    LRSchedulerLike,
    RateFunction,
    make_lr_schedulers,
)
from skest.optimizers.state import NamedParameters

# The second moments of Adam forget sooner than by default (.999): of what RealMLP does
# beyond a plain network, the ablations show few things that matter as much.
_ADAM_BETAS = (0.9, 0.95)
# Rows of tables meet few examples: Adagrad gives each a rate of its own, and needs a
# higher one (tf.estimator's .05 beside .002).
_TABLE_RATE = 25.0
# What scales the input learns faster than the layers, which would learn the noise of
# columns that tell nothing before these fade (RealMLP, arXiv 2407.04491, has 6 times the
# rate). In a short training it would run away from the layers: one more for 100 steps.
_SCALES_RATE, _SCALES_STEPS = 20.0, 100


class Part(NamedTuple):
    """Parameters of a network, and how they are optimized.

    Attributes
    ----------
    named_parameters : iterable of (str, Tensor)
        With the names that they have in the whole network.
    optimizer, learning_rate, options
        As in `skest.optimizers.make_optimizers`. The optimizer "auto" is AdamW, at up to
        20 times the rate for the scales of members if the rate falls in `CosineCycles`,
        with Adagrad at 25 times the rate for tables whose rows are looked up.
    """

    named_parameters: NamedParameters
    optimizer: OptimizersLike
    learning_rate: float | RateFunction | None
    options: Mapping[str, Any]

    @classmethod
    def of(
        cls, network: nn.Module, optimizer: Any, learning_rate: Any, **options: Any
    ) -> "Part":
        """Return a whole network as the only part."""
        return cls(network.named_parameters(), optimizer, learning_rate, options)


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
        `skest.optimizers.schedules.make_lr_schedulers`.
    *parts : Part
        All parameters to train, each in one part.

    Returns
    -------
    dict
        "optimizer" and "lr_scheduler", or nothing.

    Examples
    --------
    >>> import torch
    >>> from skest.canned.optimization import Part, optimization
    >>> network = torch.nn.Linear(2, 1)
    >>> part = Part.of(network, "adam", 0.01)
    >>> [type(o).__name__ for o in optimization("train", None, part)["optimizer"]]
    ['Adam']
    """
    # Slots of optimizers would be made for nothing.
    if mode != ModeKeys.TRAIN:
        return {}
    optimizers = [
        made
        for whole in parts
        for part in _shares(whole)
        for made in make_optimizers(
            part.optimizer, part.named_parameters, part.learning_rate, **part.options
        )
    ]
    return {
        "optimizer": optimizers,
        "lr_scheduler": make_lr_schedulers(lr_scheduler, optimizers),
    }


def _shares(part: Part) -> Iterator[Part]:
    """Yield the parts of which the optimizer "auto" consists, or the part as it is."""
    if part.optimizer != "auto":
        yield part
        return
    # Gone through twice below: an iterator would be empty then.
    items: Any = part.named_parameters
    named = dict(items)
    tables = {name: p for name, p in named.items() if is_row_table(p)}
    scales = {name: p for name, p in named.items() if name.endswith("member_scales")}
    apart = tables | scales
    dense = {name: p for name, p in named.items() if name not in apart}
    options = {"betas": _ADAM_BETAS, **part.options}
    rate = part.learning_rate
    if dense:
        yield Part(dense, "adamw", rate, options)
    if scales:
        yield Part(scales, "adamw", _times(rate, _faster_for_scales(rate)), options)
    # AdamW has moments for all rows of a table and would move those that no row of a
    # batch has.
    if tables:
        yield Part(tables, "adagrad", _times(rate, _TABLE_RATE), {})


def _faster_for_scales(rate: Any) -> float:
    if not isinstance(rate, CosineCycles):
        return 1.0  # they would not come to rest
    n_steps = rate.first_step + rate.n_steps
    return min(max(1.0, n_steps / _SCALES_STEPS), _SCALES_RATE)


def _times(
    rate: float | RateFunction | None, factor: float
) -> float | RateFunction | None:
    # A partial of a function of this module, which can be pickled.
    if callable(rate):
        return partial(_rate_at, rate, factor)
    return None if rate is None else factor * rate


def _rate_at(rate: RateFunction, factor: float, step: int) -> float:
    return factor * rate(step)


# Where a network keeps the embedding tables of its columns.
_SCOPES = {"dense": "inputs.", "linear": "dense.", "sequence": "", "context": ""}


def part_prefix(parameter: str) -> str:
    """Return what names of variables begin with in the part for a column parameter.

    Examples
    --------
    >>> from skest.canned.optimization import part_prefix
    >>> part_prefix("dnn_feature_columns"), part_prefix("feature_columns")
    ('dnn.', '')
    """
    # `Combined` and `RNN` call their parts as parameters are called.
    return parameter.removesuffix("feature_columns").replace("_", ".")


def table_scope(parameter: str, kind: str) -> str:
    """Return what names of embedding tables begin with, for a column parameter."""
    return part_prefix(parameter) + _SCOPES[kind]
