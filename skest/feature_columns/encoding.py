# SPDX-License-Identifier: Apache-2.0
"""How a model encodes its features: by its columns, or by plain arithmetic alone."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.matrix_parts import NumericFrameColumn
from skest.feature_columns.numeric import NumericColumn
from skest.feature_columns.table import Table

_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))
_SCALED = (None, "standard", "auto", "minmax")


class Encoding:
    """Encodes the features of a model.

    Parameters
    ----------
    columns : FeatureColumns
        Fitted; they must not change any more.
    dtype : torch.dtype
        Type of the numbers.

    Examples
    --------
    >>> import torch
    >>> from skest.feature_columns import FeatureColumns, numeric_column
    >>> from skest.feature_columns.encoding import Encoding
    >>> Encoding(FeatureColumns([numeric_column("x")]), torch.float64)({"x": [1, 2]})
    {'x': tensor([[1.],
            [2.]], dtype=torch.float64)}
    """

    def __init__(self, columns: FeatureColumns, dtype: torch.dtype) -> None:
        self.columns = columns
        self.dtype = dtype

    def __call__(self, features: Any) -> dict[str, Tensor]:
        """Return what `FeatureColumns.encode` does."""
        return self.columns.encode(features, self.dtype)

    def arithmetic(self) -> "Arithmetic | None":
        """Return the same for finite numbers, or None if there is more to it."""
        # For single rows, whose encoding takes about as long as the network: recorded
        # with it, a linear model answers in 79 µs instead of 108, a network of 20 columns
        # in 1.4 ms instead of 1.7.
        steps = [_step_of(column) for column in self.columns.active]
        known = [step for step in steps if step is not None]
        return Arithmetic(known, self.dtype) if len(known) == len(steps) else None


class _Step(NamedTuple):
    """How a numeric column encodes finite numbers."""

    key: Any
    encoded_key: str
    n_elements: int
    dtype: torch.dtype
    center: Tensor | None
    scale: Tensor | None
    limit: Tensor | None
    n_indicators: int


def _step_of(column: Any) -> _Step | None:
    # Of a class of its own, a column may compute what it likes.
    if type(column) not in (NumericColumn, NumericFrameColumn):
        return None
    dtype = np.dtype(column.dtype)
    if dtype not in _FLOATS or column.normalizer not in _SCALED:
        return None
    center = scale = limit = None
    if column.normalizer is not None:
        # What is missing is said by the column, where it encodes.
        if not column.__sklearn_is_fitted__():
            return None
        center = torch.from_numpy(column.center_.astype(dtype))
        scale = torch.from_numpy(column.scale_.astype(dtype))
        if "limit_" in vars(column):
            limit = torch.from_numpy(column.limit_.astype(dtype))
    return _Step(
        column.key,
        column.encoded_key,
        column.n_elements,
        torch.float64 if dtype == np.float64 else torch.float32,
        center,
        scale,
        limit,
        len(column.indicated),
    )


class Arithmetic:
    """Encodes finite numbers with operations on tensors only, so that it can be recorded.

    Its numbers are those of `FeatureColumns.encode`, bit for bit.
    """

    def __init__(self, steps: list[_Step], dtype: torch.dtype) -> None:
        self._steps = steps
        self._sizes = [(step.key, step.n_elements) for step in steps]
        self._dtype = dtype

    def tensors(self, features: Any) -> dict[Any, Tensor] | None:
        """Return the cells of the columns as tensors, or None unless all are floats.

        They share the memory of the arrays.
        """
        if not isinstance(features, dict):
            return None
        found = {}
        for key, size in self._sizes:
            cells = features.get(key)
            if (
                type(cells) is not np.ndarray
                or cells.dtype not in _FLOATS
                or cells.size != cells.shape[0] * size
                or not cells.flags.carray  # torch refuses or warns of others
            ):
                return None
            found[key] = torch.from_numpy(cells)
        return found

    def __call__(self, tensors: Mapping[Any, Tensor]) -> dict[str, Tensor]:
        """Return the encoded columns; an infinite number or a NaN stays one."""
        return {step.encoded_key: self._encoded(step, tensors) for step in self._steps}

    def _encoded(self, step: _Step, tensors: Mapping[Any, Tensor]) -> Tensor:
        raw = tensors[step.key]
        if raw.ndim != 2:
            raw = raw.reshape(-1, step.n_elements)
        # The first operation copies: a network may change its input in place.
        if step.center is None or step.scale is None or raw.dtype != step.dtype:
            raw = raw.to(step.dtype, copy=True)
        if step.center is not None and step.scale is not None:
            raw = (raw - step.center) / step.scale
        if step.limit is not None:
            # What is infinite becomes NaN rather than the limit.
            raw = raw.clamp(-step.limit, step.limit) + (raw - raw)
        if step.n_indicators:
            raw = torch.cat([raw, raw.new_zeros(len(raw), step.n_indicators)], dim=1)
        return raw.to(self._dtype)


class PartsEncoding:
    """Encodes the features of a model for each of its parts.

    Parameters
    ----------
    parts : dict of str to FeatureColumns or None
        Fitted columns by the name of the part; they must not change any more. A part
        that has none is left out.
    dtype : torch.dtype
        Type of the numbers.

    Examples
    --------
    >>> import torch
    >>> from skest.feature_columns import FeatureColumns, numeric_column
    >>> from skest.feature_columns.encoding import PartsEncoding
    >>> columns = FeatureColumns([numeric_column("x")])
    >>> PartsEncoding({"linear": columns, "dnn": None}, torch.float32)({"x": [1, 2]})
    {'linear': {'x': tensor([[1.],
            [2.]])}}
    """

    def __init__(
        self, parts: Mapping[str, FeatureColumns | None], dtype: torch.dtype
    ) -> None:
        self.parts = {name: own for name, own in parts.items() if own is not None}
        self.dtype = dtype

    def __call__(self, features: Any) -> dict[str, dict[str, Tensor]]:
        """Return what `FeatureColumns.encode` does, by part."""
        table = Table(features)  # looks up every distinct string once for all parts
        encoded = {
            name: columns.encode(table, self.dtype)
            for name, columns in self.parts.items()
        }
        shared: dict[str, Tensor] = {}
        for part in encoded.values():
            for key, tensor in part.items():
                first = shared.setdefault(key, tensor)
                # One tensor for all, so that rows are taken once and looked up once.
                if first.dtype == tensor.dtype and torch.equal(first, tensor):
                    part[key] = first
        return encoded
