# SPDX-License-Identifier: Apache-2.0
"""What the methods `export` and `onnx_graph` of the estimators write."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from skest.adapters.fit import core_on_cpu, drop_embeddings
from skest.adapters.folds import predictions
from skest.adapters.targets.several import SeveralTargets
from skest.adapters.user_model import BARE_KEY, UserModel
from skest.checkpoints.checkpoint import load_variables
from skest.core.console import said_if_long
from skest.estimators.estimator import Estimator
from skest.exceptions import ExportError
from skest.export.onnx.graph import Graph
from skest.export.onnx.heads import LABELS
from skest.export.onnx.inputs import Inputs, InputSpec
from skest.export.onnx.model import OnnxGraph, ScaledNetwork, mean_onnx, spec_onnx
from skest.export.onnx.tracing import BARE
from skest.export.warmup import by_output, cells_of, made_up_rows
from skest.export.writer import Exported, check_format, write_export
from skest.feature_columns.parsed import ParsedColumn
from skest.feature_columns.sources import Form
from skest.keys import ModeKeys

_logger = logging.getLogger("skest")


def export_fitted(
    estimator: Any,
    base: str | os.PathLike[str],
    example: Any,
    *,
    assets: Mapping[str, str | os.PathLike[str]],
    verify: bool,
    atol: float,
) -> Path:
    """Write a fitted estimator as a new version; see `SkestEstimator.export`."""
    check_format("onnx")
    text = (
        "Writing the model as ONNX, and comparing its answers with those of the export"
    )
    with said_if_long(text, estimator.verbose):
        _logger.info("Making the graph of %s.", type(estimator).__name__)
        model = fitted_onnx(estimator, example)
        checkpoint: Any = estimator.estimator_.checkpoint
        exported = Exported(
            model=model,
            estimator=type(estimator).__name__,
            global_step=checkpoint.global_step,
            # What is exported runs on a CPU; cuDNN computes with fewer digits.
            predict=partial(_expected, estimator, model.inputs, cache(core_on_cpu)),
            example=example,
            known=_numbers_like_trained(model, [estimator]),
            assets=assets,
        )
        return write_export(exported, base, verify=verify, atol=atol)


def _expected(
    estimator: Any,
    inputs: Sequence[InputSpec],
    core_of: Callable[[Any], Estimator],
    rows: Mapping[str, list[Any]],
) -> dict[str, np.ndarray]:
    """Return the predictions of the head, by the names that the graph gives them."""
    features = {spec.key: cells_of(spec, rows[spec.name]) for spec in inputs}
    # In the graph an array has a name, for a user's model function it is the array
    # itself.
    if BARE_KEY in estimator._input_forms:
        features = {BARE_KEY: features[BARE]}
    found = by_output(predictions(estimator, features, core_of=core_of))
    # Names of classes belong to the target, not to the head.
    named = {key: v for key, v in found.items() if v.dtype.kind not in "OU"}
    if "class_ids" in found:
        labels = np.asarray(estimator._target.answer(found))
        named[LABELS] = labels.reshape(len(labels), -1)
        if "all_classes" in found:
            classes = np.array([str(c) for c in classes_of(estimator._target).tolist()])
            named["all_classes"] = np.tile(classes, (len(labels), 1))
    return named


def fitted_onnx(estimator: Any, example: Any = None) -> OnnxGraph:
    """Return a fitted estimator as an ONNX graph.

    Parameters
    ----------
    estimator : SkestEstimator
        Fitted.
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
    # Weights of rows take part in a loss only, which no export has.
    head = target.head(None)
    models = _models_of(estimator, head)
    if isinstance(models[0], UserModel):
        return user_onnx(estimator, models[0], classes_of(target), example)
    return mean_onnx(
        [models],
        times=[1],
        head=head,
        classes=classes_of(target),
        forms=estimator._input_forms,
        name=type(estimator).__name__,
    )


def _models_of(estimator: Any, head: Any) -> list[Any]:
    """Return what the graph of a fitted estimator is made of: models with one mean."""
    return [_model_of(e, head) for e in (estimator, *estimator.fold_estimators_)]


def _model_of(estimator: Any, head: Any) -> ScaledNetwork | UserModel:
    """Return the model of one network."""
    fitted = estimator._as_fitted()
    # Its network has the tables, which are the ones that are written.
    drop_embeddings(fitted)
    model_fn = fitted._model_fn(head)
    if isinstance(model_fn, UserModel):
        return model_fn
    # Canned models read shapes off their columns, and need no batch for it.
    network = model_fn(features=None, labels=None, mode=ModeKeys.PREDICT).network
    # Shared: a table of gigabytes is written from where it is.
    load_variables(network, estimator.estimator_.checkpoint.variables, share=True)
    scale = estimator._scale
    return ScaledNetwork(
        columns_by_part(fitted),
        network.eval(),
        None if scale is None else (scale.scale, scale.center),
        # Classes and counts are behind a link, and need no Clip in the graph.
        (scale.low, scale.high) if scale and scale.is_bounded else None,
    )


