# SPDX-License-Identifier: Apache-2.0
"""Rows to try an exported graph with: as JSON holds them, and as a model reads them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

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
) -> dict[str, list[Any]]:
    """Make rows that a model takes.

    Parameters
    ----------
    known, inputs
        See `skest.export.warmup.synthetic_rows`.
    predict : callable
        Raises ValueError for rows with missing values if they must have none.
    whole : collection of str, default=()
        Inputs whose numbers are whole.
    """
    rows = synthetic_rows(known, inputs, whole=whole)
    try:
        predict(rows)
    except ValueError:  # one of its columns takes no missing values
        return synthetic_rows(known, inputs, missing=False, whole=whole)
    return rows


def rows_of(example: Any, inputs: Sequence[InputSpec]) -> dict[str, list[Any]]:
    """Return rows of the user as the graph takes them, and JSON holds them."""
    parts = {spec.name: list(spec.names) for spec in inputs if spec.names}
    columns = columns_of(example, [spec.name for spec in inputs], parts)
    found = {}
    for spec in inputs:
        cells = Feature(spec.name, spec.to_json()).feed(columns[spec.name])
        missing = cells != cells
        if missing.any():
            cells = cells.astype(object)
            cells[missing] = None
        found[spec.name] = cells.tolist()
    return found


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
