# SPDX-License-Identifier: Apache-2.0
"""`SkestRegressor`: regression with ``X, y``."""

from numbers import Real
from typing import Any, Self

from sklearn.base import RegressorMixin
from sklearn.utils.metaestimators import available_if

from skest.adapters.base import has_partial_fit
from skest.adapters.parameters import parameter, with_parameters
from skest.adapters.stream import StreamTrained
from skest.adapters.targets.numbers import LOSSES, NumberTarget
from skest.core.sklearn_compat import Interval, StrOptions

_MEDIAN = 0.5  # the default of `quantile`


@with_parameters
class LossParameters:
    """What a regression minimises.

    Parameters
    ----------
    loss : {"squared_error", "absolute_error", "huber", "quantile", "poisson", "logistic"}
        What is minimised. "absolute_error" predicts medians; "huber" is half the squared
        error up to a difference of one standard deviation of `y`, and linear beyond (in
        ``evaluate``: up to a difference of 1); "poisson"
        is for counts, `y >= 0`, and predicts the exponential of the network's output;
        "logistic" is for shares, `y` in [0, 1], and predicts its sigmoid. Early stopping
        goes by R² for "squared_error", and by the mean loss, with a minus, for the
        others.
    quantile : float in (0, 1)
        What loss="quantile" predicts; another loss takes no other value.
    """

    loss: str = parameter(default="squared_error", values=[StrOptions(set(LOSSES))])
    quantile: float = parameter(
        default=_MEDIAN, values=[Interval(Real, 0, 1, closed="neither")]
    )


class SkestRegressor(RegressorMixin, StreamTrained):
    """What the regressors of skest have in common; not for direct use."""

    loss: str
    quantile: float
    _target: NumberTarget

    @available_if(has_partial_fit)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
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

    def _new_target(self, y: Any) -> NumberTarget:
        if self.loss != "quantile" and self.quantile != _MEDIAN:
            raise ValueError(
                f"'quantile' needs loss=\"quantile\"; got quantile={self.quantile!r} and "
                f"loss={self.loss!r}. Set the loss, or leave the quantile at {_MEDIAN}."
            )
        return NumberTarget(type(self).__name__, self.loss, self.quantile)

    def _check_resumed(self) -> None:
        before = self._target.loss, self._target.quantile
        if before != (self.loss, self.quantile):
            raise ValueError(
                f"The earlier fit had loss={before[0]!r} and quantile={before[1]!r}, and "
                f"training cannot go on with loss={self.loss!r} and "
                f"quantile={self.quantile!r}. Fit anew with warm_start=False."
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.positive_only = self.loss == "poisson"
        return tags
