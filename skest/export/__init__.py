# SPDX-License-Identifier: Apache-2.0
"""Exported models, and exporters: what becomes of a trained model.

Names are imported when they are first used: running an exported model needs neither torch
nor scikit-learn.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skest.export.artifact import latest
    from skest.export.exporters import (
        BestExporter,
        Exporter,
        FinalExporter,
        LatestExporter,
    )
    from skest.export.onnx.model import OnnxGraph, build_onnx
    from skest.export.runtime import Model, load
    from skest.export.serving.server import ModelServer
    from skest.export.signatures import (
        ClassificationOutput,
        PredictOutput,
        RegressionOutput,
    )

__all__ = [
    "BestExporter",
    "ClassificationOutput",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "Model",
    "ModelServer",
    "OnnxGraph",
    "PredictOutput",
    "RegressionOutput",
    "build_onnx",
    "latest",
    "load",
]

_MODULES = {
    "artifact": ("latest",),
    "exporters": ("BestExporter", "Exporter", "FinalExporter", "LatestExporter"),
    "onnx.model": ("OnnxGraph", "build_onnx"),
    "runtime": ("Model", "load"),
    "serving.server": ("ModelServer",),
    "signatures": ("ClassificationOutput", "PredictOutput", "RegressionOutput"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(importlib.import_module(f"skest.export.{module}"), name)
            # Python asks here for what is not there only: once for each name.
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
