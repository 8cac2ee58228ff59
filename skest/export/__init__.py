# SPDX-License-Identifier: Apache-2.0
"""Exporters: what `skest.train_and_evaluate` does with a trained model."""

from skest.export.exporters import (
    BestExporter,
    Exporter,
    FinalExporter,
    LatestExporter,
)

__all__ = ["BestExporter", "Exporter", "FinalExporter", "LatestExporter"]
