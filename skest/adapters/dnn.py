# SPDX-License-Identifier: Apache-2.0
"""`DNNClassifier`, `DNNRegressor`, `DNNEstimator`: perceptrons on feature columns."""

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch

from skest.adapters.classifier import SkestClassifier
from skest.adapters.mixed import SkestHeadEstimator
from skest.adapters.parameters import with_shared_docs
from skest.adapters.regressor import SkestRegressor
from skest.canned.dnn import dnn_model_fn
from skest.core.sklearn_compat import Interval, Options, StrOptions
from skest.feature_columns.columns import FeatureColumns
from skest.heads.base import Head
from skest.networks.layers import ACTIVATIONS
from skest.optimizers.schedules import LRSchedulerLike, RateFunction
from skest.spec import EstimatorSpec

OPTIMIZER_CONSTRAINT = [str, type, callable, list, tuple]
# What "auto" may stand for where there is a training recipe.
AUTO_CONSTRAINTS = {
    "max_iter": [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")],
    "n_iter_no_change": [
        StrOptions({"auto"}),
        Interval(Integral, 1, None, closed="left"),
        Options(Real, {np.inf}),
    ],
}
LEARNING_RATE_CONSTRAINT = [Interval(Real, 0, None, closed="neither"), callable, None]
WEIGHT_DECAY_CONSTRAINT = [Interval(Real, 0, None, closed="left")]
SCHEDULE_CONSTRAINTS = {
    "lr_scheduler": [callable, None],
    "clip_norm": [Interval(Real, 0, None, closed="neither"), None],
}
MEMBERS_CONSTRAINT = [StrOptions({"auto"}), Interval(Integral, 1, None, closed="left")]
HIDDEN_UNITS_CONSTRAINT = ["array-like", Interval(Integral, 1, None, closed="left")]
COLUMNS_CONSTRAINT = [FeatureColumns, list, tuple, None]


class DNNParameters:
    """What estimators with a DNN have in common."""

    hidden_units: Any
    activation: Any
    dropout: Any
    batch_norm: bool
    optimizer: Any
    learning_rate: Any
    weight_decay: Any
    lr_scheduler: LRSchedulerLike | None
    clip_norm: float | None
    n_members: Any
    feature_columns_: FeatureColumns
    _chosen: Callable[[str], Any]
    _torch_dtype: torch.dtype

    _column_parameters: ClassVar[dict[str, str]] = {"feature_columns": "dense"}
    _own_constraints: ClassVar[dict[str, list[Any]]] = {
        "hidden_units": HIDDEN_UNITS_CONSTRAINT,
        "feature_columns": COLUMNS_CONSTRAINT,
        "activation": [StrOptions(set(ACTIVATIONS)), callable],
        "dropout": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="left")],
        "batch_norm": ["boolean"],
        "optimizer": OPTIMIZER_CONSTRAINT,
        "learning_rate": [StrOptions({"auto"}), *LEARNING_RATE_CONSTRAINT],
        "weight_decay": [StrOptions({"auto"}), *WEIGHT_DECAY_CONSTRAINT],
        **SCHEDULE_CONSTRAINTS,
        **AUTO_CONSTRAINTS,
        "n_members": MEMBERS_CONSTRAINT,
    }
    _recipe_for: ClassVar[tuple[str, str] | None] = ("optimizer", "learning_rate")

    def _model_fn(self, head: Any) -> Callable[..., EstimatorSpec]:
        return partial(
            dnn_model_fn,
            head=head,
            columns=self.feature_columns_,
            hidden_units=self.hidden_units,
            activation=self.activation,
            dropout=self._chosen("dropout"),
            batch_norm=self.batch_norm,
            optimizer=self.optimizer,
            learning_rate=self._chosen("learning_rate"),
            weight_decay=self._chosen("weight_decay"),
            lr_scheduler=self.lr_scheduler,
            clip_norm=self.clip_norm,
            n_members=self._chosen("n_members"),
            dtype=self._torch_dtype,
        )


