# SPDX-License-Identifier: Apache-2.0
"""Exported models on disk, checked before anything of them runs.

Nothing here trusts what it reads: names of files, sizes and digests are checked one by one.
Digests show damage; that a model comes from whom it should come only a digest shows that
you got by another way (`trusted_manifest_sha256`). ONNX Runtime checks the graph, and keeps
tensors beside it inside the directory.
"""

import hashlib
import json
import math
import os
import re
import stat
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from skest.core.files import list_versions
from skest.exceptions import ArtifactError

# The manifest. Whatever reads a version goes by these checks alone: what they let pass has
# the types and the sizes that the rest of the package relies on.

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
    # The schema comes first: of another one, nothing below need hold.
    found = manifest if isinstance(manifest, dict) else {}
    newer = _CHECKPOINT if found.get("kind") == "checkpoint" else "A newer skest may."
    _require(
        found.get("schema") == SCHEMA,
        f"{MANIFEST!r} must have the schema {SCHEMA!r} to be read; got "
        f"{found.get('schema')!r}. {newer}",
    )
    # Some need not be there; if they are, they have to be mappings.
    every = {"parity": {}, "model": {}, **found}
    for name in ("files", "parity", "model", "features", "signatures"):
        _mapping(every, name)
    parity = every["parity"]
    atol, n_rows = parity.get("atol", 0.0), parity.get("recorded", 0)
    _require(
        _is_number(atol) and 0 <= atol <= MAX_ATOL,
        f"'atol' of 'parity' must be a number from 0 to {MAX_ATOL}; got {atol!r}.",
    )
    _require(
        type(n_rows) is int and n_rows >= 0,
        f"'recorded' of 'parity' must be a number of rows; got {n_rows!r}.",
    )
    # Else leaving out the recorded rows would leave out the test of the model.
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
        # A name too many would be fed to the engine, which fails at a request only.
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
    value: Any = owner.get(name)
    _require(
        isinstance(value, dict),
        f"{MANIFEST!r} must have a mapping {name!r}; got {value!r}.",
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
        # Open sizes are set by requests, whose cells a server limits itself.
        math.prod(size or 1 for size in shape[1:]) <= _MAX_CELLS,
        f"{where} has more than {_MAX_CELLS} values in a row: {shape}.",
    )
    # What a feature may say of itself.
    columns = feature.get("columns")
    are_names = isinstance(columns, list) and all(isinstance(c, str) for c in columns)
    fits = {
        "missing": _is_missing(feature.get("missing"), dtype),
        # An empty one divides nothing.
        "delimiter": isinstance(feature.get("delimiter"), str) and feature["delimiter"],
        "texts_only": isinstance(feature.get("texts_only"), bool),
        "booleans": dtype == "string" and isinstance(feature.get("booleans"), bool),
        "numbers_only": dtype == "string"
        and isinstance(feature.get("numbers_only"), bool),
        "from_texts": dtype not in ("string", "bool")
        and isinstance(feature.get("from_texts"), bool),
        "integers_only": dtype == "float64"
        and isinstance(feature.get("integers_only"), bool),
        "unit": dtype == "int64" and feature.get("unit") in ("us", MICROSECONDS),
        "weighs": isinstance(feature.get("weighs"), str),
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
    # Beyond these it would fail at the first missing cell, in a request.
    # `bool` is an `int` to Python, so that the type itself is asked for.
    limits = np.iinfo(dtype)
    return type(value) is int and limits.min <= value <= limits.max


def _is_number(value: Any) -> bool:
    # Python's JSON reads NaN and Infinity, too, and integers that no float holds.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


# One folder at most, and no dot at the beginning: no such name leads out of the version,
# nor is it a hidden file.
_NAME = re.compile(r"(assets/)?[A-Za-z0-9][\w.-]{0,127}", re.ASCII)


@dataclass(frozen=True)
class Artifact:
    """A checked version: what its manifest says, and the bytes that were checked.

    Where digests were compared, `warmup` has the recorded rows, if there are some.
    """

    path: Path
    manifest: dict[str, Any]
    manifest_sha256: str
    model: bytes
    warmup: bytes | None = None


def latest(base: str | os.PathLike[str]) -> Path:
    """Return the newest version of an exported model.

    Parameters
    ----------
    base : str or path
        The directory that was given to ``export``.

    Returns
    -------
    Path
        Its version of the highest number.

    Raises
    ------
    FileNotFoundError
        If there is none.
    """
    versions = list_versions(base)
    if not versions:
        raise FileNotFoundError(
            f"There is no exported version in {str(base)!r}. Give the directory that "
            "was given to 'export'."
        )
    return versions[-1]


def versions_at(path: Path) -> list[Path]:
    """Return the versions at a path, oldest first: that which it is, or those in it."""
    # Versions are folders of numbers, as TensorFlow Serving expects them.
    return [path] if (path / MANIFEST).exists() else list_versions(path)


def read_artifact(
    path: Path,
    verify: bool = True,
    trusted_manifest_sha256: str | Collection[str] | None = None,
) -> Artifact:
    """Read a version and check it.

    Parameters
    ----------
    path : Path
        The directory of the version.
    verify : bool, default=True
        Compare the digests of all files; sizes are always compared.
    trusted_manifest_sha256 : str or collection of str, optional
        The digest that the manifest must have, or those of which it must have one.

    Returns
    -------
    Artifact
        The manifest, and the model as it was checked.

    Raises
    ------
    ArtifactError
        If anything is not as it should be.
    """
    try:
        data = _read(path / MANIFEST, _size(path / MANIFEST))
    except FileNotFoundError:
        raise ArtifactError(
            f"{str(path)!r} is no exported model: it has no {MANIFEST!r}."
        ) from None
    manifest_sha256, trusted = _sha256(data), trusted_manifest_sha256
    # Before anything else of the manifest is read: a foreign one is not even parsed.
    trusted = [trusted] if isinstance(trusted, str) else trusted
    if trusted is not None and manifest_sha256 not in map(str.lower, trusted):
        raise ArtifactError(
            f"{MANIFEST!r} of {str(path)!r} has the digest {manifest_sha256}, not a "
            "trusted one. Fetch the model again from where it comes from."
        )
    manifest = parsed(data)
    found = {}
    for name, size in _check_files(path, manifest).items():
        if name == MODEL or (verify and name == WARMUP):
            # Read once: the digest is that of the very bytes that will run.
            found[name] = _read(path / name, size)
        if verify:
            read = found.get(name)
            digest = digest_of(path / name) if read is None else _sha256(read)
            _require(
                digest == manifest["files"][name]["sha256"],
                f"{str(path / name)!r} is not the file that was exported: its digest "
                "differs. Copy the version again.",
            )
    return Artifact(path, manifest, manifest_sha256, found[MODEL], found.get(WARMUP))


def check_file_name(name: str) -> None:
    """Raise ValueError for a name that `read_artifact` would refuse."""
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is no name that a file of an export may have. Use letters, digits, "
            "'.', '_' and '-', and no folders."
        )


