# SPDX-License-Identifier: Apache-2.0
"""What becomes a version of a model that a ``model_fn`` describes."""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skest.checkpoints.checkpoint import Checkpoint
from skest.core.random import RunRandom
from skest.engine.evaluation import predict_batch
from skest.engine.model import ModelBuilder, restore
from skest.exceptions import ExportError
from skest.export.onnx.inputs import InputSpec
from skest.export.onnx.model import OnnxGraph, spec_onnx
from skest.export.onnx.tracing import BARE
from skest.export.warmup import by_output, cells_of
from skest.export.writer import (
    Assets,
    Exported,
    check_format,
    export_checkpoint,
    write_export,
)
from skest.keys import ModeKeys
from skest.spec import EstimatorSpec


def export_estimator(
    builder: ModelBuilder,
    find_checkpoint: Callable[[], Checkpoint],
    seen: Any,
    base: str | os.PathLike[str],
    *,
    example: Any,
    assets: Assets,
    format: str,
    verify: bool,
    atol: float,
) -> Path:
    """Write the model of a checkpoint as a new version; see `skest.Estimator.export`.

    Parameters
    ----------
    builder : ModelBuilder
        Builds it, on the CPU.
    find_checkpoint : callable
        Returns the checkpoint, once the other arguments are known to be right.
    seen : raw features or None
        Rows of an earlier call, to read names, types and shapes from if there is no
        `example`.
    base : str or path
        Directory of the versions.
    """
    check_format(format)
    checkpoint = find_checkpoint()
    if format == "checkpoint":
        return export_checkpoint(checkpoint, base, assets, verify)
    features = seen if example is None else example
    if features is None:
        raise ExportError(
            "It is not known what the features are like, as this Estimator was given "
            "none since it was made. Pass some rows of them as 'example', or call "
            "evaluate or predict first."
        )
    random = RunRandom(0, torch.device("cpu"))
    spec = builder.build(features, None, ModeKeys.PREDICT, random)
    restore(spec, checkpoint)
    model = spec_onnx(spec, features, name="Estimator")
    if example is not None and not _is_table(example):
        example = {BARE: np.asarray(example)}
    exported = Exported(
        model=model,
        described={"estimator": "Estimator", "global_step": checkpoint.global_step},
        predict=partial(_expected, spec, model),
        example=example,
        assets=assets,
    )
    return write_export(exported, base, verify=verify, atol=atol)


def _is_table(example: Any) -> bool:
    is_rows = isinstance(example, list) and isinstance(example[0], Mapping)
    return isinstance(example, Mapping) or hasattr(example, "columns") or is_rows


def _expected(
    spec: EstimatorSpec, model: OnnxGraph, rows: Mapping[str, list[Any]]
) -> dict[str, np.ndarray]:
    """Return what the signature "predict" should."""
    inputs = model.inputs
    if spec.encode is not None:
        encoded: Any = spec.encode({s.key: cells_of(s, rows[s.name]) for s in inputs})
    else:
        tensors = {s.key: _tensor(spec, s, rows[s.name]) for s in inputs}
        encoded = tensors[BARE] if list(tensors) == [BARE] else tensors
    with torch.no_grad():
        found = by_output(predict_batch(spec, encoded, None))
    own = (spec.export_outputs or {}).get("predict")
    keys = {name: name for name in model.signatures["predict"].outputs}
    named = {n: found.get(key) for n, key in (own.outputs if own else keys).items()}
    return {name: values for name, values in named.items() if values is not None}


def _tensor(spec: EstimatorSpec, given: InputSpec, cells: list[Any]) -> torch.Tensor:
    array = np.asarray(cells, given.dtype)
    shape = [len(cells), *[size or 0 for size in given.shape[1:]]]
    tensor = torch.from_numpy(array.reshape(shape))
    return tensor.to(spec.dtype) if tensor.is_floating_point() else tensor
