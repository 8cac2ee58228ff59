# SPDX-License-Identifier: Apache-2.0
"""What the methods `export` and `onnx_graph` of the estimators write."""

import logging
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from skest.adapters.fit import core_on_cpu, drop_embeddings
from skest.adapters.targets.several import SeveralTargets
from skest.adapters.user_model import BARE_KEY, UserModel
from skest.checkpoints.checkpoint import load_variables
from skest.estimators.estimator import Estimator
from skest.exceptions import ExportError
from skest.export.checkpoint_export import check_format
from skest.export.classes import LABELS, with_class_outputs
from skest.export.onnx.graph import Graph
from skest.export.onnx.inputs import Form, Inputs, InputSpec
from skest.export.onnx.model import OnnxGraph, build_onnx, spec_onnx
from skest.export.onnx.tracing import BARE
from skest.export.warmup import by_output, cells_of, made_up_rows, rows_of
from skest.export.writer import Exported
from skest.keys import ModeKeys
from skest.spec import EstimatorSpec

_logger = logging.getLogger("skest")


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
        See `skest.export.build_onnx`.
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
    _logger.info("Making the graph of %s.", type(estimator).__name__)
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


def fitted_onnx(estimator: Any, input_rank: int = 2, example: Any = None) -> OnnxGraph:
    """Return a fitted estimator as an ONNX graph.

    Parameters
    ----------
    estimator : SkestEstimator
        Fitted.
    input_rank : {1, 2}, default=2
        See `skest.export.build_onnx`.
    example : X, default=None
        Some rows for a model function of the user's, which may read shapes from them.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.
    ExportError
        If a part of the model cannot be written as ONNX.
    """
    check_is_fitted(estimator)
    target = estimator._target
    head, scale = target.head(None), estimator._scale
    fitted = estimator._as_fitted()
    drop_embeddings(fitted)
    model_fn = fitted._model_fn(head)
    if isinstance(model_fn, UserModel):
        return user_onnx(estimator, model_fn, classes_of(target), input_rank, example)
    network = model_fn(features=None, labels=None, mode=ModeKeys.PREDICT).network
    load_variables(network, estimator.estimator_.checkpoint.variables, share=True)
    return build_onnx(
        columns_by_part(fitted),
        network.eval(),
        head,
        classes=classes_of(target),
        logits_scale=None if scale is None else (scale.scale, scale.center),
        logits_range=(scale.low, scale.high) if scale and scale.is_bounded else None,
        forms={key: Form(*form) for key, form in estimator._input_forms.items()},
        input_rank=input_rank,
        name=type(estimator).__name__,
    )


def columns_by_part(estimator: Any) -> Any:
    """Return the fitted columns as the network of the estimator takes them."""
    parts = {
        parameter.removesuffix("feature_columns").rstrip("_"): getattr(
            estimator, f"{parameter}_"
        )
        for parameter in estimator._column_parameters
    }
    return parts.get("", parts or None)


def classes_of(target: Any) -> Any:
    """Return the classes as they are among the labels, by head if there are several."""
    if isinstance(target, SeveralTargets):
        return {name: classes_of(part) for name, part in target.targets.items()}
    return getattr(target, "classes", None)


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
        See `skest.export.build_onnx`.
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
