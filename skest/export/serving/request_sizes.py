# SPDX-License-Identifier: Apache-2.0
"""How much memory a request would take, before it takes it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from skest.export.padded_sizes import cell_lengths, values_in_item
from skest.export.serving.errors import RequestError
from skest.export.serving.limits import Limits

__all__ = ["answer_numbers", "check_sizes"]

# One number for all rows, or one for each.
_Lengths: TypeAlias = int | NDArray[np.int64]
# Where numbers come out, beside the features of which they are made.
_ANSWER = ("<answer>", "")

# An engine holds a string, an empty one too, in as many bytes as so many numbers.
_IN_A_STRING = 4


# So many numbers of 32 bits a value of an answer takes: in a list, and twice as a text.
_IN_AN_ANSWER = 16


def answer_numbers(signatures: Mapping[str, Any], name: str) -> int:
    """Return how many numbers come out of a model for each row.

    An engine makes the outputs of all signatures; those of one are answered.

    Parameters
    ----------
    signatures : dict
        As the manifest describes them.
    name : str
        The one that is asked for.

    Examples
    --------
    >>> from skest.export.serving.request_sizes import answer_numbers
    >>> scores = {"tensor": "p", "dtype": "float32", "shape": [None, 5]}
    >>> answer_numbers({"a": {"outputs": {"scores": scores}}}, "a")
    85
    """
    outputs = [o for s in signatures.values() for o in s["outputs"].values()]
    made = {o["tensor"]: _numbers_in_row(o) for o in outputs}
    answered = signatures[name]["outputs"].values()
    return sum(made.values()) + _IN_AN_ANSWER * sum(map(_values_in_row, answered))


def check_sizes(
    columns: Mapping[str, Any],
    features: Mapping[str, Mapping[str, Any]],
    widths: Sequence[Mapping[str, Any]],
    limits: Limits,
    answer: int = 0,
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
    answer : int, default=0
        How many numbers come out for each row, see `answer_numbers`.

    Raises
    ------
    RequestError
        413 if it is too much.
    """
    # What is no list of rows, the model refuses.
    there = {n: c for n, c in columns.items() if isinstance(c, list | np.ndarray)}
    n_rows = max(map(len, there.values()), default=0)
    if n_rows > limits.max_rows:
        name = next(name for name, cells in there.items() if len(cells) == n_rows)
        raise RequestError(
            413, f"{name!r} has {n_rows} rows; at most {limits.max_rows} are taken."
        )
    lengths = {
        name: _lengths(name, cells, features[name], limits)
        for name, cells in there.items()
    }
    longest = {
        name: each if isinstance(each, int) else int(each.max(initial=0))
        for name, each in lengths.items()
    }
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
        for name, each in lengths.items()
        if not isinstance(each, int)
    }
    # Of those that are gone before others are made, the most that there are at once.
    passing, passing_of = 0, tuple[str, ...]()
    for width in widths:
        names: tuple[str, ...] = tuple(width["of"])
        made = _made(width, n_rows, [lengths[n] for n in names if n in lengths])
        if not width.get("transient"):
            numbers[names] = numbers.get(names, 0) + made
        elif made > passing:
            passing, passing_of = made, names
    numbers[passing_of] = numbers.get(passing_of, 0) + passing
    numbers[_ANSWER] = n_rows * answer
    total = sum(numbers.values())
    if total > limits.max_numbers:
        most, _ = max(numbers.items(), key=lambda item: item[1])
        part = "in the answer" if most == _ANSWER else f"of {list(most)}"
        raise RequestError(
            413,
            f"The network would make {total} numbers of the {n_rows} rows, the largest "
            f"part {part}; at most {limits.max_numbers} are taken. Send fewer rows.",
        )


def _numbers_in_item(feature: Mapping[str, Any]) -> int:
    """Return as how many numbers an item of a list counts."""
    return values_in_item(feature) * _weight(feature)


def _numbers_in_row(tensor: Mapping[str, Any]) -> int:
    return _values_in_row(tensor) * _weight(tensor)


def _values_in_row(tensor: Mapping[str, Any]) -> int:
    return math.prod(size or 1 for size in tensor["shape"][1:])


def _weight(tensor: Mapping[str, Any]) -> int:
    return _IN_A_STRING if tensor["dtype"] == "string" else 1


def _made(width: Mapping[str, Any], n_rows: int, lengths: Sequence[_Lengths]) -> int:
    """Return how many numbers are made of features."""
    per_row, per_value, per_place = (width.get(k, 0) for k in ("row", "value", "place"))
    made: int = n_rows * per_row
    if not (per_value or per_place):
        return made
    always = math.prod(each for each in lengths if isinstance(each, int))
    lists = [each for each in lengths if not isinstance(each, int)]
    places = always * math.prod(int(of_rows.max(initial=0)) for of_rows in lists)
    made += n_rows * places * per_place
    # Of different numbers of rows the model says what is wrong.
    if per_value and len(set(map(len, lists))) <= 1:
        each_row = np.ones(len(lists[0]) if lists else n_rows)
        for of_rows in lists:
            each_row *= of_rows
        made += int(each_row.sum()) * always * per_value
    return made


def _lengths(
    name: str, cells: Any, feature: Mapping[str, Any], limits: Limits
) -> _Lengths:
    """Return how many values each row has."""
    if None not in feature["shape"][1:]:
        return math.prod(feature["shape"][1:])
    n_rows = len(cells)
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
