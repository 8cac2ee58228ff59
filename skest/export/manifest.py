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
        raise ArtifactError(f"{MANIFEST!r} is no JSON: {error}") from None
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        is_checkpoint = (
            isinstance(manifest, dict) and manifest.get("kind") == "checkpoint"
        )
        raise ArtifactError(
            f"{MANIFEST!r} must have the schema {SCHEMA!r}; got {schema!r}. "
            + (_CHECKPOINT if is_checkpoint else "A newer skest may read it.")
        )
    mapping(manifest, "files")
    for name in ("model", "runtime", "parity"):
        mapping(manifest, name, optional=True)
    found = manifest.get("runtime", {}).get("format", "onnx")
    if found != "onnx" or manifest.get("raw"):
        raise ArtifactError(
            f"{MANIFEST!r} must be of a graph that takes raw columns; this is an export "
            f"with format={found!r} or hashing='client' of an earlier skest, or of none."
        )
    tolerance = manifest.get("parity", {}).get("atol", 0.0)
    if not _is_number(tolerance) or not 0 <= tolerance <= MAX_ATOL:
        raise ArtifactError(
            f"'atol' of 'parity' must be a number from 0 to {MAX_ATOL}; got {tolerance!r}."
        )
    _check_recorded(manifest)
    _check_features(manifest)
    for name in mapping(manifest, "signatures"):
        _check_signature(name, manifest["signatures"][name])
    return manifest


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make the object of a JSON document; refuse names that are there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


def mapping(
    owner: Mapping[str, Any], name: str, optional: bool = False
) -> dict[str, Any]:
    """Return an entry of a manifest that is a mapping, empty if it need not be there."""
    value = owner.get(name, {} if optional else None)
    if not isinstance(value, dict):
        raise ArtifactError(
            f"{MANIFEST!r} must have a mapping {name!r}; got {value!r}."
        )
    return value


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
    features = manifest["features"]
    if sorted(features) != sorted(taken):
        raise ArtifactError(
            f"The manifest has the features {sorted(features)}, the graph the inputs "
            f"{sorted(taken)}."
        )
    for name, signature in manifest["signatures"].items():
        for side, tensors in (("inputs", taken), ("outputs", given)):
            for key, tensor in signature[side].items():
                if tensor["tensor"] not in tensors:
                    raise _no_tensor(name, side, key)


def _no_tensor(signature: str, side: str, key: str) -> ArtifactError:
    where = f"{side[:-1].capitalize()} {key!r} of signature {signature!r}"
    return ArtifactError(f"{where} is no tensor of the graph.")


def _check_signature(name: str, signature: Any) -> None:
    if not isinstance(signature, dict):
        raise ArtifactError(f"The signature {name!r} must be a mapping.")
    if not isinstance(signature.get("method", ""), str):
        raise ArtifactError(f"The 'method' of signature {name!r} must be a string.")
    for side in ("inputs", "outputs"):
        for key, tensor in mapping(signature, side).items():
            is_named = isinstance(tensor, dict) and isinstance(
                tensor.get("tensor"), str
            )
            if not is_named:
                raise _no_tensor(name, side, key)
            if side == "outputs":
                _check_tensor(f"Output {key!r} of signature {name!r}", tensor)
    if not signature["outputs"]:
        raise ArtifactError(f"The signature {name!r} must have an output.")


def _check_recorded(manifest: Mapping[str, Any]) -> None:
    """Check that there is a file of rows if some were recorded."""
    n_rows = manifest.get("parity", {}).get("recorded", 0)
    if type(n_rows) is not int or n_rows < 0:
        raise ArtifactError(
            f"'recorded' of 'parity' must be a number of rows; got {n_rows!r}."
        )
    if n_rows and WARMUP not in manifest["files"]:
        raise ArtifactError(
            f"{MANIFEST!r} says that {n_rows} rows were recorded to compare with, but "
            f"lists no {WARMUP!r}. The copy is damaged; copy the version again."
        )


def _check_tensor(where: str, tensor: Any) -> None:
    found = tensor if isinstance(tensor, dict) else {}
    dtype, shape = found.get("dtype"), found.get("shape")
    sizes_fit = isinstance(shape, list) and all(
        size is None or (type(size) is int and 0 <= size < 2**31) for size in shape
    )
    if not sizes_fit or not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ArtifactError(
            f"{where} must have a 'dtype' and a 'shape'; got {tensor!r}."
        )


def _check_features(manifest: Mapping[str, Any]) -> None:
    features = mapping(manifest, "features")
    for name, feature in features.items():
        where = f"The feature {name!r}"
        _check_tensor(where, feature)
        if not feature["shape"]:
            raise ArtifactError(f"{where} must have an axis of rows in its 'shape'.")
        if math.prod(size or 1 for size in feature["shape"][1:]) > _MAX_CELLS:
            raise ArtifactError(
                f"{where} has more than {_MAX_CELLS} values in a row: {feature['shape']}."
            )
        _check_missing(where, feature)
        delimiter = feature.get("delimiter")
        if delimiter is not None and not (isinstance(delimiter, str) and delimiter):
            raise ArtifactError(
                f"{where} must have a text for its 'delimiter'; got {delimiter!r}."
            )
        texts_only = feature.get("texts_only", False)
        if not isinstance(texts_only, bool):
            raise ArtifactError(
                f"{where} must have true or false in 'texts_only'; got {texts_only!r}."
            )
        _check_columns(where, feature)
        _check_crosses(where, feature, features)


def _check_missing(where: str, feature: Mapping[str, Any]) -> None:
    missing, dtype = feature.get("missing"), feature["dtype"]
    if missing is None:
        return
    if dtype == "string":
        fits = isinstance(missing, str)
    elif dtype == "bool":
        fits = isinstance(missing, bool)
    elif dtype.startswith("float"):
        fits = missing == "nan" or _is_number(missing)
    else:
        limits = np.iinfo(dtype)
        fits = type(missing) is int and limits.min <= missing <= limits.max
    if not fits:
        raise ArtifactError(
            f"{where} of {dtype} must have a value of it in 'missing', or \"nan\" for "
            f"NaN; got {missing!r}."
        )


def _check_columns(where: str, feature: Mapping[str, Any]) -> None:
    columns = feature.get("columns")
    if columns is None:
        return
    are_names = isinstance(columns, list) and all(isinstance(c, str) for c in columns)
    if (
        not are_names
        or len(set(columns)) < len(columns)
        or feature["shape"][1:] != [len(columns)]
    ):
        raise ArtifactError(
            f"{where} must have in 'columns' a name for each value of a row; got "
            f"{columns!r}."
        )


def _check_crosses(
    where: str, feature: Mapping[str, Any], known: Collection[str]
) -> None:
    crosses = feature.get("crossed", [])
    if not isinstance(crosses, list) or not all(
        isinstance(cross, list)
        and all(isinstance(name, str) and name in known for name in cross)
        for cross in crosses
    ):
        raise ArtifactError(
            f"{where} must have lists of features in 'crossed'; got {crosses!r}."
        )


def _is_number(value: Any) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= sys.float_info.max
    )
