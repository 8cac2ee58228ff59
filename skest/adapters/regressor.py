# SPDX-License-Identifier: Apache-2.0
"""`SkestRegressor`: regression with ``X, y``."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from skest._compat import check_y
from skest.adapters.base import SkestEstimator
from skest.heads.regression import RegressionHead
from skest.keys import PredictionKeys

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
        y = check_y(y, multi_output=True, y_numeric=True, estimator=self)
        y = y.astype(np.float64, copy=False)
        if reset:
            self._target_shape = y.shape[1:]
        elif y.shape[1:] != self._target_shape:
            raise ValueError(
                f"y must have shape {('n_samples', *self._target_shape)} as in fit; "
                f"got {y.shape}."
            )
        return y

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
