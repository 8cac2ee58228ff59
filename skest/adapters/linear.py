# SPDX-License-Identifier: Apache-2.0
"""Linear models (`LinearClassifier`, ...), and baselines, which have a bias alone."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted, column_or_1d

from skest.adapters import allowed
from skest.adapters.base import ModelFunction, SkestEstimator
from skest.adapters.features import WEIGHT_KEY, Rows
from skest.adapters.parameters import OptimizerParameters, parameter, with_parameters
from skest.adapters.predictors import (
    LossParameters,
    SkestClassifier,
    SkestHeadEstimator,
    SkestRegressor,
)
from skest.canned.linear import baseline_model_fn, linear_model_fn
from skest.canned.sdca import LinearSDCA, as_sdca
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.modules import parameter_name
from skest.feature_columns.table import TableColumns

# Of fewer rows for each column, classes are learned by heart, and rows held out are worth
# it; of numbers they are not (`python -m benchmarks.wide_tables`).
_FEW_ROWS_A_COLUMN = 20
# Key of the row numbers beside the features, which are the example ids of SDCA.
_ROW_KEY = "__row_number__"
_ROWS_CHANGE = (
    "does not go with SDCA by row numbers: they may stand for other rows in the next "
    "call, and each row has a dual variable. Give X a column of unique ids and set "
    "LinearSDCA(example_id_column=...), or use another optimizer."
)


@with_parameters
class LinearParameters(OptimizerParameters):
    """A linear model on feature columns.

    Parameters
    ----------
    feature_columns : FeatureColumns or list of columns
        What the features are; see `skest.feature_columns`. Categorical columns are taken
        as they are. None infers it: numbers are standardised, gaps in them filled with
        the mean and marked; strings and categories become categorical columns.
    sparse_combiner : {"sum", "mean", "sqrtn"}
        How the weights of several values in one cell are combined.
    optimizer : str, class, callable, list or LinearSDCA
        A name of `skest.optimizers.OPTIMIZERS`, a class of `torch.optim`, a function from
        parameters to an optimizer, or a list of pairs of a pattern of parameter names and
        one of these. "sdca", or `skest.LinearSDCA` with settings, is dual coordinate
        ascent, for two classes or the squared error of one target.
    learning_rate : float, callable, "auto" or None
        "auto" is ``min(0.2, 1 / sqrt(n_columns))``, where each number of an array is a
        column; a function of the global step makes a schedule; None is the optimizer's
        own default.
    l1 : float
        L1 penalty of "ftrl" and "proximaladagrad".
    l2 : float
        L2 penalty of "ftrl" and "proximaladagrad".
    weight_decay : float
        L2 penalty of other optimizers.
    """

    feature_columns: Any = parameter(default=None, values=allowed.COLUMNS)
    sparse_combiner: str = parameter(default="sum", values=allowed.COMBINER)
    optimizer: Any = parameter(default="ftrl", values=[*allowed.OPTIMIZER, LinearSDCA])
    learning_rate: allowed.Rate | str = parameter(
        default="auto", values=allowed.RATE_OR_AUTO
    )
    l1: float = parameter(default=0.0, values=allowed.NOT_NEGATIVE)
    l2: float = parameter(default=0.0, values=allowed.NOT_NEGATIVE)
    weight_decay: float = parameter(default=0.0, values=allowed.NOT_NEGATIVE)


def linear_weights(
    model: Any, columns: FeatureColumns, prefix: str = ""
) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and biases of a fitted linear model, or of a part of a model.

    Parameters
    ----------
    model : SkestEstimator
        It is fitted.
    columns : FeatureColumns
        The fitted columns of the linear model.
    prefix : str, default=""
        What the names of its variables begin with.

    Returns
    -------
    weights : ndarray of shape (n_logits, n_features)
        In the order of ``columns.get_feature_names_out()``.
    bias : ndarray of shape (n_logits,)
    """
    value = model.estimator_.get_variable_value
    # In the order of the columns; the checkpoint has them by name.
    weights = [value(prefix + parameter_name(c.name)) for c in columns.active]
    weight, bias = np.concatenate(weights).T, value(f"{prefix}bias")
    # The network learned standardised targets; coefficients are those of y.
    if model._scale is not None:
        weight = weight * model._scale.scale[:, None]
        bias = bias * model._scale.scale + model._scale.center
    return weight, bias


