# SPDX-License-Identifier: Apache-2.0
"""Checkpoints as versions of a model: what ``Estimator.export`` writes."""

import functools
import importlib.util
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.format import read_checkpoint, write_checkpoint
from skest.checkpoints.versions import write_version
from skest.core.files import explained

_FORMAT = "skest.export/1"
_MANIFEST = "manifest.json"
_ASSETS = "assets"
_FORMATS = ("onnx", "checkpoint")


def export_checkpoint(
    checkpoint: Checkpoint,
    export_dir_base: str | os.PathLike[str],
    assets: Mapping[str, str | os.PathLike[str]],
    verify: bool,
) -> Path:
    """Write the variables of a checkpoint as a new version, with a manifest and assets.

    Parameters
    ----------
    checkpoint : Checkpoint
        The state of optimizers in it is left out.
    export_dir_base : str or path
        Directory of the versions.
    assets : dict of str to path
        Files to copy into ``assets/``, by their names there.
    verify : bool
        Read back what was written, and compare it, before the version appears.

    Returns
    -------
    Path
        The directory of the version.

    Raises
    ------
    ValueError
        If an asset is no file, or has a name that leads out of ``assets/``; or if
        `export_dir_base` is a version itself.
    OSError
        If it can't be written.
    """
    check_base(Path(export_dir_base))
    for name, source in assets.items():
        check_asset(name, Path(source))
    exported = Checkpoint(checkpoint.global_step, checkpoint.variables)
    write = functools.partial(_write, exported, assets, verify)
    what = f"The checkpoint of step {checkpoint.global_step} was not exported to "
    advice = "Make room, or see to the permissions; older versions are still there."
    with explained(f"{what}{str(export_dir_base)!r}", advice):
        return write_version(export_dir_base, write)


def _write(
    checkpoint: Checkpoint,
    assets: Mapping[str, str | os.PathLike[str]],
    verify: bool,
    directory: Path,
) -> None:
    write_checkpoint(checkpoint, directory)
    for name, source in assets.items():
        target = directory / _ASSETS / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    manifest = {
        "format": _FORMAT,
        "kind": "checkpoint",
        "global_step": checkpoint.global_step,
        "assets": sorted(assets),
    }
    text = json.dumps(manifest, indent=1)
    (directory / _MANIFEST).write_text(text, encoding="utf-8")
    if verify:
        _verify(checkpoint, directory)


def _verify(checkpoint: Checkpoint, directory: Path) -> None:
    written = read_checkpoint(directory)
    for name, value in checkpoint.variables.items():
        # Bytes are compared, because NaN differs from itself.
        if not torch.equal(_bytes(written.variables[name]), _bytes(value)):
            raise OSError(
                f"The variable {name!r} was not read back from {str(directory)!r} as it "
                "was written. Look for a defect of the disk."
            )


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.contiguous().flatten().view(torch.uint8)


def check_base(base: Path) -> None:
    """Refuse to write versions into one, which would not be what was exported then."""
    if (base / _MANIFEST).exists():
        raise ValueError(
            f"{str(base)!r} is a version, of which nothing may change. Give the directory "
            f"of the versions to 'export', {str(base.parent)!r}."
        )


def check_asset(name: str, source: Path) -> None:
    """Refuse an asset that is no file, or whose name leads out of ``assets/``."""
    path = Path(name)
    if not name or path.is_absolute() or ".." in path.parts:
        raise ValueError(
            f"'assets' names {name!r}, which does not lead into 'assets/'. Give a "
            "relative name without '..'."
        )
    if not source.is_file():
        raise ValueError(f"'assets' has no file {str(source)!r} to copy as {name!r}.")


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


def check_unused(format: str, **given: tuple[Any, Any]) -> None:
    """Refuse arguments that a format does not take.

    Parameters
    ----------
    format : str
        The format.
    **given : pair
        The value of an argument, and its default.
    """
    for name, (value, default) in given.items():
        if value != default:
            raise ValueError(
                f"{name!r} is for format='onnx' only; got {value!r} with "
                f"format={format!r}. Leave it out."
            )
