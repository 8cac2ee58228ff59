# SPDX-License-Identifier: Apache-2.0
"""`DNNClassifier`, `DNNRegressor`, `DNNEstimator`: perceptrons on feature columns."""

from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any, ClassVar

from skest.adapters.base import SkestEstimator
from skest.adapters.classifier import SkestClassifier
from skest.adapters.mixed import SkestHeadEstimator
from skest.adapters.parameters import (
    AUTO,
    COLUMNS,
    COUNT,
    NOT_NEGATIVE,
    OPTIMIZER,
    RATE,
    WIDTHS,
    OptimizerParameters,
    parameter,
    with_parameters,
)
from skest.adapters.regressor import LossParameters, SkestRegressor
from skest.canned.dnn import dnn_model_fn
from skest.core.sklearn_compat import Interval, StrOptions
from skest.feature_columns.columns import FeatureColumns
from skest.networks.layers import ACTIVATIONS
from skest.optimizers.schedules import RateFunction
from skest.spec import EstimatorSpec


@with_parameters
class DNNParameters(OptimizerParameters):
    """A perceptron on feature columns.

    Parameters
    ----------
    hidden_units : sequence of int
        Widths of the hidden layers.
    feature_columns : FeatureColumns or list of columns
        What the features are and how they enter the network; see
        `skest.feature_columns`. None infers it: numbers are standardised, gaps in them
        filled with the mean and marked; strings and categories become indicators if
        they have few levels and embeddings if they have many, see
        `skest.feature_columns.infer_feature_columns`. With a learning rate "auto",
        numbers get piecewise-linear columns as well. What given columns do not read is
        dropped with a warning, see `FeatureColumns` and its `remainder`.
    activation : str or callable
        Of the hidden layers: a name of `skest.networks.ACTIVATIONS` or a function of a
        tensor.
    dropout : float or "auto"
        Probability that a hidden unit is dropped in training. "auto" is .1 with a
        learning rate "auto", else 0.
    batch_norm : bool
        Normalise after every hidden layer.
    optimizer : str, class, callable or list
        A name of `skest.optimizers.OPTIMIZERS`, a class of `torch.optim`, a function from
        parameters to an optimizer, or a list of pairs of a pattern of parameter names and
        one of these, as ``[("inputs.*", "adagrad"), ("*", "adam")]``. "auto" is AdamW with
        betas of .9 and .95, and Adagrad at 25 times the rate for tables of embeddings.
    learning_rate : float, callable, "auto" or None
        A function of the global step makes a schedule; None is the optimizer's own
        default. "auto" falls to zero in four cosine cycles of doubling length, see
        `skest.optimizers.schedules.CosineCycles`, over the epochs of `max_iter`, from a
        peak of .002 (of Adagrad, FTRL and SGD .05); it is the peak itself in
        `partial_fit` and `train`, which know no end. Numbers that are predicted then
        stay within the range of the `y` that was trained on, but for those of Poisson
        and logistic losses.
    weight_decay : float or "auto"
        L2 penalty of the optimizer; of AdamW, decay of the weights. "auto" is .01 if both
        are "auto", else 0.
    n_members : int or "auto"
        Networks in one: they share the hidden layers, each scales the inputs by numbers
        of its own and has its own last layer, and learns from its own errors; the mean of
        their probabilities, or numbers, is predicted (TabM-mini, arXiv 2410.24210).
        "auto" is 3 with a learning rate "auto", else 1.
    """

    hidden_units: Sequence[int] | int = parameter(
        default=(128, 64), kw_only=False, values=WIDTHS
    )
    feature_columns: Any = parameter(default=None, values=COLUMNS)
    activation: Any = parameter(
        default="relu", values=[StrOptions(set(ACTIVATIONS)), callable]
    )
    dropout: float | str = parameter(
        default="auto", values=[AUTO, Interval(Real, 0, 1, closed="left")]
    )
    batch_norm: bool = parameter(default=False, values=["boolean"])
    optimizer: Any = parameter(default="auto", values=OPTIMIZER)
    learning_rate: float | str | RateFunction | None = parameter(
        default="auto", values=[AUTO, *RATE]
    )
    weight_decay: float | str = parameter(default="auto", values=[AUTO, NOT_NEGATIVE])
    n_members: int | str = parameter(default="auto", values=[AUTO, COUNT])
    max_iter: int | str = "auto"
    n_iter_no_change: float | str = "auto"


