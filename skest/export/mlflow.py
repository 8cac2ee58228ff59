# SPDX-License-Identifier: Apache-2.0
"""Exported models as MLflow models of the flavour ``python_function``.

MLflow copies the version, and the code of skest beside it, and runs it with
`skest.export.load`: nothing is pickled, and serving needs neither torch nor scikit-learn.
"""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from skest.export.manifest import MANIFEST
from skest.export.runtime import Model, load
from skest.versioned_directory import list_versions

__all__ = ["load_model", "log_model", "save_model", "signature_of"]

_METHODS = ("predict", "predict_proba")
_TYPES = {
    "string": "string",
    "bool": "boolean",
    "float32": "float",
    "float64": "double",
    "int32": "integer",
    "int64": "long",
}


def save_model(
    export_path: str | os.PathLike[str], path: str | os.PathLike[str], **more: Any
) -> None:
    """Save an exported model as an MLflow model.

    Parameters
    ----------
    export_path : str or path
        A version, or the directory of the versions (then the newest is taken).
    path : str or path
        Directory of the MLflow model, which must not exist.
    **more
        Further arguments of ``mlflow.pyfunc.save_model``.

    Raises
    ------
    ArtifactError
        If the exported model is damaged.
    ImportError
        If MLflow is not installed.

    Notes
    -----
    MLflow compares tables with the signature, and does not convert int64 to the float64
    that numbers are: give whole numbers as floats. The loaded model predicts classes or
    numbers; ``predict(X, params={"method": "predict_proba"})`` gives probabilities.

    The requirements of the MLflow model are the NumPy, pandas and ONNX Runtime that are
    installed. skest is none of them, for its code is in the model (``code_paths``): to
    have it installed instead, pass ``code_paths=None`` and your own ``pip_requirements``.
    """
    _mlflow().pyfunc.save_model(path=str(path), **_arguments(export_path, more))


def log_model(export_path: str | os.PathLike[str], name: str, **more: Any) -> Any:
    """Log an exported model to the active run of MLflow.

    Parameters
    ----------
    export_path : str or path
        A version, or the directory of the versions (then the newest is taken).
    name : str
        Name of the model in the run.
    **more
        Further arguments of ``mlflow.pyfunc.log_model``.

    Returns
    -------
    mlflow.models.model.ModelInfo
    """
    return _mlflow().pyfunc.log_model(name=name, **_arguments(export_path, more))


def load_model(model_uri: str) -> Any:
    """Load a saved or logged model: ``mlflow.pyfunc.load_model``."""
    return _mlflow().pyfunc.load_model(model_uri)


def signature_of(model: Model) -> Any:
    """Return the MLflow signature of a model, from its manifest.

    Parameters
    ----------
    model : Model
        Made by `skest.export.load`.

    Returns
    -------
    mlflow.models.ModelSignature
        It has the parameter "method", and no inputs for a model that takes lists or
        matrices, which MLflow's columns cannot be.
    """
    _mlflow()
    from mlflow.models import ModelSignature
    from mlflow.types import ParamSchema, ParamSpec, Schema

    columns = _columns(model)
    return ModelSignature(
        inputs=None if columns is None else Schema(columns),
        params=ParamSchema([ParamSpec("method", "string", _METHODS[0])]),
    )


def _columns(model: Model) -> list[Any] | None:
    from mlflow.types import ColSpec

    columns: list[Any] = []
    for name, spec in model.features.items():
        is_single = spec["shape"][1:] in ([], [1]) or spec.get("delimiter")
        names = spec.get("columns") or ([name] if is_single else None)
        if names is None:
            return None
        may_miss = spec.get("missing") is not None
        kind = _TYPES[spec["dtype"]]
        # MLflow refuses float64, the type of most tables, where it expects float32.
        kind = "double" if kind == "float" else kind
        columns += [ColSpec(kind, part, required=not may_miss) for part in names]
    return columns


def _arguments(path: str | os.PathLike[str], more: dict[str, Any]) -> dict[str, Any]:
    model = load(path)
    needed = map(import_module, ("numpy", "pandas", "onnxruntime"))
    arguments = {
        "loader_module": __name__,
        "data_path": str(model.path),
        "signature": signature_of(model),
        # No index need have skest, or this version of it.
        "code_paths": [str(Path(__file__).parents[1])],
        "pip_requirements": [f"{m.__name__}=={m.__version__}" for m in needed],
    }
    return arguments | more


def _mlflow() -> Any:
    try:
        import mlflow.pyfunc
    except ImportError as error:
        raise ImportError(
            "MLflow models need the package mlflow; install it by "
            "`pip install mlflow-skinny`."
        ) from error
    return mlflow


class _PyFunc:
    """What MLflow calls."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def predict(self, model_input: Any, params: dict[str, Any] | None = None) -> Any:
        """Predict; ``params={"method": "predict_proba"}`` gives probabilities."""
        method = (params or {}).get("method", "predict")
        if method not in _METHODS:
            raise ValueError(
                f"'method' must be 'predict' or 'predict_proba'; got {method!r}."
            )
        found = getattr(self._model, method)(model_input)
        return found if isinstance(found, dict) else np.asarray(found)


def _load_pyfunc(path: str) -> _PyFunc:
    """Load what `save_model` saved; MLflow calls it with the path of the copy."""
    directory = Path(path)
    if not (directory / MANIFEST).exists() and not list_versions(directory):
        (directory,) = directory.iterdir()
    return _PyFunc(load(directory))
