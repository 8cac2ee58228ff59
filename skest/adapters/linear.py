# SPDX-License-Identifier: Apache-2.0
"""`LinearClassifier`, `LinearRegressor`, `LinearEstimator`: linear models."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, column_or_1d

from skest.adapters.classifier import SkestClassifier
from skest.adapters.dnn import (
    COLUMNS_CONSTRAINT,
    LEARNING_RATE_CONSTRAINT,
    OPTIMIZER_CONSTRAINT,
    SCHEDULE_CONSTRAINTS,
    WEIGHT_DECAY_CONSTRAINT,
)
from skest.adapters.features import WEIGHT_KEY
from skest.adapters.mixed import SkestHeadEstimator
from skest.adapters.parameters import with_shared_docs
from skest.adapters.reader import Rows
from skest.adapters.regressor import SkestRegressor
from skest.adapters.target_scale import TargetScale
from skest.canned.linear import linear_model_fn
from skest.canned.sdca import LinearSDCA, as_sdca
from skest.core.sklearn_compat import Interval, StrOptions
from skest.estimators.estimator import Estimator
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.modules import parameter_name
from skest.heads.base import Head
from skest.optimizers.schedules import LRSchedulerLike, RateFunction
from skest.spec import EstimatorSpec

# Key of the row numbers beside the features, which are the example ids of SDCA.
_ROW_KEY = "__row_number__"
_ROWS_CHANGE = (
    "does not go with SDCA by row numbers: they may stand for other rows in the next "
    "call, and each row has a dual variable. Give X a column of unique ids and set "
    "LinearSDCA(example_id_column=...), or use another optimizer."
)


class TakesSDCA:
    """Numbers the rows for `LinearSDCA`; a mixin for estimators with an `optimizer`."""

    optimizer: Any
    warm_start: bool
    sampling: str

    def _numbers_rows(self) -> LinearSDCA | None:
        """Return the settings of SDCA if row numbers tell its examples apart."""
        sdca = as_sdca(self.optimizer)
        if sdca is None or sdca.example_id_column is not None:
            return None
        return replace(sdca, example_id_column=_ROW_KEY)

    def _validate_params(self) -> None:
        super()._validate_params()  # type: ignore[misc]
        if self.warm_start and self._numbers_rows():
            raise ValueError(f"warm_start=True {_ROWS_CHANGE}")
        if self.sampling == "weighted" and as_sdca(self.optimizer) is not None:
            raise ValueError(
                "sampling='weighted' has no meaning for LinearSDCA, whose objective weighs "
                "every row exactly. Leave it at 'epoch'."
            )

    def _check_partial_fit(self) -> None:
        super()._check_partial_fit()  # type: ignore[misc]
        if self._numbers_rows():
            raise ValueError(f"Training by parts {_ROWS_CHANGE}")

    def _keys_beside(self) -> set[Any]:
        sdca = as_sdca(self.optimizer)
        return set() if sdca is None else {sdca.example_id_column}

    def _training_features(self, rows: Rows) -> dict[str, Any]:
        features = super()._training_features(rows)  # type: ignore[misc]
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
        return features | {_ROW_KEY: np.arange(rows.n_rows)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        if as_sdca(self.optimizer) is not None:
            tags.target_tags.multi_output = False
            tags.input_tags.sparse = False
            if tags.classifier_tags is not None:
                tags.classifier_tags.multi_class = False
                tags.classifier_tags.multi_label = False
        return tags

    def _target_rows(self, y: Any) -> Any:
        y = super()._target_rows(y)  # type: ignore[misc]
        is_column = as_sdca(self.optimizer) is not None and np.shape(y)[1:] == (1,)
        return column_or_1d(y, warn=True) if is_column else y


def linear_weights(
    model: Any, columns: FeatureColumns, prefix: str = ""
) -> tuple[NDArray[Any], NDArray[Any]]:
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
    weights = [value(prefix + parameter_name(c.name)) for c in columns.active]
    weight, bias = np.concatenate(weights).T, value(f"{prefix}bias")
    if model._scale is not None:
        weight = weight * model._scale.scale[:, None]
        bias = bias * model._scale.scale + model._scale.center
    return weight, bias


class _Linear(TakesSDCA):
    """What the linear estimators have in common."""

    estimator_: Estimator

    sparse_combiner: str
    optimizer: Any
    learning_rate: Any
    l1: float
    l2: float
    weight_decay: float
    lr_scheduler: LRSchedulerLike | None
    clip_norm: float | None
    feature_columns_: FeatureColumns
    _scale: TargetScale | None
    _torch_dtype: torch.dtype

    _column_parameters: ClassVar[dict[str, str]] = {"feature_columns": "linear"}
    _own_constraints: ClassVar[dict[str, list[Any]]] = {
        "feature_columns": COLUMNS_CONSTRAINT,
        "sparse_combiner": [StrOptions({"sum", "mean", "sqrtn"})],
        "optimizer": [*OPTIMIZER_CONSTRAINT, LinearSDCA],
        "learning_rate": [StrOptions({"auto"}), *LEARNING_RATE_CONSTRAINT],
        **SCHEDULE_CONSTRAINTS,
        "l1": [Interval(Real, 0, None, closed="left")],
        "l2": [Interval(Real, 0, None, closed="left")],
        "weight_decay": WEIGHT_DECAY_CONSTRAINT,
    }

    @property
    def coef_(self) -> NDArray[Any]:
        """Weights of the encoded features.

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
    def intercept_(self) -> NDArray[Any]:
        """Biases: a number for a single target of a regression, else (n_logits,)."""
        check_is_fitted(self)
        return self._weights_and_bias()[1]

    def _weights_and_bias(self) -> tuple[NDArray[Any], NDArray[Any]]:
        return linear_weights(self, self.feature_columns_)

    def _model_fn(self, head: Any) -> Callable[..., EstimatorSpec]:
        return partial(
            linear_model_fn,
            head=head,
            columns=self.feature_columns_,
            sparse_combiner=self.sparse_combiner,
            optimizer=self._numbers_rows() or self.optimizer,
            learning_rate=self.learning_rate,
            l1=self.l1,
            l2=self.l2,
            weight_decay=self.weight_decay,
            lr_scheduler=self.lr_scheduler,
            clip_norm=self.clip_norm,
            dtype=self._torch_dtype,
        )


