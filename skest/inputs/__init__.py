# SPDX-License-Identifier: Apache-2.0
"""Data for an Estimator: in-memory tables, pipelines and ready-made input functions.

An ``input_fn`` returns an `ArrayDataset`, a `Pipeline`, a loader of torch or any iterable;
`sharding` takes the part of this worker of it, and `batches` makes tensors on the device
of it, from the element on at which a checkpoint was saved.
"""

from skest.inputs.array_dataset import ArrayDataset
from skest.inputs.file_input_fns import csv_input_fn, parquet_input_fn
from skest.inputs.input_context import InputContext
from skest.inputs.input_fns import (
    generator_input_fn,
    numpy_input_fn,
    pandas_input_fn,
)
from skest.inputs.pipeline import Pipeline, Resumable

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
