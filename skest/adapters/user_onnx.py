# SPDX-License-Identifier: Apache-2.0
"""Estimators with a model function of the user's as ONNX graphs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.adapters.user_model import BARE_KEY, UserModel
from skest.checkpoints import load_variables
from skest.exceptions import ExportError
from skest.export.onnx.graph import Graph
from skest.export.onnx.inputs import Form, Inputs
from skest.export.onnx.model import OnnxGraph, spec_onnx
from skest.export.warmup import cells_of, made_up_rows
from skest.spec import EstimatorSpec

__all__ = ["user_onnx", "user_spec"]

_N_ROWS = 3
_CELLS: dict[str, tuple[Any, Any]] = {
    "number": (0.0, np.float64),
    "int64": (0, np.int64),
    "string": ("", object),
}


def user_onnx(
    estimator: Any, model: UserModel, classes: Any, input_rank: int, example: Any
) -> OnnxGraph:
    """Return a fitted estimator with a model function of the user's as an ONNX graph.

    Parameters
    ----------
    estimator : ModelFnClassifier or ModelFnRegressor
        Fitted.
    model : UserModel
        Its model function.
    classes : ndarray or None
        The classes as they are among the labels.
    input_rank : {1, 2}
        See `skest.export.onnx.model.build_onnx`.
    example : X or None
        Some rows, from which the model function reads shapes; None makes some up.

    Raises
    ------
    ExportError
        If a part of the model cannot be written as ONNX, or it is not known what X was.
    """
    spec, features, forms = user_spec(estimator, model, example)
    return spec_onnx(
        spec,
        features,
        head=estimator._target.head(None),
        classes=classes,
        forms=forms,
        input_rank=input_rank,
        name=type(estimator).__name__,
    )


def user_spec(
    estimator: Any, model: UserModel, example: Any
) -> tuple[EstimatorSpec, Any, dict[Any, Form]]:
    """Return the model with its variables, the rows that it was made for, and the forms.

    Parameters and errors are those of `user_onnx`.
    """
    core = estimator.estimator_
    forms = {key: Form(*form) for key, form in estimator._input_forms.items()}
    features = (
        _made_up(estimator, forms)
        if example is None
        else estimator._check_features(example, reset=False)
    )
    features = features.get(BARE_KEY, features)
    spec = model.itself(features, core.config)
    network: Any = spec.network
    load_variables(network, core.checkpoint.variables, share=True)
    return spec, features, forms


def _made_up(estimator: Any, forms: dict[Any, Form]) -> dict[Any, Any]:
    """Make rows of which only types and shapes count."""
    if estimator.feature_columns_ is not None:
        columns = estimator.feature_columns_
        specs = Inputs(Graph("rows"), columns.active, np.float32, forms).specs

        def features_of(rows: Mapping[str, list[Any]]) -> dict[Any, Any]:
            return {spec.key: cells_of(spec, rows[spec.name]) for spec in specs}

        accepted, _ = made_up_rows(
            {}, specs, lambda rows: columns.encode(features_of(rows)), missing=(False,)
        )
        return features_of(accepted)
    if BARE_KEY in forms:
        return {BARE_KEY: np.zeros((_N_ROWS, estimator.n_features_in_))}
    return {key: _cells(key, form) for key, form in forms.items()}


def _cells(key: Any, form: Form) -> NDArray[Any]:
    if form.width != 1:
        raise ExportError(
            f"The cells of column {key!r} are arrays, of which the shape is not known any "
            "more. Pass some rows of X to export as 'example'."
        )
    value, dtype = _CELLS[form.kind]
    return np.full(_N_ROWS, value, dtype)
