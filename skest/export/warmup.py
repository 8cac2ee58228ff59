# SPDX-License-Identifier: Apache-2.0
"""Made-up rows that show whether an exported model works.

They travel with the model, so that any engine can test itself: for this reason they are no
rows of the training data.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from skest.export.graph import Graph
from skest.export.inputs import InputSpec

__all__ = ["looked_up", "looked_up_in_model", "synthetic_rows"]

_UNKNOWN = ("unknown word", "ünbekannt")
_WORDS_OF_A_FEATURE = 64
_LOOK_UP, _KEYS = "LabelEncoder", ("keys_strings", "keys_int64s")
_NO_INTEGER = int(np.iinfo(np.int64).min)


def synthetic_rows(
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
        Words and integers by input, see `looked_up`.
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


def looked_up(graph: Graph) -> dict[str, list[Any]]:
    """Return some of the words and integers that are looked up, by input."""
    return _few_of_each(
        (node.inputs[0], node.attributes.get(keys, ()))
        for node in graph.added
        if node.op == _LOOK_UP
        for keys in _KEYS
    )


def looked_up_in_model(model: Any) -> dict[str, list[Any]]:
    """Return the same for an ``onnx.ModelProto``."""
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
    may_miss = spec.missing is not None and spec.dtype != "int64"
    return None if may_miss and draw.random() < 0.1 else _value(spec, known, draw)


def _value(spec: InputSpec, known: Sequence[Any], draw: np.random.Generator) -> Any:
    if spec.dtype == "string":
        may_miss = spec.missing is not None
        words = [*(word for word in known if word or may_miss), *_UNKNOWN]
        return words[draw.integers(len(words))]
    if spec.dtype == "int64" or known:
        pool = known or [0, 1]
        return int(pool[int(draw.integers(len(pool)))])
    return float(np.float32(draw.normal()))
