# SPDX-License-Identifier: Apache-2.0
"""Plain data, as `skest.plain_state` gives it, to JSON and back.

What JSON lacks, as tuples and arrays, is a mapping with a kind.
"""

import base64
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from skest.exceptions import ExportError

__all__ = ["KIND", "containers_in", "descriptions_in", "from_json", "to_json"]

#: Key of the kind, as in `skest.plain_state`, whose descriptions are what is written here.
KIND = "__skest__"
_AS_THEY_ARE = {str, bool, int, type(None)}
_CONTAINERS = (dict, list, tuple, set)


def descriptions_in(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the mappings with a kind that plain data consist of, outer ones first.

    Vocabularies, which are most of what there is, are passed over quickly.

    Examples
    --------
    >>> from skest.export.plain_json import KIND, descriptions_in
    >>> inner = {KIND: "dict", "items": []}
    >>> plain = {"sizes": (8, 4), "state": {KIND: "path", "of": [inner]}}
    >>> [description[KIND] for description in descriptions_in(plain)]
    ['path', 'dict']
    """
    if isinstance(value, dict) and KIND in value:
        yield value
    for part in containers_in(value):
        yield from descriptions_in(part)


def containers_in(value: Any) -> list[Any]:
    """Return the containers that are items of plain data, if it is a container.

    Examples
    --------
    >>> from skest.export.plain_json import containers_in
    >>> containers_in({"sizes": (8, 4), "words": ["a", "b"], "n": 2})
    [(8, 4), ['a', 'b']]
    """
    if not isinstance(value, _CONTAINERS):
        return []
    items = value.values() if isinstance(value, dict) else value
    if _AS_THEY_ARE.issuperset(map(type, items)):
        return []
    return [item for item in items if isinstance(item, _CONTAINERS)]


def to_json(value: Any, where: str) -> Any:
    """Return plain data as what JSON can hold.

    Parameters
    ----------
    value : object
        Containers, numbers, strings and arrays.
    where : str
        What it is, for errors.

    Returns
    -------
    object
        Dictionaries, lists, strings and numbers.

    Raises
    ------
    ExportError
        If a part of it is no plain data.

    Examples
    --------
    >>> from skest.export.plain_json import from_json, to_json
    >>> to_json({"sizes": (8, 4)}, "params")
    {'sizes': {'__skest__': 'tuple', 'items': [8, 4]}}
    >>> from_json(to_json({"sizes": (8, 4)}, "params"))
    {'sizes': (8, 4)}
    """
    if type(value) in _AS_THEY_ARE:
        return value
    if type(value) is float:
        return value if np.isfinite(value) else {KIND: "float", "value": repr(value)}
    if type(value) is list:
        if _AS_THEY_ARE.issuperset(map(type, value)):
            return value  # such as a vocabulary, which may be long
        return [to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if type(value) in (tuple, set):
        items = [to_json(item, f"{where}[{i}]") for i, item in enumerate(value)]
        return {KIND: type(value).__name__, "items": items}
    if type(value) is dict:
        if _AS_THEY_ARE.issuperset(map(type, value.values())):
            return value  # such as the places of words
        return {key: to_json(item, f"{where}.{key}") for key, item in value.items()}
    if type(value) is bytes:
        return {KIND: "bytes", "base64": _encoded(value)}
    if isinstance(value, np.ndarray) and value.dtype == object:
        items = to_json(value.ravel().tolist(), where)
        return {KIND: "objects", "shape": value.shape, "items": items}
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        kind = "array" if isinstance(value, np.ndarray) else "scalar"
        array = np.ascontiguousarray(value)
        return {
            KIND: kind,
            "dtype": array.dtype.str,
            "shape": np.shape(value),
            "base64": _encoded(array.tobytes()),
        }
    raise ExportError(
        f"{where} is a {type(value).__name__}, which JSON can't describe: an estimator "
        "that uses it can't be made again from its export."
    )


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def from_json(value: Any) -> Any:
    """Return what `to_json` was given.

    Raises
    ------
    ValueError, TypeError, KeyError
        If it gives no such thing.
    """
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    read = _READERS.get(value.get(KIND, ""))
    if read is not None:
        return read(value)
    return {key: from_json(item) for key, item in value.items()}


def _read_objects(value: Mapping[str, Any]) -> Any:
    items = from_json(value["items"])
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(value["shape"])


def _read_array(value: Mapping[str, Any]) -> Any:
    dtype = np.dtype(value["dtype"])
    if dtype.hasobject:
        raise ValueError(f"an array has the dtype {dtype}")
    data = base64.b64decode(value["base64"], validate=True)
    return np.frombuffer(data, dtype).reshape(value["shape"]).copy()


_READERS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "float": lambda value: float(value["value"]),
    "tuple": lambda value: tuple(from_json(value["items"])),
    "set": lambda value: set(from_json(value["items"])),
    "bytes": lambda value: base64.b64decode(value["base64"], validate=True),
    "objects": _read_objects,
    "array": _read_array,
    "scalar": lambda value: _read_array(value)[()],
}
