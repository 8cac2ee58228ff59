# SPDX-License-Identifier: Apache-2.0
"""`DNNLinearCombinedClassifier`, `…Regressor` and `…Estimator`: wide & deep."""

from collections.abc import Callable, Sequence
from functools import partial
from numbers import Real
from typing import Any, ClassVar

import torch

from skest.adapters.classifier import SkestClassifier
from skest.adapters.dnn import (
    AUTO_CONSTRAINTS,
    COLUMNS_CONSTRAINT,
    HIDDEN_UNITS_CONSTRAINT,
    LEARNING_RATE_CONSTRAINT,
    MEMBERS_CONSTRAINT,
    OPTIMIZER_CONSTRAINT,
    SCHEDULE_CONSTRAINTS,
    WEIGHT_DECAY_CONSTRAINT,
)
from skest.adapters.mixed import SkestHeadEstimator
from skest.adapters.parameters import with_shared_docs
from skest.adapters.regressor import SkestRegressor
from skest.canned.dnn_linear import dnn_linear_combined_model_fn
from skest.core.sklearn_compat import Interval, StrOptions
from skest.feature_columns.columns import FeatureColumns
from skest.heads.base import Head
from skest.networks.layers import ACTIVATIONS
from skest.optimizers.schedules import LRSchedulerLike, RateFunction
from skest.spec import EstimatorSpec


class _Combined:
    """What the wide & deep estimators have in common."""

    linear_feature_columns: Any
    dnn_feature_columns: Any
    dnn_hidden_units: Any
    dnn_activation: Any
    dnn_dropout: Any
    batch_norm: bool
    dnn_optimizer: Any
    dnn_learning_rate: Any
    linear_optimizer: Any
    linear_learning_rate: Any
    linear_sparse_combiner: str
    l1: float
    l2: float
    weight_decay: Any
    lr_scheduler: LRSchedulerLike | None
    clip_norm: float | None
    n_members: Any
    linear_feature_columns_: FeatureColumns | None
    dnn_feature_columns_: FeatureColumns | None
    _chosen: Callable[[str], Any]
    _torch_dtype: torch.dtype

    _column_parameters: ClassVar[dict[str, str]] = {
        "linear_feature_columns": "linear",
        "dnn_feature_columns": "dense",
    }
    _own_constraints: ClassVar[dict[str, list[Any]]] = {
        "dnn_hidden_units": HIDDEN_UNITS_CONSTRAINT,
        "linear_feature_columns": COLUMNS_CONSTRAINT,
        "dnn_feature_columns": COLUMNS_CONSTRAINT,
        "dnn_activation": [StrOptions(set(ACTIVATIONS)), callable],
        "dnn_dropout": [StrOptions({"auto"}), Interval(Real, 0, 1, closed="left")],
        "batch_norm": ["boolean"],
        "dnn_optimizer": OPTIMIZER_CONSTRAINT,
        "dnn_learning_rate": [StrOptions({"auto"}), *LEARNING_RATE_CONSTRAINT],
        "linear_optimizer": OPTIMIZER_CONSTRAINT,
        "linear_learning_rate": [StrOptions({"auto"}), *LEARNING_RATE_CONSTRAINT],
        **SCHEDULE_CONSTRAINTS,
        "linear_sparse_combiner": [StrOptions({"sum", "mean", "sqrtn"})],
        "l1": [Interval(Real, 0, None, closed="left")],
        "l2": [Interval(Real, 0, None, closed="left")],
        "weight_decay": [StrOptions({"auto"}), *WEIGHT_DECAY_CONSTRAINT],
        "n_members": MEMBERS_CONSTRAINT,
        **AUTO_CONSTRAINTS,
    }
    _recipe_for: ClassVar[tuple[str, str] | None] = (
        "dnn_optimizer",
        "dnn_learning_rate",
    )

    def _model_fn(self, head: Any) -> Callable[..., EstimatorSpec]:
        return partial(
            dnn_linear_combined_model_fn,
            head=head,
            linear_columns=self.linear_feature_columns_,
            dnn_columns=self.dnn_feature_columns_,
            dnn_hidden_units=self.dnn_hidden_units,
            dnn_activation=self.dnn_activation,
            dnn_dropout=self._chosen("dnn_dropout"),
            batch_norm=self.batch_norm,
            dnn_optimizer=self.dnn_optimizer,
            dnn_learning_rate=self._chosen("dnn_learning_rate"),
            linear_optimizer=self.linear_optimizer,
            linear_learning_rate=self.linear_learning_rate,
            linear_sparse_combiner=self.linear_sparse_combiner,
            l1=self.l1,
            l2=self.l2,
            weight_decay=self._chosen("weight_decay"),
            lr_scheduler=self.lr_scheduler,
            clip_norm=self.clip_norm,
            n_members=self._chosen("n_members"),
            dtype=self._torch_dtype,
        )


