# SPDX-License-Identifier: Apache-2.0
"""`SkestRegressor`: regression with ``X, y``."""

from collections.abc import Callable, Mapping
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score

from skest._compat import Interval, StrOptions, check_y
from skest.adapters.base import SkestEstimator
from skest.adapters.features import WEIGHT_KEY
from skest.adapters.target_scale import TargetScale, scaled_target_model_fn
from skest.heads.logistic import LogisticRegressionHead
from skest.heads.poisson import PoissonRegressionHead
from skest.heads.regression import RegressionHead
from skest.keys import MetricKeys, PredictionKeys
from skest.losses import absolute_error, huber_error, quantile_error
from skest.spec import EstimatorSpec

__all__ = ["SkestRegressor"]

_MEDIAN = 0.5  # the default of `quantile`
# What `loss` stands for; "quantile" has a parameter of its own.
_HEADS: dict[str, Callable[..., RegressionHead]] = {
    "squared_error": RegressionHead,
    "absolute_error": partial(RegressionHead, loss_fn=absolute_error),
    "huber": partial(RegressionHead, loss_fn=huber_error),
    "poisson": PoissonRegressionHead,
    "logistic": LogisticRegressionHead,
}
_RANGES = {
    "poisson": (0.0, np.inf, "that is not negative"),
    "logistic": (0.0, 1.0, "in [0, 1]"),
}


class SkestRegressor(RegressorMixin, SkestEstimator):
    """What the regressors of skest have in common; not for direct use."""

    loss: str
    quantile: float

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestEstimator._parameter_constraints,
        "loss": [StrOptions(set(_HEADS) | {"quantile"})],
        "quantile": [Interval(Real, 0, 1, closed="neither")],
    }

    @property
    def _prediction_key(self) -> str:
        # The losses of these heads are functions of logits.
        has_link = self.loss in _RANGES
        return PredictionKeys.LOGITS if has_link else PredictionKeys.PREDICTIONS

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
        self._check_quantile()
        y = self._as_numbers(y)
        self._check_range(y)
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
            return y.astype(np.float64, copy=False)
        except ValueError as error:
            if "could not convert string to float" not in str(error):
                raise
            raise ValueError(
                f"y of {type(self).__name__} must be numbers; {error}. For labels, use the "
                "classifier of the same name."
            ) from error

    def _start(self, rows: Any) -> None:
        super()._start(rows)
        self._target = TargetScale.of(rows.y, rows.weight, self.loss)

    def _bound_model_fn(self, head: Any) -> Callable[..., EstimatorSpec]:
        return partial(
            scaled_target_model_fn,
            model_fn=super()._bound_model_fn(head),
            target=self._target,
        )

    def _check_quantile(self) -> None:
        if self.loss != "quantile" and self.quantile != _MEDIAN:
            raise ValueError(
                f"'quantile' needs loss=\"quantile\"; got quantile={self.quantile!r} and "
                f"loss={self.loss!r}. Set the loss, or leave the quantile at {_MEDIAN}."
            )

    def _check_range(self, y: NDArray[Any]) -> None:
        """Refuse values that the loss is not made for."""
        if self.loss not in _RANGES:
            return
        lowest, highest, meaning = _RANGES[self.loss]
        wrong = (y < lowest) | (y > highest)
        if wrong.any():
            raise ValueError(
                f"loss={self.loss!r} needs y {meaning}; got {y[wrong][0]:g} in row "
                f"{np.argwhere(wrong)[0][0]}. Correct or rescale y, or choose "
                'loss="squared_error".'
            )

    def _make_head(self, weight_column: str | None) -> RegressionHead:
        (n_outputs,) = self._target_shape or (1,)
        if self.loss == "quantile":
            loss_fn = partial(quantile_error, quantile=float(self.quantile))
            return RegressionHead(n_outputs, weight_column, loss_fn=loss_fn)
        return _HEADS[self.loss](label_dimension=n_outputs, weight_column=weight_column)

    def _score(
        self,
        predictions: Mapping[str, NDArray[Any]],
        y: NDArray[Any],
        sample_weight: NDArray[Any] | None,
    ) -> float:
        predicted = predictions[self._prediction_key]
        if self.loss == "squared_error":
            y = y.reshape(len(y), -1)
            return float(r2_score(y, predicted, sample_weight=sample_weight))
        weighted = sample_weight is not None
        head = self._make_head(WEIGHT_KEY if weighted else None)
        metrics = head.metrics()
        logits = torch.from_numpy(predicted)
        head.update_metrics(metrics, y, logits, {WEIGHT_KEY: sample_weight})
        return -metrics[MetricKeys.AVERAGE_LOSS].compute()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.positive_only = self.loss == "poisson"
        return tags
