# SPDX-License-Identifier: Apache-2.0
"""What a program of torch is traced with: its encoder, and tensors of some rows."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skest.export.columns_onnx import encode
from skest.export.declaration import described
from skest.export.encoders import (
    ColumnEncoder,
    Encoder,
    RowEncoder,
    TensorEncoder,
    tensor_name,
)
from skest.export.graph import Graph
from skest.export.inputs import Form, Inputs
from skest.export.spec_inputs import enough_rows, spec_inputs, trial_tensors
from skest.export.trial_rows import cells_of, made_up_rows
from skest.export.warmup import looked_up
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.table import Key, Table

__all__ = ["ProgramInputs", "inputs_of_columns", "inputs_of_rows", "inputs_of_tensors"]


class ProgramInputs(NamedTuple):
    """What a network is traced with.

    Attributes
    ----------
    encoder : Encoder
        Makes them of raw values.
    words : dict of str to list
        Words and integers that are looked up, by raw column.
    example : dict of str to Tensor
        Tensors by name, two rows and more.
    open_axes : dict of str to tuple of int
        Their axes that may have any length.
    """

    encoder: Encoder
    words: dict[str, list[Any]]
    example: dict[str, Tensor]
    open_axes: dict[str, tuple[int, ...]]


def inputs_of_columns(
    parts: Mapping[str, FeatureColumns],
    features: Any,
    dtype: np.dtype,
    forms: Mapping[Key, Form],
) -> ProgramInputs:
    """Return what a network behind feature columns is traced with.

    Parameters
    ----------
    parts : dict of str to FeatureColumns
        Fitted columns by the part of the network, or one entry under "".
    features : raw features or None
        Some rows; None makes some up.
    dtype : numpy.dtype
        Floating type of the network.
    forms : dict of Form
        What is known about raw columns.

    Raises
    ------
    ExportError
        If a column is more than data.
    """
    described(parts, "feature_columns")  # refuses functions before they are called
    graph = Graph("columns")
    inputs = Inputs(graph, [c for p in parts.values() for c in p.active], dtype, forms)
    encoded = {part: encode(columns, inputs, dtype) for part, columns in parts.items()}
    # A raw column that is also read split comes once: columns split it themselves.
    specs = [spec for spec in inputs.specs if spec.name == str(spec.key)]
    words = looked_up(graph)

    def tensors(features: Any) -> dict[str, dict[str, torch.Tensor]]:
        table, own = Table(features), getattr(torch, dtype.name)
        return {part: columns.encode(table, own) for part, columns in parts.items()}

    def features_of(rows: Mapping[str, list[Any]]) -> dict[Key, Any]:
        return {spec.key: cells_of(spec, rows[spec.name]) for spec in specs}

    if features is None:
        _, of_part = made_up_rows(
            words,
            specs,
            lambda rows: tensors(features_of(rows)),
            missing=(False,),
        )
    else:
        of_part = tensors(features)
    found = {
        tensor_name(part, key): trial
        for part, columns in parts.items()
        for key, trial in trial_tensors(columns, encoded[part], of_part[part]).items()
    }
    wide = [name for name, (_, axes) in found.items() if axes != (0,)]
    return ProgramInputs(
        ColumnEncoder(specs, parts, dtype.name, wide),
        words,
        {name: tensor for name, (tensor, _) in found.items()},
        {name: axes for name, (_, axes) in found.items()},
    )


def inputs_of_tensors(features: Any, dtype: np.dtype) -> ProgramInputs:
    """Return what a network that takes features as they are is traced with."""
    given = spec_inputs(Graph("tensors"), None, features, dtype, None, 2)
    names = [spec.name for spec in given.specs]
    entries = dict(zip(names, given.traceable.values(), strict=True))
    dtypes = {
        name: str(entry.example.dtype).removeprefix("torch.")
        for name, entry in entries.items()
    }
    return ProgramInputs(
        TensorEncoder(given.specs, dtypes, given.is_bare),
        {},
        {name: entry.example for name, entry in entries.items()},
        {name: entry.open_axes for name, entry in entries.items()},
    )


def inputs_of_rows(dtype: np.dtype, forms: Mapping[Key, Form]) -> ProgramInputs:
    """Return what a network that only counts rows is traced with."""
    inputs = Inputs(Graph("rows"), [], dtype, forms)
    inputs.any_input()
    encoder = RowEncoder(inputs.specs)
    rows = encoder.encode({inputs.specs[0].name: [0, 0]})
    example = {name: enough_rows(tensor) for name, tensor in rows.items()}
    return ProgramInputs(encoder, {}, example, dict.fromkeys(example, (0,)))
