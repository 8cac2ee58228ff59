# SPDX-License-Identifier: Apache-2.0
"""What the method `export` of the estimators writes."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from skest.adapters.onnx_graph import fitted_onnx
from skest.adapters.user_model import BARE_KEY
from skest.export.declaration import declaration_or_reason, declare
from skest.export.inputs import InputSpec
from skest.export.spec_inputs import BARE
from skest.export.trial_rows import by_output, cells_of, made_up_rows, rows_of
from skest.export.writer import Exported

__all__ = ["as_exported"]


def as_exported(
    estimator: Any,
    input_rank: int,
    example: Any,
    assets: Mapping[str, str | os.PathLike[str]],
    hashing: str = "graph",
) -> Exported:
    """Return a fitted estimator as what a version of it is made of.

    Parameters
    ----------
    estimator : SkestEstimator
        Fitted.
    input_rank : {1, 2}
        See `skest.export.onnx_graph.build_onnx`.
    example : table or None
        Rows to test the graph with.
    assets : dict of str to path
        Files that belong to it.
    hashing : {"graph", "client"}, default="graph"
        See `skest.export.onnx_graph.build_onnx`.
    """
    graph = fitted_onnx(estimator, input_rank, example, hashing)
    core = estimator.estimator_
    declaration, reason = declaration_or_reason(lambda: declare(estimator))
    described = {
        "estimator": type(estimator).__name__,
        "global_step": core.checkpoint.global_step,
        **reason,
    }
    if example is None:
        forms = estimator._input_forms
        whole = [
            spec.name
            for spec in graph.given
            if spec.key in forms and forms[spec.key].kind == "int64"
        ]
        rows = made_up_rows(
            graph, lambda rows: _expected(estimator, graph.given, rows), whole
        )
    else:
        rows = rows_of(example, graph.given)
    return Exported(
        graph=graph,
        variables=core.checkpoint.variables,
        described=described,
        declaration=declaration,
        rows=rows,
        expected=lambda rows: _expected(estimator, graph.given, rows),
        assets=assets,
    )


def _expected(
    estimator: Any, inputs: Sequence[InputSpec], rows: Mapping[str, list[Any]]
) -> dict[str, np.ndarray]:
    """Return the predictions of the head, by the names that the graph gives them."""
    features = {spec.key: cells_of(spec, rows[spec.name]) for spec in inputs}
    if BARE_KEY in estimator._input_forms:
        features = {BARE_KEY: features[BARE]}
    size = estimator._predict_batch_size
    predictions = by_output(
        estimator.estimator_.predict_table(features, batch_size=size)
    )
    if "class_ids" in predictions:
        labels = np.asarray(estimator._target.answer(predictions))
        predictions["labels"] = labels.reshape(len(labels), -1)
    # The graph names classes as `y` did, the head only when it was told their names.
    return {k: v for k, v in predictions.items() if not k.endswith("classes")}
