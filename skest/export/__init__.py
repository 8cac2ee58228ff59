# SPDX-License-Identifier: Apache-2.0
"""Models for others: ONNX graphs, and what `skest.train_and_evaluate` exports."""

from skest.export.exporters import (
    BestExporter,
    Exporter,
    FinalExporter,
    LatestExporter,
)
from skest.export.onnx_graph import OnnxGraph, build_onnx

__all__ = [
    "BestExporter",
    "Exporter",
    "FinalExporter",
    "LatestExporter",
    "OnnxGraph",
    "build_onnx",
]
