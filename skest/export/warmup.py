# SPDX-License-Identifier: Apache-2.0
"""Rows to try an exported graph with, as JSON holds them and as a model reads them.

They travel with the model, so that any engine can test itself: unless the user gives some,
they are made up, and no rows of the training data.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.exceptions import ExportError
from skest.export.onnx.inputs import InputSpec
from skest.export.raw_values import Feature, columns_of

_UNKNOWN = ("unknown word", "ünbekannt")
_WORDS_OF_A_FEATURE = 64
_LOOK_UP, _KEYS = "LabelEncoder", ("keys_strings", "keys_int64s")
_NO_INTEGER = int(np.iinfo(np.int64).min)


def _synthetic_rows(
    known: Mapping[str, Sequence[Any]],
    inputs: Sequence[InputSpec],
    n_rows: int = 16,
    seed: int = 0,
    missing: bool = True,
    whole: Collection[str] = (),
    length: int | None = None,
) -> dict[str, list[Any]]:
    """Make rows that a model takes.

    Words and integers are those that the model knows, with unknown and missing ones
    among them; numbers are drawn from a normal distribution.

    Parameters
    ----------
    known : dict of str to sequence
        Words and integers by input, see `looked_up_in_model`.
    inputs : sequence of InputSpec
        What it takes.
    n_rows : int, default=16
        How many rows.
    seed : int, default=0
        Of the draws.
    missing : bool, default=True
        Whether some values are missing.
    whole : collection of str, default=()
        Inputs whose numbers are whole.
    length : int, optional
        How many values a cell has where that is free. By default each row has a length
        of its own, which all its cells have: weights must be as many as their values,
        and sequences beside each other have the same steps.

    Returns
    -------
    dict of str to list
        Cells by the name of the input, as JSON can hold them; missing ones are None.
    """
    draw = np.random.default_rng(seed)
    known = {**dict.fromkeys(whole, range(10)), **known}
    if not missing:
        inputs = [spec._replace(missing=None) for spec in inputs]
    lengths = draw.integers(0, 4, n_rows).tolist()
    if length is not None:
        lengths = [length] * n_rows
    return {
        spec.name: [_cell(spec, known.get(spec.name, []), n, draw) for n in lengths]
        for spec in inputs
    }


def looked_up_in_model(model: Any) -> dict[str, list[Any]]:
    """Return some of the words and integers that a graph looks up, by input."""
    return _few_of_each(
        (node.input[0], map(bytes.decode, attribute.strings))
        if attribute.name == "keys_strings"
        else (node.input[0], attribute.ints)
        for node in model.graph.node
        if node.op_type == _LOOK_UP
        for attribute in node.attribute
        if attribute.name in _KEYS
    )


def _few_of_each(keys: Iterable[tuple[str, Iterable[Any]]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, values in keys:
        # The least integer stands for none in graphs, and not in cells.
        own = (value for value in values if value != _NO_INTEGER)
        found.setdefault(name, []).extend(islice(own, _WORDS_OF_A_FEATURE))
    return found


def _cell(
    spec: InputSpec, known: Sequence[Any], length: int, draw: np.random.Generator
) -> Any:
    if None not in spec.shape[1:]:
        sizes = [size or 0 for size in spec.shape[1:]]
        return _values(spec, known, draw, sizes[1:] if sizes[:1] == [1] else sizes)
    if spec.delimiter is None:
        inner = [size or 0 for size in spec.shape[2:]]
        # At the end of a sequence a missing value is a step in Python, padding here.
        there = spec._replace(missing=None)
        each = [spec] * (length - 1) + [there] * (length > 0)
        return [_values(one, known, draw, inner) for one in each]
    words = [str(_value(spec, known, draw)) for _ in range(length)]
    return spec.delimiter.join(words) if words else None


def _values(
    spec: InputSpec, known: Sequence[Any], draw: np.random.Generator, sizes: list[int]
) -> Any:
    if sizes:
        return [_values(spec, known, draw, sizes[1:]) for _ in range(sizes[0])]
    is_integer = spec.dtype == "int64" and spec.unit is None
    may_miss = spec.missing is not None and not is_integer
    return None if may_miss and draw.random() < 0.1 else _value(spec, known, draw)


def _value(spec: InputSpec, known: Sequence[Any], draw: np.random.Generator) -> Any:
    if spec.dtype == "string":
        may_miss = spec.missing is not None
        words = [*(word for word in known if word or may_miss), *_UNKNOWN]
        return words[draw.integers(len(words))]
    if spec.unit is not None:
        return int(draw.integers(-(2**50), 2**51))  # from 1934 to 2041
    if spec.dtype == "int64" or known:
        pool = known or [0, 1]
        return int(pool[int(draw.integers(len(pool)))])
    return float(np.float32(draw.normal()))


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
        See `_synthetic_rows`.
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
        rows = _synthetic_rows(known, inputs, missing=gaps, whole=whole, length=length)
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
    if spec.unit is not None:
        flat = np.asarray(cells, object).ravel()
        times = [spec.missing if cell is None else cell for cell in flat]
        return np.asarray(times, np.int64).view("datetime64[us]")
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
