# SPDX-License-Identifier: Apache-2.0
"""Exported models on disk, checked before anything of them runs.

Nothing here trusts what it reads: names of files, sizes and digests are checked one by one.
Digests show damage; that a model comes from whom it should come only a digest shows that
you got by another way (`trusted_manifest_sha256`). ONNX Runtime checks the graph, and keeps
tensors beside it inside the directory.
"""

import hashlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skest.core.files import list_versions
from skest.exceptions import ArtifactError
from skest.export.manifest import MANIFEST, MAX_JSON_BYTES, MODEL, WARMUP, parsed

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


def version_at(path: str | os.PathLike[str]) -> Path:
    """Return the directory of a version: `path` itself, or of several the newest in it."""
    directory = Path(path)
    if not (directory / MANIFEST).exists() and list_versions(directory):
        return latest(directory)
    return directory


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
    manifest_sha256, trusted = _digest(data), trusted_manifest_sha256
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
            digest = _digest(found[name]) if name in found else _digest_of(path / name)
            if digest != manifest["files"][name]["sha256"]:
                raise ArtifactError(
                    f"{str(path / name)!r} is not the file that was exported: its digest "
                    "differs. Copy the version again."
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
    if MODEL not in listed:
        raise ArtifactError(f"{MANIFEST!r} lists no {MODEL!r}.")
    sizes: dict[str, Any] = {}
    for name, entry in listed.items():
        if not _NAME.fullmatch(name) or name == MANIFEST:
            raise ArtifactError(
                f"{name!r} is no name that a file of an export may have."
            )
        known = entry if isinstance(entry, dict) else {}
        sizes[name] = size = known.get("size")
        if (
            type(size) is not int
            or size < 0
            or not isinstance(known.get("sha256"), str)
        ):
            raise ArtifactError(f"{MANIFEST!r} has no 'size' and 'sha256' of {name!r}.")
    for name in _names(path):
        if name not in {*sizes, MANIFEST}:
            raise ArtifactError(f"{str(path / name)!r} is not listed in {MANIFEST!r}.")
    for name, size in sizes.items():
        try:
            found = _size(path / name)
        except FileNotFoundError:
            raise ArtifactError(f"{str(path / name)!r} is missing.") from None
        if found != size:
            raise ArtifactError(
                f"{str(path / name)!r} has {found} bytes; the manifest says {size}. The "
                "copy is incomplete or damaged."
            )
    return sizes


def _names(path: Path) -> Iterable[str]:
    for entry in path.iterdir():
        if entry.name == "assets" and entry.is_dir() and not entry.is_symlink():
            yield from (f"assets/{inner.name}" for inner in entry.iterdir())
        else:
            yield entry.name


def _size(path: Path) -> int:
    """Return the size of a file that is one, and of JSON not too large to be parsed."""
    try:
        status = path.lstat()
    except NotADirectoryError:
        raise FileNotFoundError(path) from None
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise ArtifactError(
            f"{str(path)!r} must be a file of its own; a link may lead to files that do "
            "not belong to the model. Copy it."
        )
    if path.name in (MANIFEST, WARMUP) and status.st_size > MAX_JSON_BYTES:
        raise ArtifactError(
            f"{path.name!r} has {status.st_size} bytes; {MAX_JSON_BYTES} may be."
        )
    return status.st_size


def _read(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        # One byte more shows that the file has grown since.
        data = file.read(size + 1)
    if len(data) != size:
        raise ArtifactError(f"{str(path)!r} changed while it was read.")
    return data


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
