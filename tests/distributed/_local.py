# SPDX-License-Identifier: Apache-2.0
"""Descriptions of trainings of several processes on this machine."""

import dataclasses
from dataclasses import dataclass
from typing import Any

from skest import RunConfig


@dataclass(frozen=True)
class SharedMemory:
    """Stands for the strategy of this name."""

    num_workers: int = 2


if "train_distribute" in {field.name for field in dataclasses.fields(RunConfig)}:
    from skest.strategies import SharedMemory  # type: ignore[no-redef]

    Config = RunConfig
else:

    @dataclass(frozen=True)
    class Config(RunConfig):  # type: ignore[no-redef]
        """Settings with a strategy."""

        train_distribute: Any = None


def shared(num_workers=2, **settings):
    """Return settings of a training in shared memory."""
    return Config(train_distribute=SharedMemory(num_workers), **settings)
