# SPDX-License-Identifier: Apache-2.0
"""What ``manifest.json`` may say of an exported model.

Whatever reads a version goes by these checks alone: what they let pass has the types and
the sizes that the rest of the package relies on.
"""

import json
import math
import sys
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from skest.exceptions import ArtifactError

# More than rounding: recorded answers would be compared with nothing.
MAX_ATOL = 0.01
# Of the manifest, and of recorded rows: parsed, JSON takes up to 25 times its memory.
MAX_JSON_BYTES = 16 * 2**20
SCHEMA = "skest.export/1"
MANIFEST = "manifest.json"
MODEL = "model.onnx"
WARMUP = "warmup.json"

MICROSECONDS = "microseconds since 1970-01-01 UTC"
"""What the numbers of dates are, the ``unit`` of a feature; earlier exports say "us"."""

_DTYPES = {
    *("string", "bool", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
}
_CHECKPOINT = (
    "This is an export with format='checkpoint', which "
    "`skest.checkpoints.format.read_checkpoint` reads; what runs has another format."
)
# What a missing row of a feature is filled with is made in Python, one by one.
_MAX_CELLS = 2**24


def parsed(data: bytes) -> dict[str, Any]:
    """Return the manifest that a file holds.

    Parameters
    ----------
    data : bytes
        The content of the file.

    Returns
    -------
    dict
        All of it has the types that it should have; whether it fits a graph,
        `check_signatures` tells.

    Raises
    ------
    ArtifactError
        If it is no manifest.
    """
    try:
        manifest = json.loads(data.decode(), object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{MANIFEST!r} is no JSON ({error}): the copy is incomplete or damaged. Copy "
            "or export it again."
        ) from None
    found = manifest if isinstance(manifest, dict) else {}
    newer = _CHECKPOINT if found.get("kind") == "checkpoint" else "A newer skest may."
    _require(
        found.get("schema") == SCHEMA,
        f"{MANIFEST!r} must have the schema {SCHEMA!r} to be read; got "
        f"{found.get('schema')!r}. {newer}",
    )
    every = {"runtime": {}, "parity": {}, "model": {}, **found}
    for name in ("files", "runtime", "parity", "model", "features", "signatures"):
        _mapping(every, name)
    form, parity = every["runtime"].get("format", "onnx"), every["parity"]
    _require(
        form == "onnx" and not found.get("raw"),
        f"{MANIFEST!r} must be of a graph that takes raw columns; this is an export with "
        f"format={form!r} or hashing='client' of an earlier skest, or of none.",
    )
    atol, n_rows = parity.get("atol", 0.0), parity.get("recorded", 0)
    _require(
        _is_number(atol) and 0 <= atol <= MAX_ATOL,
        f"'atol' of 'parity' must be a number from 0 to {MAX_ATOL}; got {atol!r}.",
    )
    _require(
        type(n_rows) is int and n_rows >= 0,
        f"'recorded' of 'parity' must be a number of rows; got {n_rows!r}.",
    )
    _require(
        n_rows == 0 or WARMUP in found["files"],
        f"{MANIFEST!r} says that {n_rows} rows were recorded to compare with, but lists "
        f"no {WARMUP!r}. The copy is damaged; copy the version again.",
    )
    for name, feature in found["features"].items():
        _check_feature(f"The feature {name!r}", feature)
    for name, signature in found["signatures"].items():
        _check_signature(f"signature {name!r}", signature)
    return found


def described_type(feature: Mapping[str, Any]) -> str:
    """Return the type of a feature, of dates with what their numbers are."""
    return feature["dtype"] + (f", {MICROSECONDS}" if feature.get("unit") else "")


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make the object of a JSON document; refuse names that are there twice."""
    # JSON readers differ in which of the two they take: what is checked here might not
    # be what another engine runs.
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def check_signatures(
    manifest: Mapping[str, Any], taken: Collection[str], given: Collection[str]
) -> None:
    """Check that features and signatures are those of a graph.

    Parameters
    ----------
    manifest : dict
        As `parsed` returns it.
    taken : collection of str
        The inputs of the graph.
    given : collection of str
        Its outputs.

    Raises
    ------
    ArtifactError
        If they are not.
    """
    features = sorted(manifest["features"])
    _require(
        features == sorted(taken),
        f"The manifest has the features {features}, the graph the inputs "
        f"{sorted(taken)}.",
    )
    for name, signature in manifest["signatures"].items():
        for side, tensors in (("inputs", taken), ("outputs", given)):
            for key, tensor in signature[side].items():
                where = f"{side[:-1].capitalize()} {key!r} of signature {name!r}"
                _require(
                    tensor["tensor"] in tensors, f"{where} is no tensor of the graph."
                )


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ArtifactError(message)


def _mapping(owner: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = owner.get(name)
    if not isinstance(value, dict):
        raise ArtifactError(
            f"{MANIFEST!r} must have a mapping {name!r}; got {value!r}."
        )
    return value


def _check_signature(where: str, signature: Any) -> None:
    _require(isinstance(signature, dict), f"The {where} must be a mapping.")
    method = signature.get("method", "")
    _require(isinstance(method, str), f"The 'method' of {where} must be a string.")
    inputs, outputs = (_mapping(signature, side) for side in ("inputs", "outputs"))
    _require(bool(outputs), f"The {where} must have an output.")
    for side, tensors in (("Input", inputs), ("Output", outputs)):
        for key, tensor in tensors.items():
            is_named = isinstance(tensor, dict) and isinstance(
                tensor.get("tensor"), str
            )
            _require(is_named, f"{side} {key!r} of {where} must have a 'tensor'.")
    for key, tensor in outputs.items():
        _check_tensor(f"Output {key!r} of {where}", tensor)


def _check_tensor(where: str, tensor: Any) -> None:
    found = tensor if isinstance(tensor, dict) else {}
    dtype, shape = found.get("dtype"), found.get("shape")
    _require(
        isinstance(dtype, str)
        and dtype in _DTYPES
        and isinstance(shape, list)
        and all(s is None or (type(s) is int and 0 <= s < 2**31) for s in shape),
        f"{where} must have a 'dtype' and a 'shape'; got {tensor!r}.",
    )


def _check_feature(where: str, feature: Any) -> None:
    _check_tensor(where, feature)
    shape, dtype = feature["shape"], feature["dtype"]
    _require(bool(shape), f"{where} must have an axis of rows in its 'shape'.")
    _require(
        math.prod(size or 1 for size in shape[1:]) <= _MAX_CELLS,
        f"{where} has more than {_MAX_CELLS} values in a row: {shape}.",
    )
    # What a feature may say of itself.
    columns = feature.get("columns")
    are_names = isinstance(columns, list) and all(isinstance(c, str) for c in columns)
    fits = {
        "missing": _is_missing(feature.get("missing"), dtype),
        "delimiter": isinstance(feature.get("delimiter"), str) and feature["delimiter"],
        "texts_only": isinstance(feature.get("texts_only"), bool),
        "unit": dtype == "int64" and feature.get("unit") in ("us", MICROSECONDS),
        "columns": are_names and shape[1:] == [len(set(columns))] == [len(columns)],
    }
    for key, fit in fits.items():
        _require(
            bool(fit) or feature.get(key) is None,
            f"{where} of {dtype} can't have {feature.get(key)!r} for its {key!r}.",
        )


def _is_missing(value: Any, dtype: str) -> bool:
    if dtype in ("string", "bool"):
        return isinstance(value, str if dtype == "string" else bool)
    if dtype.startswith("float"):
        return value == "nan" or _is_number(value)
    limits = np.iinfo(dtype)
    return type(value) is int and limits.min <= value <= limits.max


def _is_number(value: Any) -> bool:
    # Python's JSON reads NaN and Infinity, too, and integers that no float holds.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max
