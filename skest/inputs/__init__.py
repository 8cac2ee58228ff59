# SPDX-License-Identifier: Apache-2.0
"""Data for an Estimator: in-memory tables, pipelines and ready-made input functions."""

from skest.inputs.array_dataset import ArrayDataset
from skest.inputs.input_fns import (
    generator_input_fn,
    numpy_input_fn,
    pandas_input_fn,
)
from skest.inputs.pipeline import Pipeline
from skest.inputs.resumable import Resumable

__all__ = [
    "ArrayDataset",
    "Pipeline",
    "Resumable",
    "generator_input_fn",
    "numpy_input_fn",
    "pandas_input_fn",
]
