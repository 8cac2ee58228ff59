# SPDX-License-Identifier: Apache-2.0
"""A model as a new exported version: graph, weights, description, and a test of it."""

import importlib.util
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skest._version import __version__
from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.format import read_checkpoint, write_checkpoint
from skest.core.checks import check_choice
from skest.core.files import check_is_local, explained, write_version
from skest.core.random import RunRandom
from skest.engine.evaluation import predict_batch
from skest.engine.model import ModelBuilder, restore
from skest.exceptions import ArtifactError, ExportError
from skest.export import artifact, warmup
from skest.export.onnx.inputs import InputSpec
from skest.export.onnx.model import OnnxGraph, spec_onnx
from skest.export.onnx.tracing import BARE
from skest.export.runtime import load
from skest.keys import ModeKeys
from skest.spec import EstimatorSpec

_logger = logging.getLogger("skest")

Assets = Mapping[str, str | os.PathLike[str]]
Rows = dict[str, list[Any]]
_WEIGHTS = "weights.bin"
# Protobuf has no message beyond 2 GiB; and what is beside the graph is mapped, not copied.
_LARGE = 64 * 2**20  # bytes of weights that are no part of the graph's file


@dataclass(frozen=True)
class Exported:
    """What becomes a version.

    Attributes
    ----------
    model : OnnxGraph
        The model.
    estimator : str
        Name of the class that was trained, for the manifest.
    global_step : int
        How many steps it was trained, for the manifest.
    predict : callable
        Gives what the model itself predicts for raw cells by input, by output of the
        signature "predict".
    example : table or None
        Rows to test what is written with, which are written, too; None makes some up.
    known : dict of str to sequence
        Numbers such as the model was trained on, by input, to make rows of.
    assets : dict of str to path
        Files to copy into ``assets/``.
    """

    model: OnnxGraph
    estimator: str
    global_step: int
    predict: Callable[[Rows], Mapping[str, np.ndarray]]
    example: Any = None
    known: Mapping[str, Sequence[int]] = field(default_factory=dict)
    assets: Assets = field(default_factory=dict)


def check_format(format: str) -> None:
    """Refuse what is none of the formats of an export, or lacks what writes it."""
    check_choice(format, "format", "an export", ("onnx", "checkpoint"))
    # Told before a training at whose end an exporter would fail; not imported for that.
    missing = [n for n in ("onnx", "onnxruntime") if not importlib.util.find_spec(n)]
    if format == "onnx" and missing:
        raise ImportError(
            f"format='onnx' needs {' and '.join(missing)}. Install with "
            "`pip install onnx onnxruntime`; format='checkpoint' of an Estimator needs "
            "neither."
        )


def write_export(
    exported: Exported,
    base: str | os.PathLike[str],
    *,
    verify: bool = True,
    atol: float = 1e-5,
) -> Path:
    """Write a model as a new version; it appears when it is complete and tested.

    Parameters
    ----------
    exported : Exported
        The model. Weights of more than 64 MiB are written beside the graph.
    base : str or path
        Directory of the versions.
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
        If `atol` or an asset is not what may be, or `base` is a version.
    ExportError
        If what was written does not predict what the model does, or cannot be
        written. No version appears then.
    OSError
        If it can't be written.
    """
    if not 0 <= atol <= artifact.MAX_ATOL:
        raise ValueError(
            f"'atol' must be from 0 to {artifact.MAX_ATOL}; got {atol!r}. With "
            "verify=False the export is not compared at all."
        )
    # Before a file is written: rows that the model refuses are told at once.
    tried = _tried(exported) if verify else None

    def write(directory: Path) -> None:
        _logger.info("Writing a version of the model into %s.", base)
        _write_model(exported.model.model, directory)
        manifest = _manifest(exported)
        manifest["parity"] = {"atol": atol}
        if tried is not None:
            _write(directory, manifest)  # for `load`
            _logger.info("Comparing what was written with the model.")
            manifest["parity"] |= _compare(*tried, directory, atol)
            # By which engine the answers are: another one may round otherwise.
            manifest["parity"] |= exported.model.engine()
        _write(directory, manifest)

    return _publish(base, exported.assets, "The model", write)


def export_checkpoint(
    checkpoint: Checkpoint, base: str | os.PathLike[str], assets: Assets, verify: bool
) -> Path:
    """Write the variables of a checkpoint, not the state of optimizers, as a version.

    Parameters
    ----------
    checkpoint : Checkpoint
        What is exported.
    base, assets
        See `write_export`, which raises the same errors.
    verify : bool
        Read back what was written, and compare its checksums, before the version appears.
    """
    step = checkpoint.global_step
    manifest = {
        "format": artifact.SCHEMA,
        "kind": "checkpoint",
        "global_step": step,
        "assets": sorted(assets),
    }

    def write(directory: Path) -> None:
        # Slots of Adam are twice as large as the model, and nobody predicts with them.
        write_checkpoint(Checkpoint(step, checkpoint.variables), directory)
        (directory / artifact.MANIFEST).write_text(
            json.dumps(manifest, indent=1), "utf-8"
        )
        if verify:
            read_checkpoint(directory)

    return _publish(base, assets, f"The checkpoint of step {step}", write)