@with_shared_docs
class DNNLinearCombinedClassifier(_Combined, SkestClassifier):
    """A wide & deep model that classifies rows of arrays or mixed tables.

    A linear model memorises sparse columns and their crosses, a DNN generalises from
    dense columns and embeddings; their logits are added and trained together.

    Parameters
    ----------
    dnn_hidden_units : sequence of int, default=(128, 64)
        Widths of the hidden layers.
    <combined_columns>
    <combined_network>
    <training>
    <class_weight>
    <stopping>

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    linear_feature_columns_, dnn_feature_columns_ : FeatureColumns or None
        The fitted columns of the parts.
    <fitted>

    Notes
    -----
    As ``tf.estimator.DNNLinearCombinedClassifier``; Cheng et al., "Wide & Deep Learning for
    Recommender Systems" (arXiv 1606.07792).

    Examples
    --------
    >>> import pandas as pd
    >>> from skest import DNNLinearCombinedClassifier
    >>> X = pd.DataFrame({"size": [1.0, 2.0, 8.0, 9.0] * 8, "kind": list("aabb") * 8})
    >>> y = ["small", "small", "big", "big"] * 8
    >>> model = DNNLinearCombinedClassifier((8,), max_iter=30, random_state=0).fit(X, y)
    >>> model.predict(X[:4]).tolist()
    ['small', 'small', 'big', 'big']
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestClassifier._parameter_constraints,
        **_Combined._own_constraints,
    }

    def __init__(
        self,
        dnn_hidden_units: Sequence[int] | int = (128, 64),
        *,
        linear_feature_columns: Any = None,
        dnn_feature_columns: Any = None,
        dnn_activation: Any = "relu",
        dnn_dropout: float | str = "auto",
        batch_norm: bool = False,
        dnn_optimizer: Any = "auto",
        dnn_learning_rate: float | str | RateFunction | None = "auto",
        linear_optimizer: Any = "ftrl",
        linear_learning_rate: float | str | RateFunction | None = 0.05,
        linear_sparse_combiner: str = "sum",
        l1: float = 0.0,
        l2: float = 0.0,
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
        self.dnn_hidden_units = dnn_hidden_units
        self.linear_feature_columns = linear_feature_columns
        self.dnn_feature_columns = dnn_feature_columns
        self.dnn_activation = dnn_activation
        self.dnn_dropout = dnn_dropout
        self.batch_norm = batch_norm
        self.dnn_optimizer = dnn_optimizer
        self.dnn_learning_rate = dnn_learning_rate
        self.linear_optimizer = linear_optimizer
        self.linear_learning_rate = linear_learning_rate
        self.linear_sparse_combiner = linear_sparse_combiner
        self.l1 = l1
        self.l2 = l2
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
class DNNLinearCombinedRegressor(_Combined, SkestRegressor):
    """A wide & deep model that predicts numbers from rows of arrays or mixed tables.

    A linear model memorises sparse columns and their crosses, a DNN generalises from
    dense columns and embeddings; their logits are added and trained together.

    Parameters
    ----------
    dnn_hidden_units : sequence of int, default=(128, 64)
        Widths of the hidden layers.
    <regression_loss>
    <combined_columns>
    <combined_network>
    <training>
    <stopping>

    Attributes
    ----------
    linear_feature_columns_, dnn_feature_columns_ : FeatureColumns or None
        The fitted columns of the parts.
    <fitted>

    Notes
    -----
    As ``tf.estimator.DNNLinearCombinedRegressor``; Cheng et al., "Wide & Deep Learning for
    Recommender Systems" (arXiv 1606.07792).

    Examples
    --------
    >>> import numpy as np
    >>> from skest import DNNLinearCombinedRegressor
    >>> X = np.linspace(-1, 1, 100).reshape(-1, 1)
    >>> y = X[:, 0] + X[:, 0] ** 2
    >>> model = DNNLinearCombinedRegressor((16,), max_iter=40, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestRegressor._parameter_constraints,
        **_Combined._own_constraints,
    }

    def __init__(
        self,
        dnn_hidden_units: Sequence[int] | int = (128, 64),
        *,
        loss: str = "squared_error",
        quantile: float = 0.5,
        linear_feature_columns: Any = None,
        dnn_feature_columns: Any = None,
        dnn_activation: Any = "relu",
        dnn_dropout: float | str = "auto",
        batch_norm: bool = False,
        dnn_optimizer: Any = "auto",
        dnn_learning_rate: float | str | RateFunction | None = "auto",
        linear_optimizer: Any = "ftrl",
        linear_learning_rate: float | str | RateFunction | None = 0.05,
        linear_sparse_combiner: str = "sum",
        l1: float = 0.0,
        l2: float = 0.0,
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
        self.dnn_hidden_units = dnn_hidden_units
        self.loss = loss
        self.quantile = quantile
        self.linear_feature_columns = linear_feature_columns
        self.dnn_feature_columns = dnn_feature_columns
        self.dnn_activation = dnn_activation
        self.dnn_dropout = dnn_dropout
        self.batch_norm = batch_norm
        self.dnn_optimizer = dnn_optimizer
        self.dnn_learning_rate = dnn_learning_rate
        self.linear_optimizer = linear_optimizer
        self.linear_learning_rate = linear_learning_rate
        self.linear_sparse_combiner = linear_sparse_combiner
        self.l1 = l1
        self.l2 = l2
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
class DNNLinearCombinedEstimator(_Combined, SkestHeadEstimator):
    """A wide & deep model with a head of your choice.

    Parameters
    ----------
    <head>
    dnn_hidden_units : sequence of int, default=(128, 64)
        Widths of the hidden layers.
    <combined_columns>
    <combined_network>
    <training>
    <stopping>

    Attributes
    ----------
    linear_feature_columns_, dnn_feature_columns_ : FeatureColumns or None
        The fitted columns of the parts.
    <fitted>

    See Also
    --------
    MultiHeadEstimator : Names the heads by kind, and fits tables of targets.

    Notes
    -----
    As ``tf.estimator.DNNLinearCombinedEstimator``.

    Examples
    --------
    >>> import numpy as np
    >>> from skest import DNNLinearCombinedEstimator
    >>> from skest.heads import BinaryClassHead, MultiHead, RegressionHead
    >>> X = np.linspace(-1, 1, 100).reshape(-1, 1)
    >>> y = {"sign": (X[:, 0] > 0).astype(int), "square": X[:, 0] ** 2}
    >>> head = MultiHead([BinaryClassHead(name="sign"), RegressionHead(name="square")])
    >>> model = DNNLinearCombinedEstimator(head, (8,), max_iter=5, random_state=0).fit(X, y)
    >>> sorted(model.predict(X))
    ['sign', 'square']
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestHeadEstimator._parameter_constraints,
        **_Combined._own_constraints,
    }

    def __init__(
        self,
        head: Head | None = None,
        dnn_hidden_units: Sequence[int] | int = (128, 64),
        *,
        linear_feature_columns: Any = None,
        dnn_feature_columns: Any = None,
        dnn_activation: Any = "relu",
        dnn_dropout: float | str = "auto",
        batch_norm: bool = False,
        dnn_optimizer: Any = "auto",
        dnn_learning_rate: float | str | RateFunction | None = "auto",
        linear_optimizer: Any = "ftrl",
        linear_learning_rate: float | str | RateFunction | None = 0.05,
        linear_sparse_combiner: str = "sum",
        l1: float = 0.0,
        l2: float = 0.0,
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
        self.dnn_hidden_units = dnn_hidden_units
        self.linear_feature_columns = linear_feature_columns
        self.dnn_feature_columns = dnn_feature_columns
        self.dnn_activation = dnn_activation
        self.dnn_dropout = dnn_dropout
        self.batch_norm = batch_norm
        self.dnn_optimizer = dnn_optimizer
        self.dnn_learning_rate = dnn_learning_rate
        self.linear_optimizer = linear_optimizer
        self.linear_learning_rate = linear_learning_rate
        self.linear_sparse_combiner = linear_sparse_combiner
        self.l1 = l1
        self.l2 = l2
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
