# SPDX-License-Identifier: Apache-2.0
"""How much memory a request would take, before it takes it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.export.padded_sizes import cell_lengths, values_in_item
from skest.export.serving.errors import RequestError
from skest.export.serving.limits import Limits

__all__ = ["check_sizes"]

# An engine holds a string, an empty one too, in as many bytes as so many numbers.
_IN_A_STRING = 4


def check_sizes(
    columns: Mapping[str, Any],
    features: Mapping[str, Mapping[str, Any]],
    widths: Sequence[Mapping[str, Any]],
    limits: Limits,
) -> None:
    """Refuse a request that is small and would become large.

    Parameters
    ----------
    columns : dict of str to array-like
        Raw values by feature.
    features : dict of dict
        What the manifest says of them.
    widths : sequence of dict
        How many numbers the network makes of them, see `skest.export.widths.widths`.
    limits : Limits
        What is taken.

    Raises
    ------
    RequestError
        413 if it is too much.
    """
    # What is no list of rows, the model refuses.
    there = {n: c for n, c in columns.items() if isinstance(c, list | np.ndarray)}
    lengths = {n: _lengths(n, c, features[n], limits) for n, c in there.items()}
    n_rows = max(map(len, there.values()), default=0)
    longest = {name: int(of_rows.max(initial=0)) for name, of_rows in lengths.items()}
    for crossed in (c for n in there for c in features[n].get("crossed", ())):
        values = n_rows * math.prod(longest.get(n, 1) for n in crossed)
        if values > limits.max_cells:
            raise RequestError(
                413,
                f"{crossed} are crossed, each value of a row with each, and would give "
                f"{values} values; at most {limits.max_cells} are taken.",
            )
    numbers: dict[tuple[str, ...], int] = {
        (name,): n_rows * longest[name] * _numbers_in_item(features[name])
        for name in lengths
        if None in features[name]["shape"][1:]
    }
    # Of those that are gone before others are made, the most that there are at once.
    passing, passing_of = 0, tuple[str, ...]()
    for width in widths:
        names: tuple[str, ...] = tuple(width["of"])
        each = [lengths[name] for name in names if name in lengths]
        made = _made(width, n_rows, each)
        if not width.get("transient"):
            numbers[names] = numbers.get(names, 0) + made
        elif made > passing:
            passing, passing_of = made, names
    numbers[passing_of] = numbers.get(passing_of, 0) + passing
    total = sum(numbers.values())
    if total > limits.max_numbers:
        most, _ = max(numbers.items(), key=lambda item: item[1])
        raise RequestError(
            413,
            f"The network would make {total} numbers of the {n_rows} rows, the largest "
            f"part of {list(most)}; at most {limits.max_numbers} are taken.",
        )


def _numbers_in_item(feature: Mapping[str, Any]) -> int:
    """Return as how many numbers an item of a list counts."""
    return values_in_item(feature) * (
        _IN_A_STRING if feature["dtype"] == "string" else 1
    )


def _made(
    width: Mapping[str, Any], n_rows: int, lengths: Sequence[NDArray[np.int64]]
) -> int:
    """Return how many numbers are made of features."""
    per_row, per_value, per_place = (width.get(k, 0) for k in ("row", "value", "place"))
    made = n_rows * per_row
    if per_place:
        places = math.prod(int(of_rows.max(initial=0)) for of_rows in lengths)
        made += n_rows * places * per_place
    # Of different numbers of rows the model says what is wrong.
    if per_value and len(set(map(len, lengths))) <= 1:
        each_row = np.ones(len(lengths[0]) if lengths else n_rows)
        for of_rows in lengths:
            each_row *= of_rows
        made += int(each_row.sum()) * per_value
    return made


def _lengths(
    name: str, cells: Any, feature: Mapping[str, Any], limits: Limits
) -> NDArray[np.int64]:
    """Return how many values each row has."""
    n_rows = len(cells)
    if n_rows > limits.max_rows:
        raise RequestError(
            413, f"{name!r} has {n_rows} rows; at most {limits.max_rows} are taken."
        )
    if None not in feature["shape"][1:]:
        return np.full(n_rows, math.prod(feature["shape"][1:]))
    lengths = cell_lengths(cells, feature)
    longest, size = int(lengths.max(initial=0)), values_in_item(feature)
    if n_rows * longest * size > limits.max_cells:
        items = "values" if size == 1 else f"vectors of {size} values"
        raise RequestError(
            413,
            f"{name!r} has {n_rows} rows of up to {longest} {items}; at most "
            f"{limits.max_cells} values are taken.",
        )
    return lengths
