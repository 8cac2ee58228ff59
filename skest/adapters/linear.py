# SPDX-License-Identifier: Apache-2.0
"""`LinearClassifier` and `LinearRegressor`: a linear model on feature columns."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, column_or_1d

from skest._compat import Interval, StrOptions
from skest.adapters._docs import with_shared_docs
from skest.adapters.classifier import SkestClassifier
from skest.adapters.dnn import (
    COLUMNS_CONSTRAINT,
    LEARNING_RATE_CONSTRAINT,
    OPTIMIZER_CONSTRAINT,
)
from skest.adapters.features import WEIGHT_KEY
from skest.adapters.regressor import SkestRegressor
from skest.estimator import Estimator
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.modules import LinearFeatures, parameter_name
from skest.keys import ModeKeys
from skest.model_fn import draws_only_to_train
from skest.optimizers import make_optimizer
from skest.sdca import LinearSDCA, as_sdca, sdca_spec
from skest.spec import EstimatorSpec

__all__ = ["LinearClassifier", "LinearRegressor", "linear_model_fn"]

_MAX_LEARNING_RATE = 0.2
# Key of the row numbers beside the features, which are the example ids of SDCA.
_ROW_KEY = "__row_number__"
_ROWS_CHANGE = (
    "does not go with SDCA by row numbers: they may stand for other rows in the next "
    "call, and each row has a dual variable. Give X a column of unique ids and set "
    "LinearSDCA(example_id_column=...), or use another optimizer."
)


@draws_only_to_train
def linear_model_fn(
    features: Any,
    labels: Any,
    mode: str,
    *,
    head: Any,
    columns: FeatureColumns,
    sparse_combiner: str = "sum",
    optimizer: Any = "ftrl",
    learning_rate: float | str | None = "auto",
    l1: float = 0.0,
    l2: float = 0.0,
    weight_decay: float = 0.0,
    dtype: torch.dtype = torch.float32,
) -> EstimatorSpec:
    """Describe a linear model for `skest.Estimator`; bind what follows `mode`.

    Parameters
    ----------
    features, labels : arrays or dictionaries of arrays
        The first batch; labels are None in prediction.
    mode : str
        One of `skest.ModeKeys`.
    head : Head
        Loss, predictions and metrics.
    columns : FeatureColumns
        Fitted columns, dense or categorical.
    sparse_combiner, optimizer, learning_rate, l1, l2, weight_decay
        See `LinearClassifier`.
    dtype : torch.dtype, default=torch.float32
        Floating type of the network.

    Returns
    -------
    EstimatorSpec
        The model, for every mode.
    """
    network = LinearFeatures(
        columns,
        head.logits_dimension,
        sparse_combiner,
        dtype=dtype,
        initialize=mode == ModeKeys.TRAIN,
    )
    encode = partial(columns.encode, dtype=dtype)
    sdca = as_sdca(optimizer) if mode == ModeKeys.TRAIN else None
    if sdca is not None:
        _check_unused(
            learning_rate=learning_rate, l1=l1, l2=l2, weight_decay=weight_decay
        )
        return sdca_spec(
            sdca,
            features,
            labels,
            head=head,
            columns=columns,
            network=network,
            encode=encode,
        )
    return head.create_estimator_spec(
        features,
        mode,
        network,
        labels=labels,
        encode=encode,
        optimizer=make_optimizer(
            optimizer,
            network.named_parameters(),
            auto_learning_rate(learning_rate, columns, _MAX_LEARNING_RATE),
            weight_decay=weight_decay,
            **ftrl_penalties(optimizer, l1, l2),
        )
        if mode == ModeKeys.TRAIN
        else None,
    )


def _check_unused(**settings: Any) -> None:
    """Refuse settings that dual coordinate ascent does not take from the estimator."""
    for name, value in settings.items():
        if value not in (0, "auto", None):
            raise ValueError(
                f"{name!r} has no meaning for LinearSDCA; got {value!r}. It has no "
                "learning rate; set its penalties with LinearSDCA(l1=..., l2=...)."
            )


def auto_learning_rate(
    learning_rate: float | str | None, columns: FeatureColumns, at_most: float
) -> float | None:
    """Return the learning rate; "auto" is ``min(at_most, 1 / sqrt(n_columns))``."""
    if learning_rate == "auto":
        return min(at_most, len(columns.columns_) ** -0.5)
    return learning_rate  # type: ignore[return-value]


def ftrl_penalties(optimizer: Any, l1: float, l2: float) -> dict[str, float]:
    """Return the penalties as arguments of the optimizer."""
    if isinstance(optimizer, str) and optimizer.lower() == "ftrl":
        return {"l1": l1, "l2": l2}
    if l1 or l2:
        raise ValueError(
            f"'l1' and 'l2' need the optimizer \"ftrl\"; got {optimizer!r}. "
            "Use 'weight_decay' for an L2 penalty with it."
        )
    return {}


class _Linear:
    """What `LinearClassifier` and `LinearRegressor` have in common."""

    estimator_: Estimator

    sparse_combiner: str
    optimizer: Any
    learning_rate: Any
    l1: float
    l2: float
    weight_decay: float
    warm_start: bool
    feature_columns_: FeatureColumns
    _torch_dtype: torch.dtype

    _column_parameters: ClassVar[dict[str, str]] = {"feature_columns": "linear"}
    _own_constraints: ClassVar[dict[str, list[Any]]] = {
        "feature_columns": COLUMNS_CONSTRAINT,
        "sparse_combiner": [StrOptions({"sum", "mean", "sqrtn"})],
        "optimizer": [*OPTIMIZER_CONSTRAINT, LinearSDCA],
        "learning_rate": [StrOptions({"auto"}), *LEARNING_RATE_CONSTRAINT],
        "l1": [Interval(Real, 0, None, closed="left")],
        "l2": [Interval(Real, 0, None, closed="left")],
    }

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

    def _training_features(self, rows: Any) -> dict[str, Any]:
        features = super()._training_features(rows)  # type: ignore[misc]
        if as_sdca(self.optimizer) is None:
            return features
        if rows.weight is not None:
            # SDCA sums over rows: a weight of 2 is two rows, whatever the mean.
            features = {**features, WEIGHT_KEY: rows.weight}
        if not self._numbers_rows():
            return features
        if _ROW_KEY in rows.features:
            raise ValueError(
                f"A column of X is called {_ROW_KEY!r}, a name that skest needs for the "
                "row numbers. Rename it."
            )
        return {**features, _ROW_KEY: np.arange(len(rows.y))}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        if as_sdca(self.optimizer) is not None:
            tags.target_tags.multi_output = False
            if tags.classifier_tags is not None:
                tags.classifier_tags.multi_class = False
        return tags

    @property
    def coef_(self) -> NDArray[Any]:
        """Weights of the encoded features.

        The features are the columns of ``feature_columns_.transform(X)``, whose names are
        ``feature_columns_.get_feature_names_out()``. The shape is that of
        ``sklearn.linear_model``: (n_features,) for a single target of a regression,
        (n_logits, n_features) otherwise.
        """
        check_is_fitted(self)
        return self._weights_and_bias()[0]

    @property
    def intercept_(self) -> NDArray[Any]:
        """Biases: a number for a single target of a regression, else (n_logits,)."""
        check_is_fitted(self)
        return self._weights_and_bias()[1]

    def _weights_and_bias(self) -> tuple[NDArray[Any], NDArray[Any]]:
        value = self.estimator_.get_variable_value
        weights = [
            value(parameter_name(column.name))
            for column in self.feature_columns_.active
        ]
        return np.concatenate(weights).T, value("bias")

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
            dtype=self._torch_dtype,
        )


def _has_partial_fit(estimator: Any) -> bool:
    if estimator._numbers_rows():
        raise ValueError(f"partial_fit {_ROWS_CHANGE}")
    return True


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
    partial_fit = available_if(_has_partial_fit)(SkestClassifier.partial_fit)

    def __init__(
        self,
        *,
        feature_columns: Any = None,
        sparse_combiner: str = "sum",
        optimizer: Any = "ftrl",
        learning_rate: float | str | None = "auto",
        l1: float = 0.0,
        l2: float = 0.0,
        weight_decay: float = 0.0,
        batch_size: int | str = "auto",
        max_iter: int = 200,
        max_steps: int | None = None,
        class_weight: Any = None,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: float = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        random_state: Any = None,
        dtype: str = "auto",
        device: Any = "auto",
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
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.max_steps = max_steps
        self.class_weight = class_weight
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.dtype = dtype
        self.device = device
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
    partial_fit = available_if(_has_partial_fit)(SkestRegressor.partial_fit)

    def __init__(
        self,
        *,
        loss: str = "squared_error",
        quantile: float = 0.5,
        feature_columns: Any = None,
        sparse_combiner: str = "sum",
        optimizer: Any = "ftrl",
        learning_rate: float | str | None = "auto",
        l1: float = 0.0,
        l2: float = 0.0,
        weight_decay: float = 0.0,
        batch_size: int | str = "auto",
        max_iter: int = 200,
        max_steps: int | None = None,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: float = 10,
        tol: float = 1e-4,
        warm_start: bool = False,
        random_state: Any = None,
        dtype: str = "auto",
        device: Any = "auto",
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
        self.batch_size = batch_size
        self.max_iter = max_iter
        self.max_steps = max_steps
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.dtype = dtype
        self.device = device
        self.hooks = hooks
        self.config = config
        self.verbose = verbose

    def _check_target(self, y: Any, *, reset: bool) -> NDArray[Any]:
        if as_sdca(self.optimizer) is not None and np.asarray(y).shape[1:] == (1,):
            y = column_or_1d(y, warn=True)
        return super()._check_target(y, reset=reset)

    def _weights_and_bias(self) -> tuple[NDArray[Any], NDArray[Any]]:
        weights, bias = super()._weights_and_bias()
        weights = weights * np.reshape(self._target.scale, (-1, 1))
        bias = bias * self._target.scale + self._target.center
        return (weights, bias) if self._target_shape else (weights[0], bias[0])
