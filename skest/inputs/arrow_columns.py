# SPDX-License-Identifier: Apache-2.0
"""Columns of Arrow as the arrays that feature columns and tensors are made of."""

from typing import Any

import numpy as np
import pandas as pd

__all__ = ["as_numpy", "import_arrow"]


def import_arrow(what: str) -> Any:
    """Return pyarrow, which only streaming needs.

    Raises
    ------
    ImportError
        If it is not installed, with the command that does it.
    """
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.dataset
    except ImportError as error:
        raise ImportError(
            f"{what} needs pyarrow. Install it with: pip install pyarrow"
        ) from error
    return pyarrow


def as_numpy(column: Any, name: str) -> Any:
    """Return a column as an array, with the gaps of each type as feature columns read them.

    Parameters
    ----------
    column : pyarrow.ChunkedArray
        The column; a dictionary is decoded.
    name : str
        Its name, for messages.

    Returns
    -------
    ndarray or pandas array
        Floats with NaN; integers and Booleans, as a masked array of pandas if there are
        gaps; strings and bytes as objects with None; datetime64; lists as an array of
        arrays, or of shape (n_rows, n_values) if the type fixes their length.

    Raises
    ------
    TypeError
        If the column is of another type.
    """
    import pyarrow as pa
    from pyarrow import types

    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if types.is_decimal(kind):
        column = column.cast(pa.float64())
    elif types.is_integer(kind) or types.is_boolean(kind):
        return _masked(column) if column.null_count else column.to_numpy()
    elif types.is_fixed_size_list(kind) and not column.null_count:
        values = as_numpy(pa.chunked_array([column.combine_chunks().flatten()]), name)
        return values.reshape(len(column), kind.list_size)
    elif types.is_time(kind) or (types.is_nested(kind) and not _is_list(types, kind)):
        raise TypeError(
            f"Column {name!r} has the type {kind}, which no feature column reads. Leave it "
            "out with 'columns', or write its parts as columns of their own."
        )
    return column.to_numpy()


def _is_list(types: Any, kind: Any) -> bool:
    return (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    )


def _masked(column: Any) -> pd.api.extensions.ExtensionArray:
    """Return integers or Booleans with gaps; not as floats, which change large ones."""
    missing = np.asarray(column.is_null().to_numpy(), dtype=bool)
    if column.type == "bool":
        values = column.fill_null(False).to_numpy().astype(bool)
        return pd.arrays.BooleanArray(values, missing)
    return pd.arrays.IntegerArray(column.fill_null(0).to_numpy().copy(), missing)