@with_shared_docs
class LinearClassifier(_Linear, SkestClassifier):
    """A linear classifier on arrays or mixed tables, with categorical columns as they are.

    Every categorical value has a weight of its own, looked up by its id: the cost of a
    step does not depend on the number of values.

    Parameters
    ----------
    <linear_columns>
    sparse_combiner : {"sum", "mean", "sqrtn"}, default="sum"
        How the weights of several values in one cell are combined.
    <linear_optimizer>
    <training>
    <class_weight>
    <stopping>

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    feature_columns_ : FeatureColumns
        The fitted columns.
    <coefficients>
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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestClassifier._parameter_constraints,
        **_Linear._own_constraints,
    }

    def __init__(
        self,
        *,
        feature_columns: Any = None,
        sparse_combiner: str = "sum",
        optimizer: Any = "ftrl",
        learning_rate: float | str | RateFunction | None = "auto",
        l1: float = 0.0,
        l2: float = 0.0,
        weight_decay: float = 0.0,
        lr_scheduler: LRSchedulerLike | None = None,
        clip_norm: float | None = None,
        batch_size: int | str = "auto",
        max_iter: int = 200,
        max_steps: int | None = None,
        sampling: str = "epoch",
        class_weight: Any = None,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: float = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        warm_start_from: Any = None,
        random_state: Any = None,
        dtype: str = "auto",
        device: Any = "auto",
        execution: str = "auto",
        hooks: Sequence[Any] = (),
        config: Any = None,
        verbose: int = 0,
    ) -> None:
        self.feature_columns = feature_columns
        self.sparse_combiner = sparse_combiner
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.l1 = l1
        self.l2 = l2
        self.weight_decay = weight_decay
        self.lr_scheduler = lr_scheduler
        self.clip_norm = clip_norm
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.max_steps = max_steps
        self.sampling = sampling
        self.class_weight = class_weight
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.warm_start_from = warm_start_from
        self.random_state = random_state
        self.dtype = dtype
        self.device = device
        self.execution = execution
        self.hooks = hooks
        self.config = config
        self.verbose = verbose


@with_shared_docs
class LinearRegressor(_Linear, SkestRegressor):
    """A linear regression on arrays or mixed tables, with categorical columns as they are.

    Every categorical value has a weight of its own, looked up by its id: the cost of a
    step does not depend on the number of values.

    Parameters
    ----------
    <regression_loss>
    <linear_columns>
    sparse_combiner : {"sum", "mean", "sqrtn"}, default="sum"
        How the weights of several values in one cell are combined.
    <linear_optimizer>
    <training>
    <stopping>

    Attributes
    ----------
    feature_columns_ : FeatureColumns
        The fitted columns.
    <coefficients>
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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestRegressor._parameter_constraints,
        **_Linear._own_constraints,
    }

    def __init__(
        self,
        *,
        loss: str = "squared_error",
        quantile: float = 0.5,
        feature_columns: Any = None,
        sparse_combiner: str = "sum",
        optimizer: Any = "ftrl",
        learning_rate: float | str | RateFunction | None = "auto",
        l1: float = 0.0,
        l2: float = 0.0,
        weight_decay: float = 0.0,
        lr_scheduler: LRSchedulerLike | None = None,
        clip_norm: float | None = None,
        batch_size: int | str = "auto",
        max_iter: int = 200,
        max_steps: int | None = None,
        sampling: str = "epoch",
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: float = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        warm_start_from: Any = None,
        random_state: Any = None,
        dtype: str = "auto",
        device: Any = "auto",
        execution: str = "auto",
        hooks: Sequence[Any] = (),
        config: Any = None,
        verbose: int = 0,
    ) -> None:
        self.loss = loss
        self.quantile = quantile
        self.feature_columns = feature_columns
        self.sparse_combiner = sparse_combiner
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.l1 = l1
        self.l2 = l2
        self.weight_decay = weight_decay
        self.lr_scheduler = lr_scheduler
        self.clip_norm = clip_norm
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.max_steps = max_steps
        self.sampling = sampling
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.warm_start_from = warm_start_from
        self.random_state = random_state
        self.dtype = dtype
        self.device = device
        self.execution = execution
        self.hooks = hooks
        self.config = config
        self.verbose = verbose

    def _weights_and_bias(self) -> tuple[NDArray[Any], NDArray[Any]]:
        weights, bias = super()._weights_and_bias()
        return (weights, bias) if self._target.shape else (weights[0], bias[0])


