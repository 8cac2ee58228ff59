# SPDX-License-Identifier: Apache-2.0
"""What the method `onnx_graph` of the estimators does."""

from typing import Any

from sklearn.utils.validation import check_is_fitted

from skest.adapters.learned_vectors import drop_embeddings
from skest.adapters.targets.several import SeveralTargets
from skest.adapters.user_model import UserModel
from skest.adapters.user_onnx import user_onnx
from skest.checkpoints import load_variables
from skest.export.onnx.inputs import Form
from skest.export.onnx.model import OnnxGraph, build_onnx
from skest.keys import ModeKeys

__all__ = ["classes_of", "columns_by_part", "fitted_onnx"]


def fitted_onnx(estimator: Any, input_rank: int = 2, example: Any = None) -> OnnxGraph:
    """Return a fitted estimator as an ONNX graph.

    Parameters
    ----------
    estimator : SkestEstimator
        Fitted.
    input_rank : {1, 2}, default=2
        See `skest.export.onnx.model.build_onnx`.
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
