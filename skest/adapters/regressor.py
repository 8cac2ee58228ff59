# SPDX-License-Identifier: Apache-2.0
"""`SkestRegressor`: regression with ``X, y``."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from skest._compat import check_y
from skest.adapters.base import SkestEstimator
from skest.heads.regression import RegressionHead
from skest.keys import ModeKeys, PredictionKeys
from skest.model_fn import draws_only_to_train
from skest.spec import EstimatorSpec

__all__ = ["SkestRegressor"]


class SkestRegressor(RegressorMixin, SkestEstimator):
    """What the regressors of skest have in common; not for direct use."""

    _prediction_key = PredictionKeys.PREDICTIONS

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Train one epoch, going on from the present state.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), DataFrame or dict of arrays
            Training data.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Target values.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        object
            This estimator.
        """
        return self._partial_fit(X, y, sample_weight)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predicted values.

        Parameters
        ----------
        X : array-like, DataFrame or dict of arrays
            Data as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            As `y` was in `fit`.
        """
        predicted = self._predict(X, PredictionKeys.PREDICTIONS)
        if self._target_shape == ():
            return predicted[:, 0]
        return predicted.astype(np.float64)

    def _check_target(self, y: Any, *, reset: bool) -> NDArray[Any]:
        y = self._as_numbers(y)
        if reset:
            self._target_shape = y.shape[1:]
        elif y.shape[1:] != self._target_shape:
            raise ValueError(
                f"y must have shape {('n_samples', *self._target_shape)} as in fit; "
                f"got {y.shape}."
            )
        return y

    def _as_numbers(self, y: Any) -> NDArray[Any]:
        try:
            y = check_y(y, multi_output=True, y_numeric=True, estimator=self)
        except ValueError as error:
            if "could not convert string to float" not in str(error):
                raise
            raise ValueError(
                f"y of {type(self).__name__} must be numbers; {error}. For labels, use the "
                "classifier of the same name."
            ) from error
        return y.astype(np.float64, copy=False)

    def _start(self, rows: Any) -> None:
        super()._start(rows)
        # The network learns y with mean 0 and deviation 1: its first steps would not
        # reach numbers far from zero, and the rates suit no other scale.
        self._target_center = np.average(rows.y, axis=0, weights=rows.weight)
        deviation = rows.y - self._target_center
        variance = np.average(deviation**2, axis=0, weights=rows.weight)
        constant = variance <= np.finfo(np.float64).eps * self._target_center**2
        self._target_scale = np.where(constant, 1.0, np.sqrt(variance))

    def _bound_model_fn(self, head: Any) -> Callable[..., EstimatorSpec]:
        return partial(
            _scaled_target_model_fn,
            model_fn=super()._bound_model_fn(head),
            center=self._target_center,
            scale=self._target_scale,
        )

    def _make_head(self, weight_column: str | None) -> Any:
        (n_outputs,) = self._target_shape or (1,)
        return RegressionHead(n_outputs, weight_column=weight_column)

    def _score(
        self,
        predictions: Mapping[str, NDArray[Any]],
        y: NDArray[Any],
        sample_weight: NDArray[Any] | None,
    ) -> float:
        predicted = predictions[PredictionKeys.PREDICTIONS]
        return float(
            r2_score(y.reshape(len(y), -1), predicted, sample_weight=sample_weight)
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


@draws_only_to_train
def _scaled_target_model_fn(
    features: Any,
    labels: Any,
    mode: str,
    *,
    model_fn: Callable[..., EstimatorSpec],
    center: NDArray[Any],
    scale: NDArray[Any],
) -> EstimatorSpec:
    """Let a network train on ``(y - center) / scale`` and otherwise speak of ``y``."""
    spec = model_fn(features, labels, mode)
    if spec.network is not None:
        spec.network.register_forward_hook(partial(_unscale, center, scale))
    if mode != ModeKeys.TRAIN or spec.encode_labels is None:
        return spec
    encode_labels = spec.encode_labels
    return replace(
        spec, encode_labels=lambda y: encode_labels((np.asarray(y) - center) / scale)
    )


def _unscale(
    center: NDArray[Any],
    scale: NDArray[Any],
    network: torch.nn.Module,
    inputs: Any,
    logits: torch.Tensor,
) -> torch.Tensor:
    if network.training:
        return logits
    return logits * logits.new_tensor(scale) + logits.new_tensor(center)