def _publish(
    base: str | os.PathLike[str],
    assets: Assets,
    what: str,
    write: Callable[[Path], Any],
) -> Path:
    """Write a version with its assets, which appears when it is complete."""
    check_is_local(base, "The directory of the versions")
    # Which would not be what was exported then.
    if (Path(base) / artifact.MANIFEST).exists():
        raise ValueError(
            f"{str(base)!r} is a version, of which nothing may change. Give the directory "
            f"of the versions to 'export', {str(Path(base).parent)!r}."
        )
    # Before anything is written, and not after a graph of gigabytes.
    for name, source in assets.items():
        artifact.check_file_name(f"assets/{name}")
        if not Path(source).is_file():
            raise ValueError(
                f"'assets' has no file {str(source)!r} to copy as {name!r}."
            )

    # The description comes last, because it lists all files.
    def fill(directory: Path) -> None:
        if assets:
            # `assets_extra` of tf.estimator, which go to assets.extra/ of a SavedModel.
            (directory / "assets").mkdir()
        for name, source in assets.items():
            shutil.copyfile(source, directory / "assets" / name)
        write(directory)

    advice = "Make room, or see to the permissions; older versions are still there."
    with explained(f"{what} was not exported to {str(base)!r}", advice):
        return write_version(base, fill)


def _write_model(proto: Any, directory: Path) -> None:
    import onnx

    size = sum(tensor.ByteSize() for tensor in proto.graph.initializer)
    onnx.save_model(
        proto,
        directory / artifact.MODEL,
        save_as_external_data=size > _LARGE,
        location=_WEIGHTS,
    )
    if size > _LARGE:  # onnx keeps it from all others, whatever the umask is
        (directory / _WEIGHTS).chmod((directory / artifact.MODEL).stat().st_mode)


def _manifest(exported: Exported) -> dict[str, Any]:
    model = exported.model
    return {
        "schema": artifact.SCHEMA,
        "kind": "onnx",
        "created": int(time.time()),
        "model": {
            "estimator": exported.estimator,
            "global_step": exported.global_step,
            "skest": __version__,
            "torch": torch.__version__,
        },
        "runtime": model.runtime(),
        "features": {spec.name: spec.to_json() for spec in model.inputs},
        "signatures": {name: s.to_json() for name, s in model.signatures.items()},
        "files": {},
    }


def _write(directory: Path, manifest: dict[str, Any]) -> None:
    files = manifest["files"]  # what is listed stays as it is, and is read once
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_file() and name not in (artifact.MANIFEST, *files):
            files[name] = {
                "size": path.stat().st_size,
                "sha256": artifact.digest_of(path),
            }
    text = json.dumps(manifest, indent=1, allow_nan=False, ensure_ascii=False)
    (directory / artifact.MANIFEST).write_text(text, encoding="utf-8")


def _tried(exported: Exported) -> tuple[Rows, Mapping[str, np.ndarray]]:
    """Return rows, and what the model predicts for them."""
    model, predict = exported.model, exported.predict
    if exported.example is None:
        known = {**exported.known, **warmup.looked_up_in_model(model.model)}
        # Not rows of the training: a version goes to people who may not see these.
        return warmup.made_up_rows(known, model.inputs, predict)
    rows = warmup.rows_of(exported.example, model.inputs)
    return rows, predict(rows)


def _compare(
    rows: Rows, expected: Mapping[str, np.ndarray], directory: Path, atol: float
) -> dict[str, Any]:
    """Compare what was written with the model, and write down what it should give."""
    try:
        # Its digests have just been made; what counts is that the engine takes the graph.
        loaded = load(directory, verify=False)
    except ArtifactError as error:
        raise ExportError(f"What was exported can't be loaded: {error}") from error
    # From raw cells, as a client will: parsing and look-ups are compared, too.
    found = loaded.run(rows, "predict")
    # Numbers may differ by rounding; classes and ids have no "nearly".
    largest = 0.0
    for name, values in expected.items():
        if values.dtype.kind == "f":
            largest = max(largest, _difference(found[name], values))
        elif not np.array_equal(found[name], values):
            raise ExportError(
                f"What was exported gives other {name!r} than the model: "
                f"{found[name].tolist()}, not {values.tolist()}. Please report it."
            )
    # Not `largest > atol`, which NaN would pass.
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
    outputs = {name: _as_json(values) for name, values in found.items()}
    while n_rows:
        recorded = {
            "signature": "predict",
            "inputs": {name: cells[:n_rows] for name, cells in rows.items()},
            "outputs": {name: cells[:n_rows] for name, cells in outputs.items()},
        }
        # Python's NaN and Infinity are no JSON, and other engines test themselves by
        # it.
        text = json.dumps(recorded, allow_nan=False, ensure_ascii=False).encode()
        if len(text) <= artifact.MAX_JSON_BYTES:
            (directory / artifact.WARMUP).write_bytes(text)
            break
        # Some rows test a model as well as all of them; `load` reads no larger file.
        n_rows //= 2
    return n_rows


