# SPDX-License-Identifier: Apache-2.0
"""Made-up rows that show whether an exported model works.

They travel with the model, so that any engine can test itself: for this reason they are no
rows of the training data.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from skest.export.inputs import InputSpec

__all__ = ["synthetic_rows"]

_UNKNOWN = ("unknown word", "ünbekannt")
_WORDS_OF_A_FEATURE = 64
_NO_INTEGER = int(np.iinfo(np.int64).min)


def synthetic_rows(
    model: Any,
    inputs: Sequence[InputSpec],
    n_rows: int = 16,
    seed: int = 0,
    missing: bool = True,
    whole: Collection[str] = (),
) -> dict[str, list[Any]]:
    """Make rows that a model takes.

    Words and integers are those that the graph looks up, with unknown and missing ones
    among them; numbers are drawn from a normal distribution.

    Parameters
    ----------
    model : onnx.ModelProto
        The graph.
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

    Returns
    -------
    dict of str to list
        Cells by the name of the input, as JSON can hold them; missing ones are None.
    """
    draw = np.random.default_rng(seed)
    known = _looked_up(model)
    if not missing:
        inputs = [spec._replace(missing=None) for spec in inputs]
    for name in whole:
        known.setdefault(name, [*range(10)])
    return {
        spec.name: [_cell(spec, known.get(spec.name, []), draw) for _ in range(n_rows)]
        for spec in inputs
    }


def _looked_up(model: Any) -> dict[str, list[Any]]:
    """Return some of the words and integers that are looked up, by input."""
    found: dict[str, list[Any]] = {}
    for node in model.graph.node:
        if node.op_type == "LabelEncoder":
            for attribute in node.attribute:
                if attribute.name == "keys_strings":
                    keys = attribute.strings[:_WORDS_OF_A_FEATURE]
                    found.setdefault(node.input[0], []).extend(k.decode() for k in keys)
                elif attribute.name == "keys_int64s":
                    # The least integer stands for none in graphs, and not in cells.
                    keys = [key for key in attribute.ints if key != _NO_INTEGER]
                    keys = keys[:_WORDS_OF_A_FEATURE]
                    found.setdefault(node.input[0], []).extend(keys)
    return found


def _cell(spec: InputSpec, known: list[Any], draw: np.random.Generator) -> Any:
    if None not in spec.shape[1:]:
        sizes = [size or 0 for size in spec.shape[1:]]
        return _values(spec, known, draw, sizes[1:] if sizes[:1] == [1] else sizes)
    length = int(draw.integers(0, 4))
    if spec.delimiter is None:
        inner = [size or 0 for size in spec.shape[2:]]
        values = [_values(spec, known, draw, inner) for _ in range(length)]
        # At the end of a sequence a missing value is a step in Python, padding here.
        while values and values[-1] in (None, ""):
            values.pop()
        return values
    words = [str(_value(spec, known, draw)) for _ in range(length)]
    return spec.delimiter.join(words) if words else None


def _values(
    spec: InputSpec, known: list[Any], draw: np.random.Generator, sizes: list[int]
) -> Any:
    if sizes:
        return [_values(spec, known, draw, sizes[1:]) for _ in range(sizes[0])]
    may_miss = spec.missing is not None and spec.dtype != "int64"
    return None if may_miss and draw.random() < 0.1 else _value(spec, known, draw)


def _value(spec: InputSpec, known: list[Any], draw: np.random.Generator) -> Any:
    if spec.dtype == "string":
        pool = [*known, *_UNKNOWN]
        return pool[draw.integers(len(pool))]
    if spec.dtype == "int64" or known:
        pool = known or [0, 1]
        return int(pool[draw.integers(len(pool))])
    return float(np.float32(draw.normal()))
