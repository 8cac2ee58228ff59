# SPDX-License-Identifier: Apache-2.0
"""What the method `export` of the estimators writes."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from skest.adapters.core import core_on_cpu
from skest.adapters.onnx_graph import classes_of, fitted_onnx
from skest.adapters.user_model import BARE_KEY
from skest.checkpoint_export import check_format
from skest.estimator import Estimator
from skest.export.classes import LABELS, with_class_outputs
from skest.export.onnx.inputs import InputSpec
from skest.export.onnx.tracing import BARE
from skest.export.warmup import by_output, cells_of, made_up_rows, rows_of
from skest.export.writer import Exported

__all__ = ["as_exported"]


def as_exported(
    estimator: Any,
    input_rank: int,
    example: Any,
    assets: Mapping[str, str | os.PathLike[str]],
) -> Exported:
    """Return a fitted estimator as what a version of it is made of.

    Parameters
    ----------
    estimator : SkestEstimator
        Fitted.
    input_rank : {1, 2}
        See `skest.export.onnx.model.build_onnx`.
    example : table or None
        Rows to test the graph with.
    assets : dict of str to path
        Files that belong to it.

    Raises
    ------
    ExportError, ImportError
        See `fitted_onnx`.
    """
    check_format("onnx")
    model = fitted_onnx(estimator, input_rank, example)
    # What is exported runs on a CPU; cuDNN computes with fewer digits.
    core: Any = core_on_cpu(estimator)
    predict = partial(_expected, estimator, core, model.inputs)
    described = {
        "estimator": type(estimator).__name__,
        "global_step": core.checkpoint.global_step,
    }
    if example is None:
        forms = estimator._input_forms
        whole = [
            spec.name
            for spec in model.inputs
            if spec.key in forms and forms[spec.key].kind == "int64"
        ]
        rows, found = made_up_rows(model.words, model.inputs, predict, whole)
    else:
        rows, found = rows_of(example, model.inputs), None
    return Exported(
        model=model,
        described=described,
        rows=rows,
        expected=lambda: predict(rows) if found is None else found,
        assets=assets,
    )


def _expected(
    estimator: Any,
    core: Estimator,
    inputs: Sequence[InputSpec],
    rows: Mapping[str, list[Any]],
) -> dict[str, np.ndarray]:
    """Return the predictions of the head, by the names that the graph gives them."""
    features = {spec.key: cells_of(spec, rows[spec.name]) for spec in inputs}
    if BARE_KEY in estimator._input_forms:
        features = {BARE_KEY: features[BARE]}
    size = estimator._predict_batch_size
    predictions = by_output(core.predict_table(features, batch_size=size))
    target = estimator._target
    named = with_class_outputs(target.head(None), predictions, classes_of(target))
    if "class_ids" in predictions:
        labels = np.asarray(target.answer(predictions))
        named[LABELS] = labels.reshape(len(labels), -1)
    return named