def _as_json(values: np.ndarray) -> list[Any]:
    """Return values as JSON can hold them: of infinite ones and NaN, the names."""
    # JSON has no numbers for these, and NumPy reads "nan" and "inf" back.
    if values.dtype.kind == "f":
        values = np.where(
            np.isfinite(values), values.astype(object), values.astype(str)
        )
    cells: list[Any] = values.tolist()
    return cells


def _difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Return how much numbers differ; relative to them where they are above 1."""
    if found.shape != expected.shape:
        return float("inf")
    # Infinity minus infinity is NaN, so that equal ones are told first.
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        off = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
    return float(np.where(same, 0.0, off).max(initial=0.0))


def export_estimator(
    builder: ModelBuilder,
    find_checkpoint: Callable[[], Checkpoint],
    seen: Any,
    base: str | os.PathLike[str],
    *,
    example: Any,
    assets: Assets,
    format: str,
    verify: bool,
    atol: float,
) -> Path:
    """Write the model of a checkpoint as a new version; see `skest.Estimator.export`.

    Parameters
    ----------
    builder : ModelBuilder
        Builds it, on the CPU.
    find_checkpoint : callable
        Returns the checkpoint, once the other arguments are known to be right.
    seen : raw features or None
        Rows of an earlier call, to read names, types and shapes from if there is no
        `example`.
    base : str or path
        Directory of the versions.
    """
    check_format(format)
    # Reading a large one takes long: what is wrong with the format is told before.
    checkpoint = find_checkpoint()
    if format == "checkpoint":
        return export_checkpoint(checkpoint, base, assets, verify)
    features = seen if example is None else example
    if features is None:
        raise ExportError(
            "It is not known what the features are like, as this Estimator was given "
            "none since it was made. Pass some rows of them as 'example', or call "
            "evaluate or predict first."
        )
    random = RunRandom(builder.config.random_seed or 0, torch.device("cpu"))
    spec = builder.build(features, None, ModeKeys.PREDICT, random)
    restore(spec, checkpoint)
    model = spec_onnx(spec, features, name="Estimator")
    if example is not None and spec.encode is None:
        # Features that are one array are the only input, whatever holds them.
        example = example if isinstance(example, Mapping) else np.asarray(example)
    exported = Exported(
        model=model,
        estimator="Estimator",
        global_step=checkpoint.global_step,
        predict=partial(_expected, spec, model, not isinstance(features, Mapping)),
        example=example,
        assets=assets,
    )
    return write_export(exported, base, verify=verify, atol=atol)


def _expected(
    spec: EstimatorSpec, model: OnnxGraph, is_bare: bool, rows: Mapping[str, list[Any]]
) -> dict[str, np.ndarray]:
    """Return what the signature "predict" should."""
    inputs = model.inputs
    if spec.encode is not None:
        encoded: Any = spec.encode(
            {s.key: warmup.cells_of(s, rows[s.name]) for s in inputs}
        )
    else:
        tensors = {s.key: _tensor(spec, s, rows[s.name]) for s in inputs}
        encoded = tensors[BARE] if is_bare else tensors
    with torch.no_grad():
        found = warmup.by_output(predict_batch(spec, encoded, None))
    # `export_outputs` may call predictions otherwise, as the graph then does.
    own = (spec.export_outputs or {}).get("predict")
    # What only the graph has, such as `labels`, is not compared.
    keys = {name: name for name in model.signatures["predict"].outputs}
    named = {n: found.get(key) for n, key in (own.outputs if own else keys).items()}
    return {name: values for name, values in named.items() if values is not None}


def _tensor(spec: EstimatorSpec, given: InputSpec, cells: list[Any]) -> torch.Tensor:
    array = np.asarray(cells, given.dtype)
    # Of no rows, NumPy can't tell the other axes.
    shape = [len(cells), *[size or 0 for size in given.shape[1:]]]
    tensor = torch.from_numpy(array.reshape(shape))
    return tensor.to(spec.dtype) if tensor.is_floating_point() else tensor
