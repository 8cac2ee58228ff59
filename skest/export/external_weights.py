# SPDX-License-Identifier: Apache-2.0
"""Weights of a graph in a safetensors file, from where engines map them into memory."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skest._tensor_files import write_tensors

__all__ = ["move_weights", "without_constants"]

# Tensors of the graph that are no variables of the network have names that begin so.
_CONSTANT = "onnx/"
_SMALL = 1024


def move_weights(model: Any, variables: Mapping[str, torch.Tensor], path: Path) -> Any:
    """Write variables to a file, and let a graph take its weights from there.

    A weight of the graph that is a variable of the network is written once.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph; it stays as it is.
    variables : dict of str to Tensor
        Variables of the network, contiguous.
    path : Path
        The file to write, in the directory of the graph.

    Returns
    -------
    onnx.ModelProto
        The graph whose weights of a kibibyte and more lie in the file.
    """
    from onnx import ModelProto, TensorProto, numpy_helper

    moved = ModelProto()
    moved.CopyFrom(model)
    tensors = dict(variables)
    sources: dict[str, str] = {}
    for tensor in moved.graph.initializer:
        if tensor.data_type == TensorProto.STRING or tensor.ByteSize() < _SMALL:
            continue
        value = torch.from_numpy(numpy_helper.to_array(tensor).copy())
        name = next(
            (n for n, v in variables.items() if _same(v, value)),
            _CONSTANT + tensor.name,
        )
        sources[tensor.name] = name
        tensors.setdefault(name, value)
    write_tensors(tensors, path)
    places = _places(path)
    for tensor in moved.graph.initializer:
        if tensor.name in sources:
            begin, end = places[sources[tensor.name]]
            tensor.ClearField("raw_data")
            for field in ("float_data", "int32_data", "int64_data", "double_data"):
                tensor.ClearField(field)
            tensor.data_location = TensorProto.EXTERNAL
            for key, text in [
                ("location", path.name),
                ("offset", str(begin)),
                ("length", str(end - begin)),
            ]:
                tensor.external_data.add(key=key, value=text)
    return moved


def without_constants(
    tensors: Mapping[str, torch.Tensor],
) -> dict[str, torch.Tensor]:
    """Return the variables among what `move_weights` wrote."""
    return {n: v for n, v in tensors.items() if not n.startswith(_CONSTANT)}


def _same(variable: torch.Tensor, value: torch.Tensor) -> bool:
    return (
        variable.dtype == value.dtype
        and variable.shape == value.shape
        and torch.equal(variable, value)
    )


def _places(path: Path) -> dict[str, tuple[int, int]]:
    """Return where the tensors begin and end in a safetensors file."""
    with path.open("rb") as file:
        size = int(np.frombuffer(file.read(8), "<u8")[0])
        header = json.loads(file.read(size))
    return {
        name: (8 + size + entry["data_offsets"][0], 8 + size + entry["data_offsets"][1])
        for name, entry in header.items()
        if name != "__metadata__"
    }
