# SPDX-License-Identifier: Apache-2.0
"""`BaselineClassifier`, `…Regressor`, `…Estimator`: what can be said without features."""

from collections.abc import Callable
from typing import Any

from skest.adapters.base import SkestEstimator
from skest.adapters.mixed import SkestHeadEstimator
from skest.adapters.parameters import (
    OPTIMIZER,
    RATE,
    OptimizerParameters,
    parameter,
    with_parameters,
)
from skest.adapters.predictors import LossParameters, SkestClassifier, SkestRegressor
from skest.canned.baseline import baseline_model_fn
from skest.optimizers.schedules import RateFunction
from skest.spec import EstimatorSpec


@with_parameters
class BaselineParameters(OptimizerParameters):
    """How a bias is learned.

    Parameters
    ----------
    optimizer : str, class, callable or list
        A name of `skest.optimizers.OPTIMIZERS`, a class of `torch.optim`, a function from
        parameters to an optimizer, or a list of pairs of a pattern of parameter names and
        one of these.
    learning_rate : float, callable or None
        A function of the global step makes a schedule; None is the optimizer's own
        default.
    """

    optimizer: Any = parameter(default="ftrl", values=OPTIMIZER)
    learning_rate: float | RateFunction | None = parameter(default=0.3, values=RATE)


class SkestBaseline(BaselineParameters, SkestEstimator):
    """What the baseline estimators have in common; not for direct use."""

    def _model_fn(self, head: Any) -> Callable[..., EstimatorSpec]:
        return self._bound(baseline_model_fn, head=head)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if tags.classifier_tags is not None:
            tags.classifier_tags.poor_score = True
        if tags.regressor_tags is not None:
            tags.regressor_tags.poor_score = True
        return tags


@with_parameters
class BaselineClassifier(SkestBaseline, SkestClassifier):
    """A classifier that ignores the features and predicts how frequent the classes are.

    It trains like the other estimators, so that their metrics have something to be
    compared with; without that need, scikit-learn's `DummyClassifier` counts at once.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    <fitted>

    Notes
    -----
    As ``tf.estimator.BaselineClassifier``.

    Examples
    --------
    >>> import numpy as np
    >>> from skest import BaselineClassifier
    >>> X, y = np.zeros((8, 1)), ["no", "yes", "no", "no"] * 2
    >>> model = BaselineClassifier(random_state=0).fit(X, y)
    >>> model.predict_proba(X[:1]).round(2)
    array([[0.75, 0.25]])
    """


@with_parameters
class BaselineRegressor(LossParameters, SkestBaseline, SkestRegressor):
    """A regression that ignores the features and predicts the mean of the target.

    It trains like the other estimators, so that their metrics have something to be
    compared with; without that need, scikit-learn's `DummyRegressor` averages at once.

    Attributes
    ----------
    <fitted>

    Notes
    -----
    As ``tf.estimator.BaselineRegressor``.

    Examples
    --------
    >>> import numpy as np
    >>> from skest import BaselineRegressor
    >>> X, y = np.zeros((4, 1)), [1.0, 2.0, 3.0, 6.0]
    >>> model = BaselineRegressor(random_state=0).fit(X, y)
    >>> model.predict(X[:1]).round(1)
    array([3.])
    """


@with_parameters
class BaselineEstimator(SkestBaseline, SkestHeadEstimator):
    """A model that ignores the features, with a head of your choice.

    Attributes
    ----------
    <fitted>

    See Also
    --------
    MultiHeadEstimator : Names the heads by kind, and fits tables of targets.

    Notes
    -----
    As ``tf.estimator.BaselineEstimator``.

    Examples
    --------
    >>> import numpy as np
    >>> from skest import BaselineEstimator
    >>> from skest.heads import MultiLabelHead
    >>> X, y = np.zeros((4, 1)), np.array([[1, 0], [1, 1], [1, 0], [0, 0]])
    >>> model = BaselineEstimator(MultiLabelHead(2), max_iter=900, tol=0).fit(X, y)
    >>> model.predict_proba(X[:1]).round(2)
    array([[0.75, 0.25]])
    """
