# SPDX-License-Identifier: Apache-2.0
"""Data for an Estimator: in-memory tables, pipelines and ready-made input functions."""

from skest.inputs.array_dataset import ArrayDataset
from skest.inputs.file_input_fns import csv_input_fn, parquet_input_fn
from skest.inputs.input_context import InputContext
from skest.inputs.input_fns import (
    generator_input_fn,
    numpy_input_fn,
    pandas_input_fn,
)
from skest.inputs.pipeline import Pipeline
from skest.inputs.resumable import Resumable

__all__ = [
    "ArrayDataset",
    "InputContext",
    "Pipeline",
    "Resumable",
    "csv_input_fn",
    "generator_input_fn",
    "numpy_input_fn",
    "pandas_input_fn",
    "parquet_input_fn",
]
