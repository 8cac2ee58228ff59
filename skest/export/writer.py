# SPDX-License-Identifier: Apache-2.0
"""A model as a new exported version: graph, weights, description, and a test of it."""

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skest._version import __version__
from skest.core.tensor_files import write_tensors
from skest.exceptions import ArtifactError, ExportError
from skest.export.artifact import check_file_name
from skest.export.checkpoint_export import publish
from skest.export.manifest import (
    MANIFEST,
    MAX_ATOL,
    MAX_JSON_BYTES,
    MODEL,
    SCHEMA,
    WARMUP,
)
from skest.export.onnx.graph import explained_unicode
from skest.export.onnx.model import OnnxGraph
from skest.export.runtime import load
from skest.export.warmup import made_up_rows, rows_of

_logger = logging.getLogger("skest")

Rows = dict[str, list[Any]]
_WEIGHTS = "weights.safetensors"
_SMALL = 1024  # bytes of a tensor that stays in the graph
_NUMBER_FIELDS = ("float_data", "int32_data", "int64_data", "double_data")


@dataclass(frozen=True)
class Exported:
    """What becomes a version.

    Attributes
    ----------
    model : OnnxGraph
        The model.
    described : dict
        What the manifest says of the model: ``estimator``, ``global_step``.
    predict : callable
        Gives what the model itself predicts for raw cells by input, by output of the
        signature "predict".
    example : table or None
        Rows to test what is written with, which are written, too; None makes some up.
    whole : list of str
        Inputs whose numbers are whole.
    assets : dict of str to path
        Files to copy into ``assets/``.
    """

    model: OnnxGraph
    described: Mapping[str, Any]
    predict: Callable[[Rows], Mapping[str, np.ndarray]]
    example: Any = None
    whole: Sequence[str] = ()
    assets: Mapping[str, str | os.PathLike[str]] = field(default_factory=dict)


def are_external(weights: str) -> bool | None:
    """Return what `write_export` takes for "auto", "inside" or "beside"."""
    if weights not in ("auto", "inside", "beside"):
        raise ValueError(
            f"'weights' must be 'auto', 'inside' or 'beside'; got {weights!r}."
        )
    return None if weights == "auto" else weights == "beside"


def write_export(
    exported: Exported,
    base: str | os.PathLike[str],
    *,
    external: bool | None = None,
    verify: bool = True,
    atol: float = 1e-5,
) -> Path:
    """Write a model as a new version; it appears when it is complete and tested.

    Parameters
    ----------
    exported : Exported
        The model.
    base : str or path
        Directory of the versions.
    external : bool, optional
        Whether a graph takes its weights from the file beside it. By default if they
        have more than 64 MiB.
    verify : bool, default=True
        Load what was written, and compare what it predicts with the model.
    atol : float, default=1e-5
        How far numbers may differ, as a part of them where they are above 1; from 0 to
        0.01.

    Returns
    -------
    Path
        The directory of the version.

    Raises
    ------
    ValueError
        If `atol` or the name of an asset is not what may be, or `base` is a version.
    ExportError
        If what was written does not predict what the model does, or cannot be
        written. No version appears then.
    """
    if not 0 <= atol <= MAX_ATOL:
        raise ValueError(
            f"'atol' must be from 0 to {MAX_ATOL}; got {atol!r}. With verify=False the "
            "export is not compared at all."
        )
    for name in exported.assets:
        check_file_name(f"assets/{name}")
    tried = _tried(exported) if verify else None

    def write(directory: Path) -> None:
        _logger.info("Writing a version of the model into %s.", base)
        _write_model(exported.model.model, directory, external)
        manifest = _manifest(exported)
        manifest["parity"] = {"atol": atol}
        if tried is not None:
            _write(directory, manifest, indent=None)  # for `load`; nobody reads it
            _logger.info("Comparing what was written with the model.")
            manifest["parity"] |= _compare(*tried, directory, atol)
            manifest["parity"] |= exported.model.engine()
        _write(directory, manifest, indent=1)

    with explained_unicode():
        return publish(base, exported.assets, "The model", write)


def _write_model(proto: Any, directory: Path, external: bool | None) -> None:
    if external is None:
        sizes = (tensor.ByteSize() for tensor in proto.graph.initializer)
        external = sum(sizes) > 64 * 2**20
    if external:
        proto = _move_weights(proto, directory / _WEIGHTS)
    (directory / MODEL).write_bytes(proto.SerializeToString())