def _check_files(path: Path, manifest: Mapping[str, Any]) -> dict[str, int]:
    """Check that the files are those of the manifest; return their sizes."""
    listed = manifest["files"]
    _require(MODEL in listed, f"{MANIFEST!r} lists no {MODEL!r}.")
    sizes: dict[str, Any] = {}
    for name, entry in listed.items():
        _require(
            bool(_NAME.fullmatch(name)) and name != MANIFEST,
            f"{name!r} is no name that a file of an export may have.",
        )
        known = entry if isinstance(entry, dict) else {}
        sizes[name] = size = known.get("size")
        _require(
            type(size) is int and size >= 0 and isinstance(known.get("sha256"), str),
            f"{MANIFEST!r} has no 'size' and 'sha256' of {name!r}.",
        )
    # Files that are not listed are refused, too: a graph can name weights beside it, of
    # which no digest was compared then.
    for name in _names(path):
        text = f"{str(path / name)!r} is not listed in {MANIFEST!r}."
        _require(name in {*sizes, MANIFEST}, text)
    for name, size in sizes.items():
        try:
            found = _size(path / name)
        except (FileNotFoundError, NotADirectoryError):  # "assets" may be a file
            raise ArtifactError(f"{str(path / name)!r} is missing.") from None
        _require(
            found == size,
            f"{str(path / name)!r} has {found} bytes; the manifest says {size}. The copy "
            "is incomplete or damaged.",
        )
    return sizes


def _names(path: Path) -> Iterable[str]:
    for entry in path.iterdir():
        # `assets` is the one folder of a version; any other is told as a file not listed.
        if entry.name == "assets" and entry.is_dir() and not entry.is_symlink():
            yield from (f"assets/{inner.name}" for inner in entry.iterdir())
        else:
            yield entry.name


def _size(path: Path) -> int:
    """Return the size of a file that is one, and of JSON not too large to be parsed."""
    # lstat, which follows no link: one may lead to /dev/zero or out of the version.
    status = path.lstat()
    _require(
        stat.S_ISREG(status.st_mode) and status.st_nlink == 1,
        f"{str(path)!r} must be a file of its own; a link may lead to files that do not "
        "belong to the model. Copy it.",
    )
    _require(
        path.name not in (MANIFEST, WARMUP) or status.st_size <= MAX_JSON_BYTES,
        f"{path.name!r} has {status.st_size} bytes; {MAX_JSON_BYTES} may be.",
    )
    return status.st_size


def _read(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        # One byte more shows that the file has grown since.
        data = file.read(size + 1)
    _require(len(data) == size, f"{str(path)!r} changed while it was read.")
    return data


def digest_of(path: Path) -> str:
    """Return the SHA-256 digest of a file, which may be larger than the memory."""
    with path.open("rb") as file:
        # Block by block; weights of 10 GiB are never in memory for it.
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
