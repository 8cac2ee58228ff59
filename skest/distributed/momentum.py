# SPDX-License-Identifier: Apache-2.0
"""A word of warning to those who combine momentum with many asynchronous workers."""

from collections.abc import Iterable

from torch.optim import Optimizer

from skest._warnings import warn

__all__ = ["warn_of_momentum"]

_MANY = 4


def warn_of_momentum(optimizers: Iterable[Optimizer], num_workers: int) -> None:
    """Warn if late gradients meet momentum, which multiplies their error.

    Parameters
    ----------
    optimizers : iterable of Optimizer
        Of the training.
    num_workers : int
        How many tasks send gradients; with up to three nothing is said.

    Notes
    -----
    Mitliagkas et al., Asynchrony begets Momentum, with an Application to Deep Learning,
    2016 (arXiv 1605.09774): asynchronous updates act like momentum of their own.
    """
    if num_workers < _MANY:
        return
    groups = (group for optimizer in optimizers for group in optimizer.param_groups)
    found = max((group.get("momentum") or 0.0 for group in groups), default=0.0)
    if found > 0:
        warn(
            f"The optimizer has momentum={found:g}, and {num_workers} workers train "
            "without waiting for each other: gradients come late, and training may not "
            "converge. Use adagrad, or momentum=0; fewer workers, a learning rate that "
            "is smaller by their number, or max_staleness help as well."
        )
