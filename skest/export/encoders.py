# SPDX-License-Identifier: Apache-2.0
"""Raw features as the tensors that an exported program takes, without pickle.

A program of torch has no strings. What stands before it is one of these, which are plain
data: feature columns, tensors as they are, or no more than the number of rows.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from skest.export.inputs import InputSpec
from skest.export.raw_values import Feature
from skest.export.trial_rows import cells_of
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.table import Key, Table

__all__ = ["ColumnEncoder", "Encoder", "RowEncoder", "TensorEncoder", "tensor_name"]


def tensor_name(part: str, key: str) -> str:
    """Return the name of an encoded feature; `part` is "" if the network has none."""
    return f"{part}/{key}" if part else key


class Encoder:
    """What has a model's raw features become tensors; not for direct use.

    Parameters
    ----------
    inputs : sequence of InputSpec
        The raw features.
    """

    def __init__(self, inputs: Sequence[InputSpec]) -> None:
        self.inputs = [*inputs]

    def encode(self, features: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the tensors by name, in the order in which the program takes them.

        Parameters
        ----------
        features : dict
            Cells by the name of the input: arrays, columns of a frame, or lists.
        """
        raise NotImplementedError

    def assembled(self, tensors: Mapping[str, Tensor]) -> Any:
        """Return tensors as the network takes them."""
        return dict(tensors)


class ColumnEncoder(Encoder):
    """Feature columns.

    Parameters
    ----------
    inputs : sequence of InputSpec
        The raw features.
    parts : dict of str to FeatureColumns
        Fitted columns by the part of the network, or one entry under "".
    dtype : str
        Floating type of the network.
    wide : collection of str
        Tensors with several values for each row, as many as there are. They are filled
        up to two, because torch may take a single one for a special case.
    """

    def __init__(
        self,
        inputs: Sequence[InputSpec],
        parts: Mapping[str, FeatureColumns],
        dtype: str,
        wide: Collection[str],
    ) -> None:
        super().__init__(inputs)
        self.parts = dict(parts)
        self.dtype = dtype
        self.wide = [*wide]

    def encode(self, features: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return what the columns encode."""
        cells = {spec.key: _cells(spec, features[spec.name]) for spec in self.inputs}
        table = Table(cells)  # looks up every distinct string once for all parts
        found = {
            tensor_name(part, key): tensor
            for part, columns in self.parts.items()
            for key, tensor in columns.encode(table, getattr(torch, self.dtype)).items()
        }
        return found | {name: _widened(found[name]) for name in self.wide}

    def assembled(self, tensors: Mapping[str, Tensor]) -> Any:
        """Return tensors by key; of several parts, dictionaries by part."""
        if "" in self.parts:
            return dict(tensors)
        found: dict[str, dict[str, Tensor]] = {part: {} for part in self.parts}
        for name, tensor in tensors.items():
            part, _, key = name.partition("/")
            found[part][key] = tensor
        return found


class TensorEncoder(Encoder):
    """Features that are numbers already.

    Parameters
    ----------
    inputs : sequence of InputSpec
        The raw features.
    dtypes : dict of str to str
        Type of each tensor, by the name of the input.
    is_bare : bool
        Whether the network takes one tensor, not a dictionary.
    """

    def __init__(
        self, inputs: Sequence[InputSpec], dtypes: Mapping[str, str], is_bare: bool
    ) -> None:
        super().__init__(inputs)
        self.dtypes = dict(dtypes)
        self.is_bare = is_bare

    def encode(self, features: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return the features, whose types and shapes are checked."""
        return {
            spec.name: torch.from_numpy(_checked(spec, features[spec.name])).to(
                getattr(torch, self.dtypes[spec.name])
            )
            for spec in self.inputs
        }

    def assembled(self, tensors: Mapping[str, Tensor]) -> Any:
        """Return the tensor, or tensors by the key of the feature."""
        if self.is_bare:
            return next(iter(tensors.values()))
        keys: dict[str, Key] = {spec.name: spec.key for spec in self.inputs}
        return {keys[name]: tensor for name, tensor in tensors.items()}


class RowEncoder(Encoder):
    """The number of rows, of a network that looks at nothing else."""

    def encode(self, features: Mapping[str, Any]) -> dict[str, Tensor]:
        """Return an empty row for each."""
        return {"rows": torch.empty(len(features[self.inputs[0].name]), 0)}


def _widened(tensor: Tensor) -> Tensor:
    """Fill up to two values: ids with -1, which is none, and numbers with 0."""
    lacking = 2 - tensor.shape[1]
    if lacking <= 0:
        return tensor
    fill = 0 if tensor.is_floating_point() else -1
    return F.pad(tensor, (0, 0) * (tensor.ndim - 2) + (0, lacking), value=fill)


def _cells(spec: InputSpec, values: Any) -> Any:
    """Return the cells of a raw column as feature columns read them."""
    if isinstance(values, list | tuple):
        return cells_of(spec, [*values])
    if spec.names is not None and isinstance(values, np.ndarray):
        return values.astype(np.float64)  # columns of a frame that were put together
    return values


def _checked(spec: InputSpec, values: Any) -> np.ndarray:
    array = Feature(spec.name, spec.to_json()).feed(values)
    return np.require(array, requirements=["C", "W"])
