# SPDX-License-Identifier: Apache-2.0
"""Plain data, as `skest.plain_state` gives it, to JSON and back.

What JSON lacks, as tuples and arrays, is a mapping with a kind.
"""

import base64
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from json.encoder import encode_basestring
from typing import Any

import numpy as np

from skest.exceptions import ExportError

__all__ = [
    "KIND",
    "containers_in",
    "descriptions_in",
    "from_json",
    "to_json",
    "to_text",
]

#: Key of the kind, as in `skest.plain_state`, whose descriptions are what is written here.
KIND = "__skest__"
_AS_THEY_ARE = {str, bool, int, type(None)}
_CONTAINERS = (dict, list, tuple, set)
_LONG = 100  # items: a text of their own is worth its while from here on
_dumped = partial(json.dumps, allow_nan=False, ensure_ascii=False)


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
    return _Writer().write(value, where)


def to_text(value: Any, where: str) -> tuple[str, list[dict[str, Any]]]:
    """Return plain data as the text of JSON, and the `descriptions_in` them.

    The text is that of `to_json`, by one walk, and words that stand in several places are
    looked at once.

    Parameters
    ----------
    value : object
        Containers, numbers, strings and arrays.
    where : str
        What it is, for errors.

    Raises
    ------
    ExportError
        If a part of it is no plain data.

    Examples
    --------
    >>> from skest.export.plain_json import KIND, to_text
    >>> text, descriptions = to_text({"file": {KIND: "path", "path": "/tmp"}}, "params")
    >>> text
    '{"file": {"__skest__": "path", "path": "/tmp"}}'
    >>> descriptions
    [{'__skest__': 'path', 'path': '/tmp'}]
    """
    writer = _TextWriter()
    outline = _dumped(writer.write(value, where))
    return writer.filled(outline), writer.descriptions


class _Writer:
    """Writes plain data as what JSON can hold, and collects the `descriptions_in` them."""

    def __init__(self) -> None:
        self.descriptions: list[dict[str, Any]] = []

    def write(self, value: Any, where: str) -> Any:
        if type(value) in _AS_THEY_ARE:
            return value
        if type(value) is float:
            is_number = np.isfinite(value)
            return value if is_number else {KIND: "float", "value": repr(value)}
        if type(value) is list:
            kinds = set(map(type, value))
            if kinds <= _AS_THEY_ARE:
                return self.flat(value, kinds)
            return self._items(value, where)
        if type(value) in (tuple, set):
            return {KIND: type(value).__name__, "items": self._items(value, where)}
        if type(value) is dict:
            return self._dict(value, where)
        if type(value) is bytes:
            return {KIND: "bytes", "base64": _encoded(value)}
        if isinstance(value, np.ndarray) and value.dtype == object:
            items = self.write(value.ravel().tolist(), where)
            return {KIND: "objects", "shape": value.shape, "items": items}
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return _array(value)
        raise ExportError(
            f"{where} is a {type(value).__name__}, which JSON can't describe: an "
            "estimator that uses it can't be made again from its export."
        )

    def flat(self, value: Any, kinds: set[type]) -> Any:
        """Return a list or dictionary, such as a vocabulary, whose items have few kinds."""
        return value

    def _items(self, values: Any, where: str) -> list[Any]:
        return [self.write(item, f"{where}[{i}]") for i, item in enumerate(values)]

    def _dict(self, value: dict[str, Any], where: str) -> Any:
        if KIND in value:
            self.descriptions.append(value)
        kinds = set(map(type, value.values()))
        if kinds <= _AS_THEY_ARE:
            return self.flat(value, kinds)
        return {key: self.write(item, f"{where}.{key}") for key, item in value.items()}


class _TextWriter(_Writer):
    """Writes long lists of words, and their numbers, as text, with a place for each."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str] = []
        self._place = uuid.uuid4().hex  # which no data contain
        self._quoted: dict[tuple[str, ...], list[str]] = {}

    def flat(self, value: Any, kinds: set[type]) -> Any:
        if len(value) < _LONG:
            return value
        if type(value) is list and kinds == {str}:
            text = f"[{', '.join(self._in_quotes(value))}]"
        elif type(value) is dict and kinds == {int} and set(map(type, value)) == {str}:
            # json.dumps makes a tuple of each pair, which the garbage collector counts.
            words = zip(self._in_quotes(value), value.values(), strict=True)
            text = f"{{{', '.join([f'{word}: {number}' for word, number in words])}}}"
        else:
            return value
        self._texts.append(text)
        return f"{self._place} {len(self._texts) - 1}"

    def filled(self, outline: str) -> str:
        """Return what `write` returned, as JSON, with the texts in their places."""
        place = re.compile(f'"{self._place} ([0-9]+)"')
        return place.sub(lambda found: self._texts[int(found[1])], outline)

    def _in_quotes(self, words: Iterable[str]) -> list[str]:
        known = tuple(words)
        if known not in self._quoted:
            self._quoted[known] = [*map(encode_basestring, known)]
        return self._quoted[known]


def _array(value: Any) -> dict[str, Any]:
    array = np.ascontiguousarray(value)
    return {
        KIND: "array" if isinstance(value, np.ndarray) else "scalar",
        "dtype": array.dtype.str,
        "shape": np.shape(value),
        "base64": _encoded(array.tobytes()),
    }


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
