# SPDX-License-Identifier: Apache-2.0
"""What an ONNX file would run, read from its bytes.

A serving process needs to know the operators of a graph before an engine loads it, and
should not need the ``onnx`` package for that. This reads the few protobuf messages that
matter; whatever it does not understand to the last byte is refused, so that no other
parser can see in the file what was not seen here.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from skest.exceptions import ArtifactError

__all__ = ["ExternalData", "OnnxContent", "read_onnx"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

# Fields by number, as onnx.proto (IR version 8 to 13) has them: name and wire types.
# A repeated number may come packed or one by one.
_MODEL = {
    1: ("ir_version", {_VARINT}),
    2: ("producer_name", {_BYTES}),
    3: ("producer_version", {_BYTES}),
    4: ("domain", {_BYTES}),
    5: ("model_version", {_VARINT}),
    6: ("doc_string", {_BYTES}),
    7: ("graph", {_BYTES}),
    8: ("opset_import", {_BYTES}),
    14: ("metadata_props", {_BYTES}),
}
_OPSET = {1: ("domain", {_BYTES}), 2: ("version", {_VARINT})}
_GRAPH = {
    1: ("node", {_BYTES}),
    2: ("name", {_BYTES}),
    5: ("initializer", {_BYTES}),
    10: ("doc_string", {_BYTES}),
    11: ("input", {_BYTES}),
    12: ("output", {_BYTES}),
    13: ("value_info", {_BYTES}),
    16: ("metadata_props", {_BYTES}),
}
_NODE = {
    1: ("input", {_BYTES}),
    2: ("output", {_BYTES}),
    3: ("name", {_BYTES}),
    4: ("op_type", {_BYTES}),
    5: ("attribute", {_BYTES}),
    6: ("doc_string", {_BYTES}),
    7: ("domain", {_BYTES}),
    9: ("metadata_props", {_BYTES}),
}
# Without the fields of sub-graphs (6, 11), of references to the attributes of a function
# (21), and of sparse tensors and types (14, 15, 22, 23).
_ATTRIBUTE = {
    1: ("name", {_BYTES}),
    2: ("f", {_FIXED32}),
    3: ("i", {_VARINT}),
    4: ("s", {_BYTES}),
    5: ("t", {_BYTES}),
    7: ("floats", {_FIXED32, _BYTES}),
    8: ("ints", {_VARINT, _BYTES}),
    9: ("strings", {_BYTES}),
    10: ("tensors", {_BYTES}),
    13: ("doc_string", {_BYTES}),
    20: ("type", {_VARINT}),
}
_TENSOR = {
    1: ("dims", {_VARINT, _BYTES}),
    2: ("data_type", {_VARINT}),
    4: ("float_data", {_FIXED32, _BYTES}),
    5: ("int32_data", {_VARINT, _BYTES}),
    6: ("string_data", {_BYTES}),
    7: ("int64_data", {_VARINT, _BYTES}),
    8: ("name", {_BYTES}),
    9: ("raw_data", {_BYTES}),
    10: ("double_data", {_FIXED64, _BYTES}),
    11: ("uint64_data", {_VARINT, _BYTES}),
    12: ("doc_string", {_BYTES}),
    13: ("external_data", {_BYTES}),
    14: ("data_location", {_VARINT}),
    16: ("metadata_props", {_BYTES}),
}
_ENTRY = {1: ("key", {_BYTES}), 2: ("value", {_BYTES})}
_VALUE = {
    1: ("name", {_BYTES}),
    2: ("type", {_BYTES}),
    3: ("doc_string", {_BYTES}),
    4: ("metadata_props", {_BYTES}),
}

# A parser takes the last of several values of these, or merges them: refused instead.
_SINGLE = {
    *("graph", "ir_version", "domain", "version", "op_type", "name", "key", "value"),
    *("t", "s", "f", "i", "type", "data_type", "data_location", "raw_data"),
}

# Lists that nodes look up and nobody reads here: most of a file with vocabularies.
_LOOKED_UP = {"strings", "ints"}
_SHORT = 128  # bytes: below that a length has one
_NUMBER_KEY = 8 << 3 | _VARINT
_NUMBERS = re.compile(rb"(?:\x40[\x80-\xff]{0,8}+[\x00-\x7f])++")  # of 63 bits

_UNKNOWN: tuple[str, set[int]] = ("", set())

# Types of tensors that may lie in another file, by the numbers that ONNX gives them, and
# how many bytes a value has.
_DTYPES = {
    **{1: ("float32", 4), 2: ("uint8", 1), 3: ("int8", 1), 4: ("uint16", 2)},
    **{5: ("int16", 2), 6: ("int32", 4), 7: ("int64", 8), 9: ("bool", 1)},
    **{10: ("float16", 2), 11: ("float64", 8), 12: ("uint32", 4), 13: ("uint64", 8)},
}

_Value = int | memoryview


@dataclass(frozen=True)
class ExternalData:
    """A tensor whose numbers lie in another file, at an offset in bytes."""

    tensor: str
    location: str
    offset: int
    length: int
    dtype: str
    shape: tuple[int, ...]


@dataclass
class OnnxContent:
    """What a model is made of."""

    ir_version: int = 0
    opsets: dict[str, int] = field(default_factory=dict)
    operators: set[tuple[str, str]] = field(default_factory=set)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    external: list[ExternalData] = field(default_factory=list)


def read_onnx(data: bytes) -> OnnxContent:
    """Read what an ONNX model is made of.

    Parameters
    ----------
    data : bytes
        The content of the file.

    Returns
    -------
    OnnxContent
        Versions of the operator sets, operators as (domain, name), names of the inputs
        and outputs, and what lies in other files.

    Raises
    ------
    ArtifactError
        If the bytes are no ONNX model, or have anything that the exports of skest have
        not: sub-graphs, functions, training graphs, sparse tensors, unknown fields.
    """
    content = OnnxContent()
    graph = None
    for name, value in _fields(memoryview(data), _MODEL, "model"):
        if name == "ir_version":
            content.ir_version = _integer(value)
        elif name == "opset_import":
            _read_opset(_message(value), content)
        elif name == "graph":
            graph = _message(value)
    if graph is None:
        raise ArtifactError("The ONNX model has no graph.")
    _read_graph(graph, content)
    return content


def _read_opset(data: memoryview, content: OnnxContent) -> None:
    found = dict(_fields(data, _OPSET, "opset_import"))
    domain = _text(found.get("domain", memoryview(b"")))
    if domain in content.opsets:
        raise ArtifactError(f"The ONNX model imports the operators {domain!r} twice.")
    content.opsets[domain] = _integer(found.get("version", 0))


def _read_graph(data: memoryview, content: OnnxContent) -> None:
    for name, value in _fields(data, _GRAPH, "graph"):
        if name == "node":
            _read_node(_message(value), content)
        elif name == "initializer":
            _read_tensor(_message(value), content)
        elif name in ("input", "output"):
            names = content.inputs if name == "input" else content.outputs
            found = dict(_fields(_message(value), _VALUE, name))
            names.append(_text(found.get("name", memoryview(b""))))


def _read_node(data: memoryview, content: OnnxContent) -> None:
    domain = operator = ""
    for name, value in _fields(data, _NODE, "node"):
        if name == "domain":
            domain = _text(value)
        elif name == "op_type":
            operator = _text(value)
        elif name == "attribute":
            for key, item in _fields(_message(value), _ATTRIBUTE, "attribute"):
                if key in ("t", "tensors"):
                    _read_tensor(_message(item), content, in_attribute=True)
    # ONNX has two names for its own domain.
    content.operators.add(("" if domain == "ai.onnx" else domain, operator))


def _read_tensor(
    data: memoryview, content: OnnxContent, in_attribute: bool = False
) -> None:
    name, outside, entries, kind = "", False, {}, 0
    sizes: list[int] = []
    for key, value in _fields(data, _TENSOR, "tensor"):
        if key == "name":
            name = _text(value)
        elif key == "data_location":
            outside = _integer(value) != 0
        elif key == "data_type":
            kind = _integer(value)
        elif key == "dims":
            sizes += [value] if isinstance(value, int) else _varints(value)
        elif key == "external_data":
            found = dict(_fields(_message(value), _ENTRY, "external_data"))
            entry = _text(found.get("key", memoryview(b"")))
            if entry in entries:
                raise ArtifactError(f"The tensor {name!r} says {entry!r} twice.")
            entries[entry] = _text(found.get("value", memoryview(b"")))
    if outside or entries:
        known = [other.tensor for other in content.external]
        if not outside or in_attribute or kind not in _DTYPES or name in known:
            raise ArtifactError(
                f"The tensor {name!r} lies in another file as exports of skest never do: "
                "only initializers that are numbers may, each once."
            )
        tensor = _external(name, entries, _DTYPES[kind], tuple(sizes))
        content.external.append(tensor)


def _external(
    name: str, entries: dict[str, str], kind: tuple[str, int], shape: tuple[int, ...]
) -> ExternalData:
    numbers = [entries.get("offset", ""), entries.get("length", "")]
    if set(entries) != {"location", "offset", "length"} or not all(
        number.isascii() and number.isdigit() and len(number) < 19 for number in numbers
    ):
        raise ArtifactError(
            f"The tensor {name!r} must say where it lies by 'location', 'offset' and "
            f"'length'; got {entries}."
        )
    offset, length = map(int, numbers)
    dtype, n_bytes = kind
    if length != math.prod(shape) * n_bytes:
        raise ArtifactError(
            f"The tensor {name!r} of {dtype} and shape {shape} can't have {length} bytes."
        )
    return ExternalData(name, entries["location"], offset, length, dtype, shape)


def _fields(
    data: memoryview, known: dict[int, tuple[str, set[int]]], message: str
) -> Iterator[tuple[str, _Value]]:
    """Yield the names and values of the fields of a message.

    Short items of `_LOOKED_UP` are passed over: a vocabulary has tens of thousands.
    """
    at, end, seen = 0, len(data), set()
    while at < end:
        start = at
        key, at = _varint(data, at)
        wire = key & 7
        name, wires = known.get(key >> 3, _UNKNOWN)
        if wire not in wires:
            raise ArtifactError(
                f"The ONNX {message} has field {key >> 3} of wire type {wire}, which "
                "exports of skest never have."
            )
        if name in _SINGLE:
            if name in seen:
                raise ArtifactError(f"The ONNX {message} has the field {name!r} twice.")
            seen.add(name)
        if name in _LOOKED_UP:
            after = _after_short_items(data, start, key)
            if after > start:
                at = after
                continue
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield name, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        else:
            size = 4 if wire == _FIXED32 else 8
        if size > end - at:
            raise ArtifactError(f"The ONNX {message} ends in the middle of {name!r}.")
        yield name, data[at : at + size]
        at += size


def _after_short_items(data: memoryview, at: int, key: int) -> int:
    """Return where items of a list end that have one key and are short.

    What is long, or lies near the end of the data, is left to be read one by one.
    """
    if key == _NUMBER_KEY:
        found = _NUMBERS.match(data, at)
        return at if found is None else found.end()
    last = len(data) - 2 - _SHORT  # up to here, what is short ends within the data
    while at < last and data[at] == key and (size := data[at + 1]) < _SHORT:
        at += 2 + size
    return at


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            if value >> 64:
                break
            return value, at
    raise ArtifactError("The ONNX model has a broken number.")


def _varints(data: memoryview) -> list[int]:
    found, at = [], 0
    while at < len(data):
        value, at = _varint(data, at)
        found.append(value)
    return found


def _integer(value: _Value) -> int:
    if not isinstance(value, int):
        raise ArtifactError("The ONNX model has bytes in place of a number.")
    return value


def _message(value: _Value) -> memoryview:
    if isinstance(value, int):
        raise ArtifactError("The ONNX model has a number in place of a message.")
    return value


def _text(value: _Value) -> str:
    try:
        return str(_message(value), "utf-8")
    except UnicodeDecodeError:
        raise ArtifactError("The ONNX model has a name that is no UTF-8.") from None