def _move_weights(model: Any, path: Path) -> Any:
    """Return a graph that takes its weights from a safetensors file, which is written."""
    from onnx import ModelProto, TensorProto, numpy_helper

    moved = ModelProto()
    moved.CopyFrom(model)
    large = {
        tensor.name: tensor
        for tensor in moved.graph.initializer
        if tensor.data_type != TensorProto.STRING and tensor.ByteSize() >= _SMALL
    }
    arrays = {name: numpy_helper.to_array(tensor) for name, tensor in large.items()}
    write_tensors({n: torch.from_numpy(a.copy()) for n, a in arrays.items()}, path)
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    for name, tensor in large.items():
        begin, end = header[name]["data_offsets"]
        for field_name in ("raw_data", *_NUMBER_FIELDS):
            tensor.ClearField(field_name)
        tensor.data_location = TensorProto.EXTERNAL
        where = {
            "location": path.name,
            "offset": 8 + size + begin,
            "length": end - begin,
        }
        for key, value in where.items():
            tensor.external_data.add(key=key, value=str(value))
    return moved


def _manifest(exported: Exported) -> dict[str, Any]:
    model = exported.model
    runtime = model.runtime()
    inputs = model.signatures["predict"].inputs
    return {
        "schema": SCHEMA,
        "kind": runtime["format"],
        "created": int(time.time()),
        "model": {
            **exported.described,
            "skest": __version__,
            "torch": torch.__version__,
        },
        "runtime": runtime,
        "features": {
            spec.name: {**spec.to_json(), "shape": list(inputs[spec.name].shape)}
            for spec in model.inputs
        },
        "signatures": {name: s.to_json() for name, s in model.signatures.items()},
        "files": {},
    }


def _write(directory: Path, manifest: dict[str, Any], indent: int | None) -> None:
    files = manifest["files"]  # what is listed stays as it is, and is read once
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_file() and name not in (MANIFEST, *files):
            files[name] = _entry(path)
    text = json.dumps(manifest, indent=indent, allow_nan=False, ensure_ascii=False)
    (directory / MANIFEST).write_text(text, encoding="utf-8")


def _entry(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"size": path.stat().st_size, "sha256": digest}


def _tried(exported: Exported) -> tuple[Rows, Mapping[str, np.ndarray]]:
    """Return rows, and what the model predicts for them."""
    model, predict = exported.model, exported.predict
    if exported.example is None:
        return made_up_rows(model.words, model.inputs, predict, exported.whole)
    rows = rows_of(exported.example, model.inputs)
    return rows, predict(rows)


def _compare(
    rows: Rows, expected: Mapping[str, np.ndarray], directory: Path, atol: float
) -> dict[str, Any]:
    """Compare what was written with the model, and write down what it should give."""
    try:
        loaded = load(directory, verify=False)
    except ArtifactError as error:
        raise ExportError(f"What was exported can't be loaded: {error}") from error
    found = loaded.run(rows, "predict")
    largest = 0.0
    for name, values in expected.items():
        if values.dtype.kind == "f":
            largest = max(largest, _difference(found[name], values))
        elif not np.array_equal(found[name], values):
            raise ExportError(
                f"What was exported gives other {name!r} than the model: "
                f"{found[name].tolist()}, not {values.tolist()}. Please report it."
            )
    if not largest <= atol:
        raise ExportError(
            f"What was exported gives other numbers than the model: they differ by "
            f"{largest:.3g}, and atol={atol:g} is allowed. Give a larger 'atol' if that "
            "is close enough."
        )
    return {
        "rows": len(next(iter(rows.values()), [])),
        "recorded": _record(rows, found, directory),
        "max_abs_diff": largest,
    }


def _record(
    rows: Mapping[str, Any], found: Mapping[str, np.ndarray], directory: Path
) -> int:
    """Write down what rows should give: as many of them as `load` reads, that may be 0."""
    n_rows = len(next(iter(rows.values()), []))
    while n_rows:
        recorded = {
            "signature": "predict",
            "inputs": {name: cells[:n_rows] for name, cells in rows.items()},
            "outputs": {name: _listed(v[:n_rows]) for name, v in found.items()},
        }
        text = json.dumps(recorded, allow_nan=False, ensure_ascii=False).encode()
        if len(text) <= MAX_JSON_BYTES:
            (directory / WARMUP).write_bytes(text)
            break
        n_rows //= 2
    return n_rows


def _listed(values: np.ndarray) -> list[Any]:
    """Return values as JSON can hold them: of infinite ones and NaN, the names."""
    if values.dtype.kind != "f" or np.isfinite(values).all():
        return values.tolist()
    cells = values.astype(object)
    cells[~np.isfinite(values)] = values[~np.isfinite(values)].astype(str)
    return cells.tolist()


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Return how much numbers differ; relative to them where they are above 1."""
    if found.shape != expected.shape:
        return float("inf")
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        off = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    return float(np.where(same, 0.0, off).max(initial=0.0))
