# SPDX-License-Identifier: Apache-2.0
"""The inputs of an exported ``model_fn``: raw columns, or tensors as a batch shows them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from skest.exceptions import ExportError
from skest.export.columns_onnx import EveryId, Ids, encode
from skest.export.demands import demands
from skest.export.graph import Graph, Value
from skest.export.inputs import Form, Inputs, InputSpec, forms_of
from skest.export.numbers_onnx import Numbers, computed
from skest.feature_columns.arithmetic import Encoding
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.parts import PartsEncoding
from skest.feature_columns.piecewise import PiecewiseLinearColumn
from skest.feature_columns.table import Key, Table

__all__ = [
    "BARE",
    "SpecInputs",
    "Traceable",
    "columns_of_encode",
    "enough_rows",
    "forms_of_columns",
    "spec_inputs",
    "trial_tensors",
]

#: Name of the input of a model whose features are one array.
BARE = "x"


@dataclass(frozen=True)
class Traceable:
    """An encoded feature, as `skest.export.torch_bridge.traced` takes it.

    Attributes
    ----------
    value : Value
        The tensor in the graph.
    example : Tensor
        Some rows of it.
    open_axes : tuple of int
        Axes of any length.
    """

    value: Value
    example: Tensor
    open_axes: tuple[int, ...]


@dataclass(frozen=True)
class SpecInputs:
    """What a network gets.

    Attributes
    ----------
    specs : list of InputSpec
        Inputs of the graph.
    encoded : Value, or dict of Value, Ids and EveryId
        For networks that are written directly.
    traceable : dict of Traceable
        For others, under the keys of the encoded features; none of a model whose columns
        come by part, which is canned.
    is_bare : bool
        Whether the network takes one tensor, not a dictionary.
    """

    specs: list[InputSpec]
    encoded: Any
    traceable: dict[Any, Traceable]
    is_bare: bool

    @property
    def is_for_canned(self) -> bool:
        """Whether it can only be written directly: nothing could be traced."""
        return not self.traceable

    @property
    def is_matrix_or_encoded(self) -> bool:
        """Whether networks of skest take it: a matrix, or encoded columns."""
        return not self.is_bare or self.encoded.ndim == 2

    def assembled(self, tensors: Any) -> Any:
        """Return tensors in the order of `traceable` as the network takes them."""
        if self.is_bare:
            return tensors[0]
        return dict(zip(self.traceable, tensors, strict=True))


def columns_of_encode(
    own: Callable[..., Any],
) -> FeatureColumns | dict[str, FeatureColumns]:
    """Return the feature columns whose method ``encode`` a function is.

    Those of a canned network of several parts, such as wide & deep, come by part.

    Raises
    ------
    ExportError
        If it is another function.
    """
    if isinstance(own, Encoding):
        return own.columns
    if isinstance(own, PartsEncoding):
        return own.parts
    function = own.func if isinstance(own, partial) else own
    columns = getattr(function, "__self__", None)
    if isinstance(columns, FeatureColumns) and function == columns.encode:
        return columns
    raise ExportError(
        f"The 'encode' of the EstimatorSpec, {_called(function)}, cannot be exported. "
        "Use FeatureColumns.encode, or functools.partial of it with a dtype; or leave it "
        "out and give tensors as features."
    )


def _called(function: Any) -> str:
    """Return the name of a function, not all that is bound to it."""
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def spec_inputs(
    graph: Graph,
    own: Callable[..., Any] | None,
    features: Any,
    dtype: np.dtype,
    forms: Mapping[Key, Form] | None,
    input_rank: int,
) -> SpecInputs:
    """Declare the inputs of a model.

    Parameters
    ----------
    graph : Graph
        Gets the inputs.
    own : callable or None
        The ``encode`` of the specification.
    features : raw features
        Some rows.
    dtype : numpy.dtype
        Floating type of the network.
    forms : dict of Form or None
        What is known about raw columns; None is what `features` are.
    input_rank : {1, 2}
        Of raw columns with one value for each row.

    Raises
    ------
    ExportError
        If `own` is not the method of `FeatureColumns`, or a feature is no tensor.
    """
    if own is None:
        return _plain(graph, features, dtype)
    columns = columns_of_encode(own)
    if forms is None:
        forms = forms_of_columns(columns, features)
    if isinstance(columns, dict):
        given = [column for part in columns.values() for column in part.active]
        inputs = Inputs(graph, given, dtype, forms, input_rank)
        by_part = {name: encode(part, inputs, dtype) for name, part in columns.items()}
        return SpecInputs(inputs.specs, by_part, {}, False)
    inputs = Inputs(graph, columns.active, dtype, forms, input_rank)
    encoded = encode(columns, inputs, dtype)
    traceable = _of_columns(columns, encoded, own(features))
    return SpecInputs(inputs.specs, encoded, traceable, False)


def forms_of_columns(
    columns: FeatureColumns | dict[str, FeatureColumns], features: Any
) -> dict[Key, Form]:
    """Return what the cells of categories are."""
    table = Table(features)
    parts = columns.values() if isinstance(columns, dict) else [columns]
    wanted = [d for part in parts for column in part.active for d in demands(column)]
    return forms_of({d.key: table.cells(d.key) for d in wanted if not d.is_number})


def _of_columns(
    columns: FeatureColumns, encoded: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[Any, Traceable]:
    found: dict[Any, Traceable] = {}
    for key, (example, open_axes) in trial_tensors(columns, encoded, tensors).items():
        entry = encoded[key]
        if isinstance(entry, EveryId):
            continue  # only modules of skest take it
        value = computed([entry]) if isinstance(entry, Numbers) else entry
        value = entry.values if isinstance(entry, Ids) else value
        found[key] = Traceable(value.cast(_numpy(example)), example, open_axes)
    return found


def trial_tensors(
    columns: FeatureColumns, encoded: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    """Return tensors to trace a network with, and their axes of any length.

    Parameters
    ----------
    columns : FeatureColumns
        Fitted.
    encoded : dict
        What they encode in a graph.
    tensors : dict of str to Tensor
        What they encode of some rows.
    """
    # A piecewise-linear column has one weight, its fraction, for each element of a cell.
    weights = {
        getattr(column, "weight_key", None)
        for column in columns.active
        if not isinstance(column, PiecewiseLinearColumn)
    }
    found: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
    for key, tensor in tensors.items():
        entry = encoded[key]
        fill, is_open = 0, tensor.ndim == 3 or key in weights
        if isinstance(entry, Ids | EveryId):  # the latter come as those that are not 0
            fill, is_open = -1, isinstance(entry, EveryId) or entry.width is None
        axes = (0, 1) if is_open else (0,)
        found[key] = (enough_rows(tensor, is_open, fill), axes)
    return found


def enough_rows(tensor: Tensor, is_open: bool = False, fill: int = 0) -> Tensor:
    """Return rows of which torch does not take the numbers 0 and 1 for special cases."""
    rows = torch.cat([tensor, tensor, tensor])
    if len(rows) < 2:
        rows = F.pad(rows, (0, 0) * (rows.ndim - 1) + (0, 2))
    if not is_open:
        return rows
    return F.pad(rows, (0, 0) * (rows.ndim - 2) + (0, 2), value=fill)


def _plain(graph: Graph, features: Any, dtype: np.dtype) -> SpecInputs:
    """Declare an input for each tensor."""
    is_bare = not isinstance(features, Mapping)
    found: dict[Any, Traceable] = {}
    specs = []
    for key, cells in ({BARE: features} if is_bare else features).items():
        tensor = _tensor(cells, key, dtype)
        name = str(key)
        kind = dtype.name if tensor.is_floating_point() else "int64"
        shape = (None, *tensor.shape[1:])
        specs.append(InputSpec(name, key, kind, shape, None))
        value = graph.input(name, kind, shape).cast(_numpy(tensor))
        found[key] = Traceable(value, enough_rows(tensor), (0,))
    values = {key: entry.value for key, entry in found.items()}
    return SpecInputs(specs, values[BARE] if is_bare else values, found, is_bare)


def _tensor(cells: Any, key: Any, dtype: np.dtype) -> Tensor:
    if isinstance(cells, Mapping):
        raise ExportError(
            f"The feature {key!r} is a dictionary of features, and each input of a graph "
            "is one tensor. Let 'input_fn' give one dictionary of arrays, "
            'under names such as "outer_inner".'
        )
    array = cells if isinstance(cells, Tensor) else np.asarray(cells)
    if not isinstance(array, Tensor):
        if array.dtype.kind not in "biuf":
            raise ExportError(
                f"The feature {key!r} holds {array.dtype}, not numbers, and the model has "
                "no 'encode'. Encode it by FeatureColumns."
            )
        array = torch.as_tensor(array)
    if array.ndim == 0:
        raise ExportError(f"The feature {key!r} has no rows.")
    floating = getattr(torch, dtype.name)
    return array.to(floating) if array.is_floating_point() else array


def _numpy(tensor: Tensor) -> np.dtype:
    return np.dtype(str(tensor.dtype).removeprefix("torch."))