class SkestDNN(DNNParameters, SkestEstimator):
    """What estimators with a DNN have in common; not for direct use."""

    feature_columns_: FeatureColumns

    _column_parameters: ClassVar[dict[str, str]] = {"feature_columns": "dense"}
    _recipe_for: ClassVar[tuple[str, str] | None] = ("optimizer", "learning_rate")

    def _model_fn(self, head: Any) -> Callable[..., EstimatorSpec]:
        return self._bound(dnn_model_fn, head=head, columns=self.feature_columns_)


@with_parameters
class DNNClassifier(SkestDNN, SkestClassifier):
    """A multilayer perceptron that classifies rows of arrays or mixed tables.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    feature_columns_ : FeatureColumns
        The fitted columns.
    <fitted>

    See Also
    --------
    DNNLinearCombinedClassifier : Adds a linear model of sparse columns and crosses.
    LinearClassifier : The linear model alone.

    Notes
    -----
    As ``tf.estimator.DNNClassifier``, whose settings are ``optimizer="adagrad",
    learning_rate=0.05`` (of its first version; the 0.001 of the second hardly trains).
    With a learning rate everything else that is "auto" is as there, too.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest import DNNClassifier
    >>> X = pd.DataFrame({"size": [1.0, 2.0, 8.0, 9.0] * 8, "kind": list("aabb") * 8})
    >>> y = ["small", "small", "big", "big"] * 8
    >>> model = DNNClassifier(random_state=0).fit(X, y)
    >>> model.predict(X[:4]).tolist()
    ['small', 'small', 'big', 'big']
    """


@with_parameters
class DNNRegressor(LossParameters, SkestDNN, SkestRegressor):
    """A multilayer perceptron that predicts numbers from arrays or mixed tables.

    Attributes
    ----------
    feature_columns_ : FeatureColumns
        The fitted columns.
    <fitted>

    See Also
    --------
    DNNLinearCombinedRegressor : Adds a linear model of sparse columns and crosses.
    LinearRegressor : The linear model alone.

    Notes
    -----
    As ``tf.estimator.DNNRegressor``, whose settings are ``optimizer="adagrad",
    learning_rate=0.05`` (of its first version; the 0.001 of the second hardly trains).
    With a learning rate everything else that is "auto" is as there, too.

    Examples
    --------
    >>> import numpy as np
    >>> from skest import DNNRegressor
    >>> X = np.linspace(-1, 1, 90).reshape(-1, 1)
    >>> model = DNNRegressor((32,), random_state=0).fit(X, X[:, 0] ** 2)
    >>> bool(model.score(X, X[:, 0] ** 2) > 0.9)
    True
    """


@with_parameters
class DNNEstimator(SkestDNN, SkestHeadEstimator):
    """A multilayer perceptron with a head of your choice.

    Attributes
    ----------
    feature_columns_ : FeatureColumns
        The fitted columns.
    <fitted>

    See Also
    --------
    MultiHeadEstimator : Names the heads by kind, and fits tables of targets.

    Notes
    -----
    As ``tf.estimator.DNNEstimator``. Targets of a plain `RegressionHead`, of a
    `PoissonRegressionHead` and of a `LogisticRegressionHead` are learned in standard
    units, as by `DNNRegressor`; those of other heads as they are.

    Examples
    --------
    >>> import numpy as np
    >>> from skest import DNNEstimator
    >>> from skest.heads import BinaryClassHead
    >>> X = np.linspace(-1, 1, 100).reshape(-1, 1)
    >>> y = np.where(X[:, 0] > 0, "up", "down")
    >>> head = BinaryClassHead(label_vocabulary=["down", "up"], thresholds=[0.3])
    >>> model = DNNEstimator(head, (8,), max_iter=30, random_state=0).fit(X, y)
    >>> model.predict([[-0.9], [0.9]]).tolist()
    ['down', 'up']
    >>> "recall/positive_threshold_0.3" in model.evaluate(X, y)
    True
    """