@with_shared_docs
class LinearEstimator(_Linear, SkestHeadEstimator):
    """A linear model with a head of your choice.

    Parameters
    ----------
    <head>
    <linear_columns>
    sparse_combiner : {"sum", "mean", "sqrtn"}, default="sum"
        How the weights of several values in one cell are combined.
    <linear_optimizer>
    <training>
    <stopping>

    Attributes
    ----------
    feature_columns_ : FeatureColumns
        The fitted columns.
    <coefficients>
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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestHeadEstimator._parameter_constraints,
        **_Linear._own_constraints,
    }

    def __init__(
        self,
        head: Head | None = None,
        *,
        feature_columns: Any = None,
        sparse_combiner: str = "sum",
        optimizer: Any = "ftrl",
        learning_rate: float | str | RateFunction | None = "auto",
        l1: float = 0.0,
        l2: float = 0.0,
        weight_decay: float = 0.0,
        lr_scheduler: LRSchedulerLike | None = None,
        clip_norm: float | None = None,
        batch_size: int | str = "auto",
        max_iter: int = 200,
        max_steps: int | None = None,
        sampling: str = "epoch",
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: float = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        warm_start_from: Any = None,
        random_state: Any = None,
        dtype: str = "auto",
        device: Any = "auto",
        execution: str = "auto",
        hooks: Sequence[Any] = (),
        config: Any = None,
        verbose: int = 0,
    ) -> None:
        self.head = head
        self.feature_columns = feature_columns
        self.sparse_combiner = sparse_combiner
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.l1 = l1
        self.l2 = l2
        self.weight_decay = weight_decay
        self.lr_scheduler = lr_scheduler
        self.clip_norm = clip_norm
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.max_steps = max_steps
        self.sampling = sampling
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.warm_start_from = warm_start_from
        self.random_state = random_state
        self.dtype = dtype
        self.device = device
        self.execution = execution
        self.hooks = hooks
        self.config = config
        self.verbose = verbose
