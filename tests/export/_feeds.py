# SPDX-License-Identifier: Apache-2.0
"""Raw columns as what an exported graph takes."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from skest.export.onnx.inputs import InputSpec
from skest.feature_columns.categorical import check_kind
from skest.feature_columns.cells import numbers
from skest.feature_columns.ragged import pad
from skest.feature_columns.table import Table

__all__ = ["feeds"]


def feeds(inputs: Iterable[InputSpec], X: Any) -> dict[str, np.ndarray]:
    """Return raw columns as what an exported graph takes.

    It reads them as feature columns do: of any kind of table, with None, NaN and
    pandas.NA for missing values, lists or strings to be split.

    Parameters
    ----------
    inputs : iterable of InputSpec
        What the graph takes.
    X : DataFrame, dict of arrays or array of shape (n_rows, n_features)
        Raw data; see `skest.feature_columns.table.Table`.

    Returns
    -------
    dict of str to ndarray
        Arrays by the name of the input; strings as objects.

    Raises
    ------
    ValueError, TypeError
        If a column is missing, its cells are of another kind, or a number is infinite
        or missing where none may be.

    Examples
    --------
    >>> from tests.export._feeds import feeds
    >>> from skest.export.onnx.inputs import InputSpec
    >>> tags = InputSpec("tags", "tags", "string", (None, None), "", delimiter="|")
    >>> feeds([tags], {"tags": ["a|b", None]})["tags"]
    array([['a', 'b'],
           ['', '']], dtype=object)
    """
    table = Table(X)
    return {spec.name: _feed(spec, table) for spec in inputs}


def _feed(spec: InputSpec, table: Table) -> np.ndarray:
    if spec.dtype in ("string", "int64") and spec.missing is not None:
        return _categories(spec, table)
    values = _numbers(spec, table)
    _check_numbers(values, spec)
    values = values.astype(spec.dtype)
    # Single numbers get an axis of their own.
    inner = [-1 if size is None else size for size in spec.shape[1:]]
    return values.reshape(len(values), *inner)


def _categories(spec: InputSpec, table: Table) -> np.ndarray:
    cells = table.factorized(spec.key, spec.delimiter)
    check_kind(cells, spec.dtype, f"the exported input {spec.name!r}")
    dtype = object if spec.dtype == "string" else np.int64
    values = np.append(cells.distinct, np.array([spec.missing], dtype)).astype(dtype)
    return values[cells.codes].reshape(table.n_rows, -1)


def _check_numbers(values: np.ndarray, spec: InputSpec) -> None:
    """Raise ValueError for what feature columns refuse and a graph cannot."""
    if values.dtype.kind != "f":
        return
    if np.isinf(values).any():
        raise ValueError(
            f"Column {spec.key!r} holds infinity (inf), which is never allowed. Replace "
            "it by a number."
        )
    if spec.missing is None and np.isnan(values).any():
        raise ValueError(
            f"Column {spec.key!r} holds NaN (a missing number), and its feature column "
            "has no value to fill in. Replace it by a number."
        )


def _numbers(spec: InputSpec, table: Table) -> np.ndarray:
    """Return numbers; sequences and lists padded with NaN."""
    if spec.names is not None and spec.key not in table.keys:
        if set(spec.names).issubset(table.keys):
            return np.column_stack([table.numbers(name) for name in spec.names])
    if table.holds_sparse(spec.key):
        return table.sparse(spec.key).toarray()
    flat = table.flat(spec.key)
    if flat is None or None not in spec.shape[1:]:
        return table.numbers(spec.key)
    values = numbers(flat.values, spec.key).astype(np.float64)
    return pad(values, flat.lengths, np.nan)
