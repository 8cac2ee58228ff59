# SPDX-License-Identifier: Apache-2.0
"""What a person is told of a checkpoint: its layers, parameters and memory."""

from typing import Any

from skest.checkpoints.checkpoint import Checkpoint
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


def _memory(tensors: Any) -> str:
    size = float(sum(v.numel() * v.element_size() for v in tensors.values()))
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"
