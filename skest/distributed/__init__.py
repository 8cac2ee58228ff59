# SPDX-License-Identifier: Apache-2.0
"""Training in several processes: strategies, and which task of a cluster this is."""

from skest.cluster import ClusterSpec, TaskConfig, task_from_env
from skest.strategies import (
    AsyncParameterServer,
    DataParallel,
    LocalSGD,
    SharedMemory,
)

__all__ = [
    "AsyncParameterServer",
    "ClusterSpec",
    "DataParallel",
    "LocalSGD",
    "SharedMemory",
    "TaskConfig",
    "task_from_env",
]
