# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as versions of a model: what ``Estimator.export`` writes."""

import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.format import read_checkpoint, write_checkpoint
from skest.checkpoints.versions import write_version
from skest.core.files import explained

_FORMAT = "skest.export/1"
_MANIFEST = "manifest.json"
_ASSETS = "assets"
_FORMATS = ("onnx", "checkpoint")


def publish(
    base: str | os.PathLike[str],
    assets: Mapping[str, str | os.PathLike[str]],
    what: str,
    write: Callable[[Path], Any],
) -> Path:
    """Write a version, which appears when it is complete.

    Parameters
    ----------
    base : str or path
        Directory of the versions.
    assets : dict of str to path
        Files to copy into ``assets/``, by their names there.
    what : str
        What it is, for messages.
    write : callable
        ``write(directory)`` adds the rest.

    Returns
    -------
    Path
        The directory of the version.

    Raises
    ------
    ValueError
        If an asset is no file, or has a name that leads out of ``assets/``; or if
        `base` is a version itself.
    OSError
        If it can't be written.
    """
    if (Path(base) / _MANIFEST).exists():  # which would not be what was exported then
        raise ValueError(
            f"{str(base)!r} is a version, of which nothing may change. Give the directory "
            f"of the versions to 'export', {str(Path(base).parent)!r}."
        )
    for name, source in assets.items():
        path = Path(name)
        if not name or path.is_absolute() or ".." in path.parts:
            raise ValueError(
                f"'assets' names {name!r}, which does not lead into 'assets/'. Give a "
                "relative name without '..'."
            )
        if not Path(source).is_file():
            raise ValueError(
                f"'assets' has no file {str(source)!r} to copy as {name!r}."
            )

    def fill(directory: Path) -> None:
        for name, source in assets.items():
            target = directory / _ASSETS / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        write(directory)

    advice = "Make room, or see to the permissions; older versions are still there."
    with explained(f"{what} was not exported to {str(base)!r}", advice):
        return write_version(base, fill)


def export_checkpoint(
    checkpoint: Checkpoint,
    base: str | os.PathLike[str],
    assets: Mapping[str, str | os.PathLike[str]],
    verify: bool,
) -> Path:
    """Write the variables of a checkpoint, not the state of optimizers, as a version.

    Parameters
    ----------
    checkpoint : Checkpoint
        What is exported.
    base, assets
        See `publish`, which raises the same errors.
    verify : bool
        Read back what was written, and compare its checksums, before the version appears.
    """
    manifest = {
        "format": _FORMAT,
        "kind": "checkpoint",
        "global_step": checkpoint.global_step,
        "assets": sorted(assets),
    }

    def write(directory: Path) -> None:
        write_checkpoint(
            Checkpoint(checkpoint.global_step, checkpoint.variables), directory
        )
        text = json.dumps(manifest, indent=1)
        (directory / _MANIFEST).write_text(text, encoding="utf-8")
        if verify:
            read_checkpoint(directory)

    what = f"The checkpoint of step {checkpoint.global_step}"
    return publish(base, assets, what, write)


def check_format(format: str) -> None:
    """Refuse what is none of the formats of an export, or lacks what writes it."""
    if format not in _FORMATS:
        raise ValueError(
            f"'format' must be one of {', '.join(map(repr, _FORMATS))}; got {format!r}."
        )
    missing = [n for n in ("onnx", "onnxruntime") if not importlib.util.find_spec(n)]
    if format == "onnx" and missing:
        raise ImportError(
            f"format='onnx' needs {' and '.join(missing)}. Install with "
            "`pip install onnx onnxruntime`; format='checkpoint' of an Estimator needs "
            "neither."
        )
