# SPDX-License-Identifier: Apache-2.0
"""What `Estimator.export` writes of a checkpoint: a fresh model, and what it is made of."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from skest._random import RunRandom
from skest.checkpoints import Checkpoint
from skest.export.spec_export import exported_spec, known_features
from skest.export.writer import Exported
from skest.keys import ModeKeys
from skest.model_builder import ModelBuilder, restore

__all__ = ["exported_model"]


def exported_model(
    builder: ModelBuilder,
    checkpoint: Checkpoint,
    seen: Any,
    *,
    example: Any,
    assets: Mapping[str, str | os.PathLike[str]],
    input_rank: int,
) -> Exported:
    """Build the model of a checkpoint, and return what a version of it is made of.

    Parameters
    ----------
    builder : ModelBuilder
        Builds it, on the CPU.
    checkpoint : Checkpoint
        Its variables.
    seen : raw features or None
        Rows of an earlier call, to read names, types and shapes from if there is no
        `example`.
    example, assets, input_rank
        See `skest.Estimator.export`.

    Returns
    -------
    Exported
        For `skest.export.writer.write_export`.

    Raises
    ------
    ExportError
        If a part of the model cannot be written, or there are no rows.
    """
    features = known_features(seen if example is None else example)
    random = RunRandom(0, torch.device("cpu"))
    spec = builder.build(features, None, ModeKeys.PREDICT, random)
    restore(spec, checkpoint)
    return exported_spec(
        spec,
        features,
        checkpoint,
        example=example,
        assets=assets,
        input_rank=input_rank,
    )
