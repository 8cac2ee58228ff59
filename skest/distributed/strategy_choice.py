# SPDX-License-Identifier: Apache-2.0
"""Whether, and how, a process shares its training with others.

It stands apart from `skest.distributed.replicas`, whose import takes long: a process that
trains alone need not know more.
"""

from skest.run_config import RunConfig
from skest.strategies import AsyncParameterServer, Strategy

__all__ = ["is_alone", "strategy_of"]


def strategy_of(config: RunConfig) -> Strategy | None:
    """Return how the tasks share a training; None if this process trains alone.

    Parameters
    ----------
    config : RunConfig
        With ``train_distribute=None`` in a cluster that has parameter servers, it is
        ``AsyncParameterServer()``, as with ``TF_CONFIG`` in TensorFlow.
    """
    if config.train_distribute is None and config.num_ps_replicas:
        return AsyncParameterServer()
    return config.train_distribute


def is_alone(config: RunConfig) -> bool:
    """Tell whether a process knows of no others, so that it trains alone."""
    is_worker = config.task_type == "worker"
    return strategy_of(config) is None and is_worker and not config.cluster_spec
