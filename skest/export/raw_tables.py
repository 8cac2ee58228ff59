# SPDX-License-Identifier: Apache-2.0
"""What callers give, as the inputs of an exported model.

Most inputs are a column of a table. A plain table of numbers is one input that has its
columns as parts: it is given whole, as a matrix, or by the names of all its columns.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["columns_of", "is_whole", "names_taken"]

Parts = Mapping[str, Sequence[str]]


def names_taken(names: Sequence[str], parts: Parts) -> dict[str, str]:
    """Return the names by which inputs are given, and which input each belongs to.

    Parameters
    ----------
    names : sequence of str
        The inputs.
    parts : dict of str to sequence of str
        Of inputs that are made of several columns: which ones.

    Examples
    --------
    >>> from skest.export.raw_tables import names_taken
    >>> names_taken(["city", "x"], {"x": ["age", "size"]})
    {'city': 'city', 'age': 'x', 'size': 'x'}
    """
    return {part: name for name in names for part in parts.get(name) or [name]}


def is_whole(name: str, parts: Parts, there: Collection[str]) -> bool:
    """Tell whether an input is given by its own name, not by those of its parts.

    A part may have the name of the input, as a column "x" of the matrix "x".
    """
    own = parts.get(name)
    return not own or (name in there and not set(own) & set(there) - {name})


def columns_of(
    table: Any, names: Sequence[str], parts: Parts | None = None
) -> dict[str, Any]:
    """Return the inputs that a table holds.

    Parameters
    ----------
    table : DataFrame, dict of columns, list of dicts, or ndarray
        The raw features of some rows. Columns are known by their names as strings. A
        matrix is taken if there is one input; so is a frame whose columns have but
        numbers for names.
    names : sequence of str
        The inputs to return; other columns are left alone.
    parts : dict of str to sequence of str, optional
        Of inputs that may be made of several columns: which ones.

    Returns
    -------
    dict of str to array-like
        The inputs by name.

    Raises
    ------
    TypeError
        If it is no table.
    ValueError
        If a column is missing.
    """
    parts = parts or {}
    if isinstance(table, Mapping):
        return _pick(names, parts, table, lambda key: table[key])
    if hasattr(table, "columns") and hasattr(table, "__getitem__"):
        if len(names) == 1 and _is_matrix(table, names[0], parts):
            return {names[0]: np.asarray(table)}
        return _pick(names, parts, table.columns, lambda key: table[key])
    if isinstance(table, np.ndarray) and len(names) == 1:
        return {names[0]: table}
    if isinstance(table, Sequence) and all(isinstance(row, Mapping) for row in table):
        first = table[0] if table else dict.fromkeys(names)
        taken = {*names, *names_taken(names, parts)}
        common = [key for key in first if str(key) in taken]
        for at, row in enumerate(table):
            absent = [key for key in common if key not in row]
            if absent:
                raise ValueError(f"Row {at} lacks the features {absent}.")
        return _pick(names, parts, first, lambda key: [row[key] for row in table])
    raise TypeError(
        "Give a DataFrame, a dict of columns, or a list of rows, each a dict; got "
        f"{type(table).__name__}."
    )


def _is_matrix(table: Any, name: str, parts: Parts) -> bool:
    """Tell whether a frame is an array whose columns were merely counted."""
    keys = list(table.columns)
    is_counted = bool(keys) and not any(isinstance(key, str) for key in keys)
    return is_counted and not {name, *parts.get(name, ())} & set(map(str, keys))


def _pick(
    names: Sequence[str], parts: Parts, keys: Any, column: Callable[[Any], Any]
) -> dict[str, Any]:
    key_of = {str(key): key for key in keys}
    found, absent = {}, []
    for name in names:
        whole = is_whole(name, parts, key_of)
        own = [name] if whole else parts[name]
        missing = [part for part in own if part not in key_of]
        if missing:
            absent += missing
        elif whole:
            found[name] = column(key_of[name])
        else:
            found[name] = _stacked({part: column(key_of[part]) for part in own})
    if absent:
        raise ValueError(
            f"The features {absent} are missing; the model takes "
            f"{list(names_taken(names, parts))}."
        )
    return found


def _stacked(columns: Mapping[str, Any]) -> NDArray[Any]:
    arrays = (np.asarray(values, dtype=object) for values in columns.values())
    cells = [a[:, 0] if a.ndim == 2 and a.shape[1] == 1 else a for a in arrays]
    shapes = {array.shape for array in cells}
    if len(shapes) > 1 or () in shapes:
        given = {part: array.shape for part, array in zip(columns, cells, strict=True)}
        raise ValueError(
            "The columns of a table must have one value for each row, and as many rows "
            f"each; got arrays of the shapes {given}."
        )
    return np.stack(cells, axis=1)
