# SPDX-License-Identifier: Apache-2.0
"""Rows to try an exported graph with, as JSON holds them and as a model reads them.

They travel with the model, so that any engine can test itself: unless the user gives some,
they are made up, and no rows of the training data.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from skest.core.texts import joined_text
from skest.exceptions import ExportError
from skest.export.onnx.inputs import NO_INTEGER, InputSpec
from skest.export.raw_values import Feature, columns_of

_N_ROWS = 16
_N_WORDS = 64  # of a feature
# One of them is not ASCII: engines have to hash its UTF-8.
_UNKNOWN, _UNKNOWN_NUMBERS = ("unknown word", "ünbekannt"), ("-7", "0.5")
_POSITIVE = (0.5, 1.0, 3.0)  # of which there are logarithms


def looked_up_in_model(model: Any) -> dict[str, list[Any]]:
    """Return some of the words and integers that a graph looks up, by input."""
    found: dict[str, list[Any]] = {}
    for node in model.graph.node:
        for keys in node.attribute:
            if keys.name in ("keys_strings", "keys_int64s"):
                words = [word.decode() for word in keys.strings[:_N_WORDS]]
                # The least integer stands for none in graphs, and not in cells.
                words += [n for n in keys.ints[:_N_WORDS] if n != NO_INTEGER]
                found.setdefault(node.input[0], []).extend(words)
    return found


def made_up_rows(
    known: Mapping[str, Sequence[Any]],
    inputs: Sequence[InputSpec],
    predict: Callable[[dict[str, list[Any]]], Any],
) -> tuple[dict[str, list[Any]], Any]:
    """Make rows that a model takes; return them, and what `predict` gives for them.

    Words and integers are those that the model knows, with unknown and missing ones among
    them; numbers are drawn from a normal distribution. What columns want of each other is
    not known here. All lists of a row have one length, for weights must be as many as
    their values; rows that the model refuses even so are followed by simpler ones.

    Parameters
    ----------
    known : dict of str to sequence
        Words and integers by input, see `looked_up_in_model`; some numbers of others.
    inputs : sequence of InputSpec
        What the model takes.
    predict : callable
        Raises ValueError for rows that the model refuses.

    Returns
    -------
    dict of str to list
        Cells by the name of the input, as JSON can hold them; missing ones are None.
    object
        What `predict` gave.

    Raises
    ------
    ExportError
        If the model takes none of the rows.
    """
    # From rows of all kinds to the plainest, until the model takes them.
    for length, may_miss, is_plain in product((None, 1), (True, False), (False, True)):
        # The same rows at every export: one that fails can be told of and repeated.
        draw = np.random.default_rng(0)
        lengths = draw.integers(0, 4, _N_ROWS) if length is None else [1] * _N_ROWS
        rows = {}
        for spec in inputs:
            own = spec if may_miss else spec._replace(missing=None)
            words = known.get(spec.name, ())
            if is_plain:
                # Of integers the first are 0 and 1, which any identity column takes.
                is_any = spec.dtype.startswith("float") and not spec.integers_only
                words = words[:2] or (_POSITIVE if is_any else ())
            rows[spec.name] = [_cell(own, words, int(n), draw) for n in lengths]
        try:
            with np.errstate(divide="ignore", invalid="ignore"):
                return rows, predict(rows)
        except ValueError as error:
            refusal = error
    raise ExportError(
        "No rows could be made up to test the export with: the model refuses them, with "
        f"{str(refusal)!r} at last. Pass rows that it takes as 'example'."
    ) from refusal


def _cell(
    spec: InputSpec, known: Sequence[Any], length: int, draw: np.random.Generator
) -> Any:
    sizes = [size or 0 for size in spec.shape[1:]]
    if None not in spec.shape[1:]:
        return _values(spec, known, draw, sizes[1:] if sizes[:1] == [1] else sizes)
    # At the end of a sequence a missing value is a step in Python, padding here.
    there = spec._replace(missing=None)
    if spec.delimiter is None:
        each = [spec] * (length - 1) + [there] * (length > 0)
        return [_values(one, known, draw, sizes[1:]) for one in each]
    words = [str(_values(spec, known, draw, [])) for _ in range(length)]
    return joined_text(words, spec.delimiter) if words else None


def _values(
    spec: InputSpec, known: Sequence[Any], draw: np.random.Generator, sizes: list[int]
) -> Any:
    if sizes:
        return [_values(spec, known, draw, sizes[1:]) for _ in range(sizes[0])]
    may_miss = spec.missing is not None
    if spec.dtype == "string":
        others = _UNKNOWN_NUMBERS if spec.numbers_only else _UNKNOWN
        known = [*(word for word in known if word.strip() or may_miss), *others]
    elif spec.dtype == "int64" and spec.unit is None:
        known = known or [0, 1]
    # About two of sixteen: most rows show what present values give.
    elif may_miss and draw.random() < 0.1:
        return None
    elif spec.integers_only:
        known = known or [0, 1]
    if spec.unit is not None and not known:
        return int(draw.integers(-(2**50), 2**51))  # from 1934 to 2041
    if known:
        return known[int(draw.integers(len(known)))]
    # As float32 holds it: JSON has doubles, of which a graph would round the rest.
    return float(np.float32(draw.normal()))


def rows_of(example: Any, inputs: Sequence[InputSpec]) -> dict[str, list[Any]]:
    """Return rows of the user as the graph takes them, and JSON holds them."""
    parts = {spec.name: list(spec.names) for spec in inputs if spec.names}
    columns = columns_of(example, [spec.name for spec in inputs], parts)
    found = {}
    for spec in inputs:
        cells = Feature(spec.name, spec.to_json()).feed(columns[spec.name])
        absent = np.asarray((cells != cells) | (cells == spec.missing), bool)
        lengths = _lengths(~absent) if None in spec.shape[1:] else None
        # Feature columns take no floats of an array for categories.
        if spec.integers_only:
            cells = np.where(absent, 0, cells).astype(np.int64)
        if absent.any() and spec.dtype != "string":
            cells = cells.astype(object)
            cells[absent] = None
        rows = cells.tolist()
        if lengths is not None:
            rows = [row[:n] for row, n in zip(rows, lengths, strict=True)]
        if spec.delimiter is not None:
            rows = [joined_text(row, spec.delimiter) for row in rows]
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
    if spec.unit is not None:
        flat = np.asarray(cells, object).ravel()
        times = [spec.missing if cell is None else cell for cell in flat]
        dates = pd.Series(np.asarray(times, np.int64).view("datetime64[us]"))
        # Of UTC, no column says that it had a time zone in fit, or had none.
        return dates.dt.tz_localize("UTC")
    if spec.numbers_only:
        return np.asarray(cells, object).ravel()
    if spec.dtype.startswith("float") and None not in spec.shape[1:]:
        array = np.asarray(cells)  # whole numbers may be categories, too
        if array.dtype == object and not spec.integers_only:
            array = array.astype(np.float64)
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
