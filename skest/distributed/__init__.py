# SPDX-License-Identifier: Apache-2.0
"""Training in several processes: strategies, and which task of a cluster this is.

`replicas` says which part this process has: one of a group that goes in step
(`data_parallel`, `local_sgd`), one of those that share memory, or one that trains variables
in parameter servers (`ps`). `launch` and `ray` start scripts as all tasks of a cluster,
`local` the processes of one machine. The loop and the model do not change.
"""

from skest.config.cluster import ClusterSpec, TaskConfig, task_from_env
from skest.config.run_config import (
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
