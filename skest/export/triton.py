# SPDX-License-Identifier: Apache-2.0
"""Exported models in a model repository of the Triton inference server.

The directory that ``export`` writes versions into is a model of such a repository as it
is: ``<repository>/<name>/<version>/model.onnx``. Triton finds its configuration by itself;
`write_config` writes it down, for servers that must not.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from skest._files import write_file
from skest.exceptions import ArtifactError
from skest.export.artifact import latest, read_artifact

__all__ = ["write_config"]

CONFIG = "config.pbtxt"
_DTYPES = {"string": "TYPE_STRING", "float32": "TYPE_FP32", "float64": "TYPE_FP64"}


def write_config(
    base: str | os.PathLike[str],
    *,
    name: str | None = None,
    max_batch_size: int = 0,
) -> Path:
    """Write ``config.pbtxt`` beside the versions of an exported model.

    Parameters
    ----------
    base : str or path
        The directory that was given to ``export``. The newest version tells the tensors.
    name : str, optional
        Name of the model. Triton requires that of the directory, which is the default.
    max_batch_size : int, default=0
        The most rows that Triton may collect from several requests. 0 leaves batches to
        the clients.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    FileNotFoundError
        If there is no version.
    ValueError
        If `name` is not that of the directory, or `max_batch_size` is negative or given
        for a
        model with a tensor of one axis.
    ArtifactError
        If the newest version is damaged.

    Notes
    -----
    Triton asks a model for tensors, not for signatures: all outputs of the signature
    "predict" are declared.
    """
    base = Path(base)
    directory = base.resolve().name
    name = directory if name is None else name
    if name != directory:
        raise ValueError(
            f"Triton takes the name of the directory, {directory!r}, for that of the "
            f"model; got name={name!r}. Rename the directory."
        )
    if type(max_batch_size) is not int or max_batch_size < 0:
        raise ValueError(
            f"'max_batch_size' must be a whole number of 0 or more; got "
            f"{max_batch_size!r}."
        )
    manifest = read_artifact(latest(base)).manifest
    signature = manifest["signatures"].get("predict")
    if signature is None:
        raise ArtifactError("The manifest has no signature 'predict'.")
    inputs = {
        t["tensor"]: manifest["features"][t["tensor"]] for t in _of(signature, "inputs")
    }
    outputs = {tensor["tensor"]: tensor for tensor in _of(signature, "outputs")}
    lines = [
        f"name: {json.dumps(name, ensure_ascii=False)}",
        'backend: "onnxruntime"',
        f"max_batch_size: {max_batch_size}",
        _tensors("input", inputs, max_batch_size > 0),
        _tensors("output", outputs, max_batch_size > 0),
    ]
    path = base / CONFIG
    write_file(path, "\n".join([*lines, ""]).encode())
    return path


def _of(signature: Any, side: str) -> Iterable[Any]:
    return signature[side].values()


def _tensors(kind: str, tensors: dict[str, Any], is_batched: bool) -> str:
    entries = [
        f"  {{\n    name: {json.dumps(name, ensure_ascii=False)}\n"
        f"    data_type: {_data_type(spec['dtype'])}\n"
        f"    dims: {_dims(name, spec['shape'], is_batched)}\n  }}"
        for name, spec in tensors.items()
    ]
    return f"{kind} [\n" + ",\n".join(entries) + "\n]"


def _data_type(dtype: str) -> str:
    return _DTYPES.get(dtype, f"TYPE_{dtype.upper()}")


def _dims(name: str, shape: list[int | None], is_batched: bool) -> list[int]:
    if is_batched and len(shape) < 2:
        raise ValueError(
            f"The tensor {name!r} has one axis, that of the rows, and Triton batches "
            "those of two and more. Export with input_rank=2, or give max_batch_size=0."
        )
    # With batches, Triton knows of the first axis itself.
    sizes = shape[1:] if is_batched else shape
    return [-1 if size is None else size for size in sizes]
