# SPDX-License-Identifier: Apache-2.0
"""Fitted estimators as programs of torch."""

from typing import Any

from sklearn.utils.validation import check_is_fitted

from skest.adapters.core import bound_model_fn
from skest.adapters.learned_vectors import drop_embeddings
from skest.adapters.onnx_graph import classes_of, columns_by_part
from skest.adapters.user_model import UserModel
from skest.adapters.user_onnx import user_spec
from skest.checkpoints import load_variables
from skest.export.inputs import Form
from skest.export.program import Program, build_program
from skest.keys import ModeKeys

__all__ = ["fitted_program"]


def fitted_program(estimator: Any, format: str, example: Any = None) -> Program:
    """Trace a fitted estimator.

    Parameters
    ----------
    estimator : SkestEstimator
        Fitted.
    format : {"pt2", "aoti"}
        See `skest.export.program.Program`.
    example : X, default=None
        Some rows to trace the model with, whose types and shapes count; None makes some
        up.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.
    ExportError
        If torch cannot trace the model, or a feature column cannot be described.
    """
    check_is_fitted(estimator)
    fitted = estimator._as_fitted()
    drop_embeddings(fitted)
    model_fn: Any = bound_model_fn(fitted, weighted=False)
    classes = classes_of(estimator._target)
    if isinstance(model_fn, UserModel):
        spec, features, forms = user_spec(estimator, model_fn, example)
        head = estimator._target.head(None)
        return build_program(
            spec, features, format=format, head=head, classes=classes, forms=forms
        )
    spec = model_fn(features=None, labels=None, mode=ModeKeys.PREDICT)
    load_variables(spec.network, estimator.estimator_.checkpoint.variables, share=True)
    features = None
    if example is not None:
        features = estimator._check_features(example, reset=False)
    return build_program(
        spec,
        features,
        format=format,
        columns=columns_by_part(fitted),
        is_canned=True,
        classes=classes,
        forms={key: Form(*form) for key, form in estimator._input_forms.items()},
    )