@with_shared_docs
class DNNClassifier(DNNParameters, SkestClassifier):
    """A multilayer perceptron that classifies rows of arrays or mixed tables.

    Parameters
    ----------
    hidden_units : sequence of int, default=(128, 64)
        Widths of the hidden layers.
    <columns>
    <network>
    <optimizer>
    <schedule>
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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestClassifier._parameter_constraints,
        **DNNParameters._own_constraints,
    }

    def __init__(
        self,
        hidden_units: Sequence[int] | int = (128, 64),
        *,
        feature_columns: Any = None,
        activation: Any = "relu",
        dropout: float | str = "auto",
        batch_norm: bool = False,
        optimizer: Any = "auto",
        learning_rate: float | str | RateFunction | None = "auto",
        weight_decay: float | str = "auto",
        lr_scheduler: LRSchedulerLike | None = None,
        clip_norm: float | None = None,
        n_members: int | str = "auto",
        batch_size: int | str = "auto",
        max_iter: int | str = "auto",
        max_steps: int | None = None,
        sampling: str = "epoch",
        class_weight: Any = None,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: float | str = "auto",
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
        self.hidden_units = hidden_units
        self.feature_columns = feature_columns
        self.activation = activation
        self.dropout = dropout
        self.batch_norm = batch_norm
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.lr_scheduler = lr_scheduler
        self.clip_norm = clip_norm
        self.n_members = n_members
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
class DNNRegressor(DNNParameters, SkestRegressor):
    """A multilayer perceptron that predicts numbers from arrays or mixed tables.

    Parameters
    ----------
    hidden_units : sequence of int, default=(128, 64)
        Widths of the hidden layers.
    <regression_loss>
    <columns>
    <network>
    <optimizer>
    <schedule>
    <training>
    <stopping>

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
    >>> X = np.linspace(-1, 1, 100).reshape(-1, 1)
    >>> model = DNNRegressor((16,), random_state=0).fit(X, X[:, 0] ** 2)
    >>> bool(model.score(X, X[:, 0] ** 2) > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestRegressor._parameter_constraints,
        **DNNParameters._own_constraints,
    }

    def __init__(
        self,
        hidden_units: Sequence[int] | int = (128, 64),
        *,
        loss: str = "squared_error",
        quantile: float = 0.5,
        feature_columns: Any = None,
        activation: Any = "relu",
        dropout: float | str = "auto",
        batch_norm: bool = False,
        optimizer: Any = "auto",
        learning_rate: float | str | RateFunction | None = "auto",
        weight_decay: float | str = "auto",
        lr_scheduler: LRSchedulerLike | None = None,
        clip_norm: float | None = None,
        n_members: int | str = "auto",
        batch_size: int | str = "auto",
        max_iter: int | str = "auto",
        max_steps: int | None = None,
        sampling: str = "epoch",
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: float | str = "auto",
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
        self.hidden_units = hidden_units
        self.loss = loss
        self.quantile = quantile
        self.feature_columns = feature_columns
        self.activation = activation
        self.dropout = dropout
        self.batch_norm = batch_norm
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.lr_scheduler = lr_scheduler
        self.clip_norm = clip_norm
        self.n_members = n_members
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


@with_shared_docs
class DNNEstimator(DNNParameters, SkestHeadEstimator):
    """A multilayer perceptron with a head of your choice.

    Parameters
    ----------
    <head>
    hidden_units : sequence of int, default=(128, 64)
        Widths of the hidden layers.
    <columns>
    <network>
    <optimizer>
    <schedule>
    <training>
    <stopping>

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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestHeadEstimator._parameter_constraints,
        **DNNParameters._own_constraints,
    }

    def __init__(
        self,
        head: Head | None = None,
        hidden_units: Sequence[int] | int = (128, 64),
        *,
        feature_columns: Any = None,
        activation: Any = "relu",
        dropout: float | str = "auto",
        batch_norm: bool = False,
        optimizer: Any = "auto",
        learning_rate: float | str | RateFunction | None = "auto",
        weight_decay: float | str = "auto",
        lr_scheduler: LRSchedulerLike | None = None,
        clip_norm: float | None = None,
        n_members: int | str = "auto",
        batch_size: int | str = "auto",
        max_iter: int | str = "auto",
        max_steps: int | None = None,
        sampling: str = "epoch",
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        n_iter_no_change: float | str = "auto",
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
        self.hidden_units = hidden_units
        self.feature_columns = feature_columns
        self.activation = activation
        self.dropout = dropout
        self.batch_norm = batch_norm
        self.optimizer = optimizer
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.lr_scheduler = lr_scheduler
        self.clip_norm = clip_norm
        self.n_members = n_members
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
