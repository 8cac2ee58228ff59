# SPDX-License-Identifier: Apache-2.0
"""`NumberTarget`: one or more real numbers per row."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import r2_score

from skest.adapters.targets.base import (
    Predictions,
    Scored,
    Target,
    TargetScale,
    refuse_times,
)
from skest.core.sklearn_compat import check_y
from skest.feature_columns.cells import numbers
from skest.feature_columns.statistics import Distribution
from skest.heads.regression import (
    LogisticRegressionHead,
    PoissonRegressionHead,
    RegressionHead,
)
from skest.keys import PredictionKeys
from skest.losses import absolute_error, huber_error, quantile_error

# What a loss stands for; "quantile" has a parameter of its own.
_HEADS: dict[str, Callable[..., RegressionHead]] = {
    "squared_error": RegressionHead,
    "absolute_error": partial(RegressionHead, loss_fn=absolute_error),
    "huber": partial(RegressionHead, loss_fn=huber_error),
    "poisson": PoissonRegressionHead,
    "logistic": LogisticRegressionHead,
}
# What the inverse of the link can give: exponentials are not negative, a sigmoid is a
# share.
_RANGES = {
    "poisson": (0.0, np.inf, "that is not negative"),
    "logistic": (0.0, 1.0, "in [0, 1]"),
}
# Predictions and losses are float32, which ends at 3.4e38.
_LARGEST = 1e37
#: The names of the losses.
LOSSES = (*_HEADS, "quantile")


class NumberTarget(Target):
    """Numbers to predict, of shape (n_rows,) or (n_rows, n_outputs).

    Parameters
    ----------
    owner : str
        The estimator, as messages call it.
    loss : str, default="squared_error"
        One of `LOSSES`.
    quantile : float in (0, 1), default=0.5
        What the loss "quantile" predicts.

    Attributes
    ----------
    shape : tuple of int
        Of the numbers in a row: () or (n_outputs,).
    """

    answer_keys = (PredictionKeys.PREDICTIONS,)
    fewest_scored = 2  # R² compares with the mean

    def __init__(
        self, owner: str, loss: str = "squared_error", quantile: float = 0.5
    ) -> None:
        super().__init__(owner)
        self.loss = loss
        self.quantile = quantile

    def learn(self, y: Any, *, gaps: bool = False, classes: Any = None) -> None:
        """Learn the shape."""
        self.check_classes(classes)
        self.shape = self._numbers(y, gaps).shape[1:]

    def encode(self, y: Any, *, gaps: bool = False, strict: bool = True) -> np.ndarray:
        """Return the numbers as float64."""
        y = self._numbers(y, gaps)
        if self.n_outputs == 1 and y.shape[1:] in ((), (1,)):
            y = y.reshape(len(y), *self.shape)  # a column of one number is that number
        if y.shape[1:] != self.shape:
            raise ValueError(
                f"y must have shape {('n_samples', *self.shape)} as in fit; "
                f"got {y.shape}."
            )
        self.check_range(y)
        return y

    def head(
        self, weight_column: str | None, name: str | None = None
    ) -> RegressionHead:
        """Return the head of the loss."""
        make = _HEADS.get(self.loss)
        if make is None:
            loss_fn = partial(quantile_error, quantile=float(self.quantile))
            make = partial(RegressionHead, loss_fn=loss_fn)
        return make(
            label_dimension=self.n_outputs, weight_column=weight_column, name=name
        )

    @property
    def n_outputs(self) -> int:
        """Numbers in a row."""
        (n_outputs,) = self.shape or (1,)
        return n_outputs

    def answer(self, predictions: Predictions) -> np.ndarray:
        """Return the numbers in the shape that they had in fit."""
        predicted = predictions[PredictionKeys.PREDICTIONS]
        # scikit-learn wants several outputs as float64.
        return predicted.astype(np.float64) if self.shape else predicted[:, 0]

    def score(self, rows: Scored) -> float:
        """Return R²."""
        predicted = rows.predictions[PredictionKeys.PREDICTIONS]
        labels = np.reshape(rows.labels, (len(rows.labels), -1))
        return float(r2_score(labels, predicted, sample_weight=rows.weight))

    @property
    def loss_keys(self) -> tuple[str]:
        """The prediction that the loss is a function of."""
        # Poisson and logistic losses are functions of the logits, the others of the
        # numbers themselves.
        has_link = self.loss in _RANGES
        return (PredictionKeys.LOGITS if has_link else PredictionKeys.PREDICTIONS,)

    def validation_score(self, rows: Scored, scale: TargetScale | None = None) -> float:
        """Return R² for the squared error, minus the mean loss for the others."""
        if self.loss != "squared_error":
            return super().validation_score(rows)
        predicted = rows.predictions[PredictionKeys.PREDICTIONS]
        return _r2(np.reshape(rows.labels, predicted.shape), predicted, rows.weight)

    def validation_loss(self, score: float) -> float:
        """Return a validation score in the unit of the training loss.

        Of the squared error, that is the variance of the labels, whose part R² leaves.
        """
        return 1 - score if self.loss == "squared_error" else -score

    def scale(self, labels: Any, weight: np.ndarray | None) -> TargetScale:
        """Return mean and deviation, or the mean behind the link of the head."""
        return TargetScale.of(labels, weight, self.loss)

    def best_constant(self, labels: Any, weight: np.ndarray | None) -> TargetScale:
        """Return mean, median or quantile with the deviation."""
        scale = self.scale(labels, weight)
        q = {"absolute_error": 0.5, "quantile": self.quantile}.get(self.loss)
        if q is None:
            return scale
        columns = np.reshape(labels, (len(labels), -1)).T
        known = [Distribution.of(column, weight) for column in columns]
        center = [float(k.distinct[k.quantiles(np.array(q))]) for k in known]
        return scale._replace(center=np.array(center))

    @property
    def is_to_balance(self) -> bool:
        """Whether these are counts."""
        return self.loss == "poisson"

    def balance(self, rows: Scored) -> TargetScale:
        """Return the shift of logits after which predictions have the labels' mean."""
        expected = np.exp(rows.predictions[PredictionKeys.LOGITS].astype(np.float64))
        labels = np.reshape(rows.labels, expected.shape)
        ratio = np.average(labels, axis=0, weights=rows.weight)
        ratio /= np.average(expected, axis=0, weights=rows.weight)
        # A mean of 0 has no logarithm.
        center = np.log(ratio, where=ratio > 0, out=np.zeros_like(ratio))
        return TargetScale.none(len(center))._replace(center=center)

    def widened(self, scale: TargetScale, labels: Any) -> TargetScale:
        """Return a scale whose range of predictions holds these labels, too."""
        return scale.widened(labels)

    def _numbers(self, y: Any, gaps: bool) -> np.ndarray:
        if gaps:
            return self._numbers_with_gaps(y)
        # As int64, they would be numbers in whatever unit they are stored in.
        refuse_times(
            y,
            "no numbers. Make some in a unit of your choice: y.dt.total_seconds() of "
            "durations, (y - y.min()).dt.days of dates",
        )
        # scikit-learn's own check, whose messages its conformance tests expect.
        try:
            y = check_y(y, multi_output=True, y_numeric=True, estimator=self.owner)
            return y.astype(np.float64, copy=False)
        except ValueError as error:
            if "contains NaN" in str(error):
                # A row without its only number has nothing to tell; one of several
                # heads has others.
                hint = " MultiHeadEstimator takes such rows." * int(np.size(y) > len(y))
                raise ValueError(
                    f"{error} Drop the rows without a number from X and y.{hint}"
                ) from error
            if "could not convert string to float" not in str(error):
                raise
            raise ValueError(
                f"y of {self.owner} must be numbers; {error}. For labels, use the "
                "classifier of the same name."
            ) from error

    def _numbers_with_gaps(self, y: Any) -> np.ndarray:
        y = y if isinstance(y, pd.Series) else np.asarray(y)
        values = numbers(y, "y").astype(np.float64)
        if np.isinf(values).any():
            raise ValueError(
                f"Numbers must be finite; {self.owner} got "
                f"{values[np.isinf(values)][0]} in row "
                f"{np.argwhere(np.isinf(values))[0][0]} of y. Correct it, or give NaN "
                "for a missing one."
            )
        missing = np.isnan(values)
        # A head weighs its loss by rows, so that a row is known as a whole or not at
        # all.
        if values.ndim == 2 and (partly := missing.any(1) & ~missing.all(1)).any():
            raise ValueError(
                f"Row {np.flatnonzero(partly)[0]} of y has some, but not all of the "
                f"numbers of a head with several; {self.owner} takes all or none. Give "
                "each column a head of its own."
            )
        return values

    def check_range(self, y: np.ndarray) -> None:
        """Refuse values that the loss is not made for, and such as nothing can hold."""
        large = np.abs(y) > _LARGEST
        if large.any():
            raise ValueError(
                f"y holds numbers too large to learn; got {y[large][0]:g} in row "
                f"{np.argwhere(large)[0][0]}. Scale y, or take logarithms."
            )
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


def _r2(labels: np.ndarray, predicted: np.ndarray, weight: np.ndarray | None) -> float:
    """Return what `r2_score` does; its checks take a fifth of an epoch of few rows."""
    mean = np.average(labels, axis=0, weights=weight)
    variance = np.average((labels - mean) ** 2, axis=0, weights=weight)
    error = np.average((labels - predicted) ** 2, axis=0, weights=weight)
    # Where all labels are equal, either all is right or nothing.
    of_equal = np.where(error > 0, 0.0, 1.0)
    is_varied = variance > 0
    scores = 1 - np.divide(error, variance, out=1 - of_equal, where=is_varied)
    return float(scores.mean())
