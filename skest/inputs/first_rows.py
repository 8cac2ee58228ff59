# SPDX-License-Identifier: Apache-2.0
"""`first_rows`: a copy of a few rows, from which names, types and shapes can be read."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

__all__ = ["first_rows"]


def first_rows(data: Any, n_rows: int = 3) -> Any:
    """Return a copy of the first rows of a batch, which does not keep the batch alive.

    Parameters
    ----------
    data : array, Tensor, DataFrame, or dict or tuple of them
        Rows along the first dimension. None stays None.
    n_rows : int, default=3
        How many.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.inputs.first_rows import first_rows
    >>> first_rows({"x": np.arange(9)})
    {'x': array([0, 1, 2])}
    """
    if isinstance(data, Mapping):
        return {key: first_rows(value, n_rows) for key, value in data.items()}
    if isinstance(data, tuple):
        return tuple(first_rows(value, n_rows) for value in data)
    if isinstance(data, Tensor):
        return data[:n_rows].detach().cpu().clone()
    if data is None or not hasattr(data, "shape"):
        return data if data is None else data[:n_rows]
    few = data.iloc[:n_rows] if hasattr(data, "iloc") else data[:n_rows]
    return few.copy() if hasattr(few, "copy") else few