def mean_exported(
    estimators: Sequence[Any],
    times: Sequence[int],
    classes: Any = None,
    example: Any = None,
    name: str = "Mean",
) -> Exported:
    """Return the mean of fitted estimators as what a version of it is made of.

    Parameters
    ----------
    estimators : sequence of SkestEstimator
        Classifiers of the same classes, or regressors of one loss.
    times : sequence of int
        How often each counts.
    classes : ndarray or None
        What the classes are called; None if it is as the estimators say.
    example : table or None
        Rows to test the graph with.
    name : str, default="Mean"
        Name of the graph.

    Raises
    ------
    ExportError, ImportError
        See `fitted_onnx`.
    """
    target = estimators[0]._target
    head = target.head(None)
    models = []
    for estimator in estimators:
        own = _models_of(estimator, head)
        is_other = type(estimator._target.head(None)) is not type(head)
        if is_other or isinstance(own[0], UserModel):
            raise ExportError(
                "A mean can be exported of estimators of skest that have one head, and no "
                f"model function of the user's; got {type(estimator).__name__}."
            )
        models.append(own)
    # Each may read other columns of one X; the graph has inputs for all of them.
    forms = {key: form for e in estimators for key, form in e._input_forms.items()}
    graph = mean_onnx(
        models,
        times,
        head,
        classes=classes_of(target) if classes is None else classes,
        forms=forms,
        name=name,
    )
    # The mean of probabilities, as VotingClassifier with voting="soft".
    key = "predictions" if classes_of(target) is None else "probabilities"
    # One for each estimator: a core that is made again loads all variables again.
    core_of = cache(core_on_cpu)

    def predict(rows: Mapping[str, list[Any]]) -> dict[str, np.ndarray]:
        features = {spec.key: cells_of(spec, rows[spec.name]) for spec in graph.inputs}
        # What the graph is compared with must be computed in another way than the graph.
        found = [
            predictions(estimator, features, [key], core_of)[key]
            for estimator in estimators
        ]
        return {key: np.average(found, axis=0, weights=times)}

    return Exported(
        model=graph,
        estimator=name,
        global_step=max(e.estimator_.checkpoint.global_step for e in estimators),
        predict=predict,
        example=example,
        known=_numbers_like_trained(graph, estimators),
    )


def _numbers_like_trained(
    graph: OnnxGraph, estimators: Sequence[Any]
) -> dict[str, Sequence[int]]:
    """Return some whole numbers for inputs that take them, and dates near those of fit.

    Of dates far from those, the rounding of a network alone may exceed what an export
    tolerates.
    """
    found: dict[Any, Sequence[int]] = {}
    for estimator in estimators:
        forms = estimator._input_forms.items()
        # Most integers are ids or counts: made-up ones of 19 digits would all be out of
        # range.
        found |= {key: range(10) for key, form in forms if form.kind == "int64"}
        for parameter in estimator._column_parameters:
            columns = getattr(estimator, f"{parameter}_")
            for column in columns.active if columns is not None else ():
                if isinstance(column, ParsedColumn) and column.parse == "seconds":
                    found[column.key] = _dates_near(column)
    return {spec.name: found[spec.key] for spec in graph.inputs if spec.key in found}


def _dates_near(column: ParsedColumn) -> list[int]:
    """Return microseconds since 1970, up to two deviations from the mean."""
    if column.normalizer not in ("standard", "auto"):
        return []
    seconds = column.center_[0] + column.scale_[0] * np.arange(-2, 3)
    return (1e6 * seconds).astype(np.int64).tolist()


def columns_by_part(estimator: Any) -> Any:
    """Return the fitted columns as the network of the estimator takes them."""
    parts = {
        parameter.removesuffix("feature_columns").rstrip("_"): getattr(
            estimator, f"{parameter}_"
        )
        for parameter in estimator._column_parameters
    }
    # A single parameter "feature_columns" leaves no name of a part, and baselines have
    # none.
    return parts.get("", parts or None)


def classes_of(target: Any) -> Any:
    """Return the classes as they are among the labels, by head if there are several."""
    if isinstance(target, SeveralTargets):
        return {name: classes_of(part) for name, part in target.targets.items()}
    return getattr(target, "classes", None)


_N_ROWS = 3
_CELLS = {
    "number": np.zeros(_N_ROWS),
    "int64": np.zeros(_N_ROWS, np.int64),
    "string": np.full(_N_ROWS, "", object),
}


def user_onnx(
    estimator: Any, model: UserModel, classes: Any, example: Any
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
    example : X or None
        Some rows, from which the model function reads shapes; None makes some up.

    Raises
    ------
    ExportError
        If a part of the model cannot be written as ONNX, or it is not known what X was.
    """
    core = estimator.estimator_
    forms = estimator._input_forms
    # The network of a model_fn may depend on shapes of the first batch.
    features = (
        _made_up(estimator, forms)
        if example is None
        else estimator._check_features(example, reset=False)
    )
    features = features.get(BARE_KEY, features)
    spec = model.itself(features, core.config)
    network: Any = spec.network
    load_variables(network, core.checkpoint.variables, share=True)
    return spec_onnx(
        spec,
        features,
        head=estimator._target.head(None),
        classes=classes,
        forms=forms,
        name=type(estimator).__name__,
    )


def _made_up(estimator: Any, forms: dict[Any, Form]) -> dict[Any, Any]:
    """Make rows of which only types and shapes count."""
    if estimator.feature_columns_ is not None:
        columns = estimator.feature_columns_
        specs = Inputs(Graph("rows"), columns.active, np.float32, forms).specs
        # Gaps would make objects of numbers, whose types count here.
        without_gaps = [spec._replace(missing=None) for spec in specs]

        def features_of(rows: Mapping[str, list[Any]]) -> dict[Any, Any]:
            return {spec.key: cells_of(spec, rows[spec.name]) for spec in specs}

        accepted, _ = made_up_rows(
            {}, without_gaps, lambda rows: columns.encode(features_of(rows))
        )
        return features_of(accepted)
    if BARE_KEY in forms:
        return {BARE_KEY: np.zeros((_N_ROWS, estimator.n_features_in_))}
    return {key: _cells(key, form) for key, form in forms.items()}


def _cells(key: Any, form: Form) -> np.ndarray:
    if form.width != 1:
        raise ExportError(
            f"The cells of column {key!r} are arrays, of which the shape is not known any "
            "more. Pass some rows of X to export as 'example'."
        )
    return _CELLS[form.kind].copy()