class SkestLinear(LinearParameters, SkestEstimator):
    """What the linear estimators have in common; not for direct use."""

    feature_columns_: FeatureColumns

    _column_parameters: ClassVar[dict[str, str]] = {"feature_columns": "linear"}

    @property
    def coef_(self) -> np.ndarray:
        """Weights of the encoded features.

        Inferred columns standardise numbers, so a weight is what one standard deviation
        of the number does, and `intercept_` the answer where all are at their means. For
        raw units give ``feature_columns`` that leave numbers as they are, such as
        ``[fc.numeric_column("age")]``; or divide the weight by the deviation of its
        column, and subtract ``weight / deviation * mean`` from the bias.

        The features are the columns of ``feature_columns_.transform(X)``, whose names are
        ``feature_columns_.get_feature_names_out()``; inferred columns of a table of numbers
        alone see it as an array, ``X.to_numpy()``. The shape is that of
        ``sklearn.linear_model``: (n_features,) for a single target of a regression,
        (n_logits, n_features) otherwise.

        Notes
        -----
        Selectors that go by `coef_`, as RFE and SelectFromModel of
        `sklearn.feature_selection`, take its i-th weight for that of the i-th feature of
        X. That is so for inferred columns of numbers without gaps. The mark of a gap and
        each level of a category have weights too, with which selectors fail; and
        `feature_columns` in another order than X, or not of all of X, lets them choose
        wrong features. Fill gaps and encode categories in a step of a Pipeline before
        the selector and leave `feature_columns` out, or take SequentialFeatureSelector,
        which goes by the score.
        """
        check_is_fitted(self)
        return self._weights_and_bias()[0]

    @property
    def intercept_(self) -> np.ndarray:
        """Biases: a number for a single target of a regression, else (n_logits,)."""
        check_is_fitted(self)
        return self._weights_and_bias()[1]

    def _weights_and_bias(self) -> tuple[np.ndarray, np.ndarray]:
        return linear_weights(self, self.feature_columns_)

    def _choose(self, n_rows: float, *, is_whole: bool = True, **how: Any) -> None:
        super()._choose(n_rows, is_whole=is_whole, **how)
        if (
            "early_stopping" in self.auto_params_
            and is_whole
            and is_classifier(self)
            and n_rows < _FEW_ROWS_A_COLUMN * getattr(self, "n_features_in_", 0)
            and self._holds_out_enough(n_rows)
            # A penalty does the same.
            and not (self.l1 or self.l2 or self.weight_decay)
            and as_sdca(self.optimizer) is None
        ):
            self.auto_params_["early_stopping"] = True

    def _model_fn(self, head: Any) -> ModelFunction:
        sdca = self._numbers_rows() or as_sdca(self.optimizer)
        return self._bound(
            linear_model_fn,
            head=head,
            columns=self.feature_columns_,
            optimizer=self.optimizer if sdca is None else replace(sdca, proximal=True),
        )

    @property
    def _begins_at_constant(self) -> bool:
        # The penalties of SDCA are for the bias itself.
        return as_sdca(self.optimizer) is None

    @property
    def _evens_batches(self) -> bool:
        # SDCA solves each row exactly, in whatever batch it is.
        return super()._evens_batches and as_sdca(self.optimizer) is None

    # Dual coordinate ascent, whose examples are told apart by the numbers of the rows.

    def _numbers_rows(self) -> LinearSDCA | None:
        """Return the settings of SDCA if row numbers tell its examples apart."""
        sdca = as_sdca(self.optimizer)
        if sdca is None or sdca.example_id_column is not None:
            return None
        return replace(sdca, example_id_column=_ROW_KEY)

    def _validate_params(self) -> None:
        super()._validate_params()
        # Row 7 of the next call is another row, with the dual variable of this one.
        if self.warm_start and self._numbers_rows():
            raise ValueError(f"warm_start=True {_ROWS_CHANGE}")
        if self.sampling == "weighted" and as_sdca(self.optimizer) is not None:
            raise ValueError(
                "sampling='weighted' has no meaning for LinearSDCA, whose objective weighs "
                "every row exactly. Leave it at 'epoch'."
            )

    def _check_partial_fit(self) -> None:
        super()._check_partial_fit()
        if self._numbers_rows():
            raise ValueError(f"Training by parts {_ROWS_CHANGE}")

    def _keys_beside(self) -> set[Any]:
        sdca = as_sdca(self.optimizer)
        return set() if sdca is None else {sdca.example_id_column}

    def _training_features(self, rows: Rows) -> TableColumns:
        features = super()._training_features(rows)
        if as_sdca(self.optimizer) is None:
            return features
        if rows.weight is not None:
            # SDCA sums over rows: a weight of 2 is two rows, whatever the mean.
            features = features | {WEIGHT_KEY: rows.weight}
        if not self._numbers_rows():
            return features
        if _ROW_KEY in rows.features:
            raise ValueError(
                f"A column of X is called {_ROW_KEY!r}, a name that skest needs for the "
                "row numbers. Rename it."
            )
        # Every row has a dual variable; its number tells which.
        return features | {_ROW_KEY: np.arange(rows.n_rows)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if as_sdca(self.optimizer) is not None:
            # Its dual variable is one number for a row: one output, and one logit.
            tags.target_tags.multi_output = False
            tags.input_tags.sparse = False
            if tags.classifier_tags is not None:
                tags.classifier_tags.multi_class = False
                tags.classifier_tags.multi_label = False
        return tags

    def _target_rows(self, y: Any) -> Any:
        y = super()._target_rows(y)
        # scikit-learn's checks ask those that take one output to warn of a column as
        # `y`.
        is_column = as_sdca(self.optimizer) is not None and np.shape(y)[1:] == (1,)
        return column_or_1d(y, warn=True) if is_column else y


@with_parameters
class LinearClassifier(SkestLinear, SkestClassifier):
    """A linear classifier on arrays or mixed tables, with categorical columns as they are.

    Every categorical value has a weight of its own, looked up by its id: the cost of a
    step does not depend on the number of values.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    feature_columns_ : FeatureColumns
        The fitted columns.
    coef_, intercept_ : ndarray
        Weights of ``feature_columns_.transform(X)`` and biases, as in
        `sklearn.linear_model`.
    <fitted>

    See Also
    --------
    DNNLinearCombinedClassifier : Adds a neural network.

    Notes
    -----
    As ``tf.estimator.LinearClassifier``.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest import LinearClassifier
    >>> X = pd.DataFrame({"city": ["Rome", "Oslo", "Rome", "Bern"] * 5})
    >>> y = ["warm", "cold", "warm", "cold"] * 5
    >>> model = LinearClassifier(random_state=0).fit(X, y)
    >>> model.predict(X[:3]).tolist()
    ['warm', 'cold', 'warm']
    """


@with_parameters
class LinearRegressor(LossParameters, SkestLinear, SkestRegressor):
    """A linear regression on arrays or mixed tables, with categorical columns as they are.

    Every categorical value has a weight of its own, looked up by its id: the cost of a
    step does not depend on the number of values.

    Attributes
    ----------
    feature_columns_ : FeatureColumns
        The fitted columns.
    coef_, intercept_ : ndarray
        Weights of ``feature_columns_.transform(X)`` and biases, as in
        `sklearn.linear_model`.
    <fitted>

    See Also
    --------
    DNNLinearCombinedRegressor : Adds a neural network.

    Notes
    -----
    As ``tf.estimator.LinearRegressor``.

    Examples
    --------
    >>> import numpy as np
    >>> from skest import LinearRegressor
    >>> X = np.linspace(-1, 1, 100).reshape(-1, 1)
    >>> model = LinearRegressor(random_state=0).fit(X, 2 * X[:, 0] + 1)
    >>> model.predict([[0.0], [1.0]]).round(1)
    array([1., 3.])
    """

    def _weights_and_bias(self) -> tuple[np.ndarray, np.ndarray]:
        weights, bias = super()._weights_and_bias()
        # As scikit-learn's regressions of one target: a vector and a number.
        return (weights, bias) if self._target.shape else (weights[0], bias[0])


@with_parameters
class LinearEstimator(SkestLinear, SkestHeadEstimator):
    """A linear model with a head of your choice.

    Attributes
    ----------
    feature_columns_ : FeatureColumns
        The fitted columns.
    coef_, intercept_ : ndarray
        Weights of ``feature_columns_.transform(X)`` and biases, as in
        `sklearn.linear_model`.
    <fitted>

    See Also
    --------
    MultiHeadEstimator : Names the heads by kind, and fits tables of targets.

    Notes
    -----
    As ``tf.estimator.LinearEstimator``. The rows of `coef_` are the logits, those of
    several heads one after the other.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest import LinearEstimator
    >>> from skest.heads import PoissonRegressionHead
    >>> X = pd.DataFrame({"day": ["Mon", "Sun"] * 20})
    >>> model = LinearEstimator(PoissonRegressionHead(), random_state=0)
    >>> model.fit(X, [3, 9] * 20).predict(X[:2]).round(1).tolist()
    [3.0, 9.0]
    """


@with_parameters
class BaselineParameters(OptimizerParameters):
    """How a bias is learned.

    It starts at the best one, where that is known, and "auto" takes all rows at once.

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

    optimizer: Any = parameter(default="ftrl", values=allowed.OPTIMIZER)
    # As tf.estimator.BaselineClassifier, whose optimizer is Ftrl with this rate.
    learning_rate: allowed.Rate = parameter(default=0.3, values=allowed.RATE)


class SkestBaseline(BaselineParameters, SkestEstimator):
    """What the baseline estimators have in common; not for direct use."""

    def _model_fn(self, head: Any) -> ModelFunction:
        return self._bound(baseline_model_fn, head=head)

    def _choose(self, n_rows: float, **how: Any) -> None:
        super()._choose(n_rows, **how)
        # All rows at once: the bias starts where their gradient is zero, and a part of
        # them would lead away.
        whole = {"batch_size": n_rows, "early_stopping": False}
        self.auto_params_ = {
            name: whole.get(name, value) for name, value in self.auto_params_.items()
        }

    def _reasons(self) -> dict[str, tuple[Any, str]]:
        return {
            name: (value, "all rows, of which the bias is the best")
            for name, (value, _) in super()._reasons().items()
        }

    @property
    def _begins_at_constant(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if tags.classifier_tags is not None:
            # scikit-learn's checks demand a good score of all others.
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
