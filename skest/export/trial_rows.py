# SPDX-License-Identifier: Apache-2.0
"""Rows to try an exported graph with: as JSON holds them, and as a model reads them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.exceptions import ExportError
from skest.export.inputs import InputSpec
from skest.export.raw_tables import columns_of
from skest.export.raw_values import Feature
from skest.export.warmup import synthetic_rows

__all__ = ["by_output", "cells_of", "made_up_rows", "rows_of"]


def made_up_rows(
    known: Mapping[str, Sequence[Any]],
    inputs: Sequence[InputSpec],
    predict: Callable[[dict[str, list[Any]]], Any],
    whole: Collection[str] = (),
    missing: Sequence[bool] = (True, False),
) -> tuple[dict[str, list[Any]], Any]:
    """Make rows that a model takes; return them, and what `predict` gives for them.

    What its columns want of each other, as a weight for each value, is not known here:
    rows that they refuse are followed by simpler ones.

    Parameters
    ----------
    known, inputs
        See `skest.export.warmup.synthetic_rows`.
    predict : callable
        Raises ValueError for rows that the model refuses.
    whole : collection of str, default=()
        Inputs whose numbers are whole.
    missing : sequence of bool, default=(True, False)
        Whether some values are missing, tried one after the other.

    Raises
    ------
    ExportError
        If the model takes none of the rows.
    """
    for length, gaps in product((None, 1), missing):
        rows = synthetic_rows(known, inputs, missing=gaps, whole=whole, length=length)
        try:
            return rows, predict(rows)
        except ValueError as error:
            refusal = error
    raise ExportError(
        "No rows could be made up to test the export with: the model refuses them, with "
        f"{str(refusal)!r} at last. Pass rows that it takes as 'example'."
    ) from refusal


def rows_of(example: Any, inputs: Sequence[InputSpec]) -> dict[str, list[Any]]:
    """Return rows of the user as the graph takes them, and JSON holds them."""
    parts = {spec.name: list(spec.names) for spec in inputs if spec.names}
    columns = columns_of(example, [spec.name for spec in inputs], parts)
    found = {}
    for spec in inputs:
        cells = Feature(spec.name, spec.to_json()).feed(columns[spec.name])
        absent = np.asarray((cells != cells) | (cells == spec.missing), bool)
        lengths = _lengths(~absent) if None in spec.shape[1:] else None
        if absent.any() and spec.dtype != "string":
            cells = cells.astype(object)
            cells[absent] = None
        rows = cells.tolist()
        if lengths is not None:
            rows = [row[:n] for row, n in zip(rows, lengths, strict=True)]
        if spec.delimiter is not None:
            rows = [spec.delimiter.join(row) for row in rows]
        found[spec.name] = rows
    return found


def _lengths(there: NDArray[np.bool_]) -> list[int]:
    """Return how many values cells have up to the last one that is there."""
    values = np.asarray(there.any(axis=tuple(range(2, there.ndim))))
    positions = np.arange(1, values.shape[1] + 1)
    lengths: list[int] = (values * positions).max(axis=1, initial=0).tolist()
    return lengths


def cells_of(spec: InputSpec, cells: list[Any]) -> Any:
    """Return cells as feature columns read them."""
    if spec.dtype.startswith("float") and None not in spec.shape[1:]:
        array = np.asarray(cells)  # whole numbers may be categories, too
        array = array.astype(np.float64) if array.dtype == object else array
        return array.reshape(len(cells), *spec.shape[1:])
    if spec.dtype == "int64" and spec.missing is None:
        return np.asarray(cells, np.int64).reshape(len(cells), *spec.shape[1:])
    array = np.empty(len(cells), object)
    array[:] = cells
    return array


def by_output(predictions: Mapping[Any, Any]) -> dict[str, Any]:
    """Return predictions by the names that the graph gives them."""
    return {
        "/".join(key) if isinstance(key, tuple) else key: values
        for key, values in predictions.items()
    }
