# SPDX-License-Identifier: Apache-2.0
"""What a person is told of a checkpoint: its layers, parameters and memory."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from skest.checkpoints.checkpoint import Checkpoint
from skest.core.resources import bytes_in_words
from skest.core.tables import TitledTable

_MOST_SHAPES = 3


def layers_of(checkpoint: Checkpoint) -> TitledTable:
    """Return a line about each module that has variables of its own."""
    modules: dict[str, list[Any]] = {}
    for name, variable in checkpoint.variables.items():
        modules.setdefault(name.rpartition(".")[0], []).append(variable)
    rows = []
    for name, tensors in modules.items():
        shapes = [" x ".join(map(str, v.shape)) or "1" for v in tensors]
        if len(shapes) > _MOST_SHAPES:
            shapes = [f"{len(shapes)} tensors"]
        n_values = sum(v.numel() for v in tensors)
        rows.append((name or "(itself)", ", ".join(shapes), f"{n_values:,}"))
    n_values = sum(v.numel() for v in checkpoint.variables.values())
    title = (
        f"Layers: {n_values:,} parameter{'s' * (n_values != 1)}, "
        f"{_memory(checkpoint.variables)}, and {_memory(checkpoint.optimizer)} of the "
        "optimizer"
    )
    return TitledTable(title, ("layer", "shapes", "parameters"), rows)


def _memory(tensors: Mapping[str, Tensor]) -> str:
    return bytes_in_words(sum(v.nbytes for v in tensors.values()))
