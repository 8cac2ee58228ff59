# SPDX-License-Identifier: Apache-2.0
"""`BaselineClassifier`, `…Regressor`, `…Estimator`: what can be said without features."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from skest.adapters.classifier import SkestClassifier
from skest.adapters.dnn import (
    LEARNING_RATE_CONSTRAINT,
    OPTIMIZER_CONSTRAINT,
    SCHEDULE_CONSTRAINTS,
)
from skest.adapters.mixed import SkestHeadEstimator
from skest.adapters.parameters import with_shared_docs
from skest.adapters.regressor import SkestRegressor
from skest.canned.baseline import baseline_model_fn
from skest.heads.base import Head
from skest.optimizers.schedules import LRSchedulerLike, RateFunction
from skest.spec import EstimatorSpec


class _Baseline:
    """What the baseline estimators have in common."""

    optimizer: Any
    learning_rate: float | RateFunction | None
    lr_scheduler: LRSchedulerLike | None
    clip_norm: float | None
    _torch_dtype: torch.dtype

    _own_constraints: ClassVar[dict[str, list[Any]]] = {
        "optimizer": OPTIMIZER_CONSTRAINT,
        "learning_rate": LEARNING_RATE_CONSTRAINT,
        **SCHEDULE_CONSTRAINTS,
    }

    def _model_fn(self, head: Any) -> Callable[..., EstimatorSpec]:
        return partial(
            baseline_model_fn,
            head=head,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            lr_scheduler=self.lr_scheduler,
            clip_norm=self.clip_norm,
            dtype=self._torch_dtype,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        if tags.classifier_tags is not None:
            tags.classifier_tags.poor_score = True
        if tags.regressor_tags is not None:
            tags.regressor_tags.poor_score = True
        return tags


@with_shared_docs
class BaselineClassifier(_Baseline, SkestClassifier):
    """A classifier that ignores the features and predicts how frequent the classes are.

    It trains like the other estimators, so that their metrics have something to be
    compared with; without that need, scikit-learn's `DummyClassifier` counts at once.

    Parameters
    ----------
    <baseline_optimizer>
    <training>
    <class_weight>
    <stopping>

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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestClassifier._parameter_constraints,
        **_Baseline._own_constraints,
    }

    def __init__(
        self,
        *,
        optimizer: Any = "ftrl",
        learning_rate: float | RateFunction | None = 0.3,
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
        self.optimizer = optimizer
        self.learning_rate = learning_rate
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
class BaselineRegressor(_Baseline, SkestRegressor):
    """A regression that ignores the features and predicts the mean of the target.

    It trains like the other estimators, so that their metrics have something to be
    compared with; without that need, scikit-learn's `DummyRegressor` averages at once.

    Parameters
    ----------
    <regression_loss>
    <baseline_optimizer>
    <training>
    <stopping>

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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestRegressor._parameter_constraints,
        **_Baseline._own_constraints,
    }

    def __init__(
        self,
        *,
        loss: str = "squared_error",
        quantile: float = 0.5,
        optimizer: Any = "ftrl",
        learning_rate: float | RateFunction | None = 0.3,
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
        self.optimizer = optimizer
        self.learning_rate = learning_rate
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


@with_shared_docs
class BaselineEstimator(_Baseline, SkestHeadEstimator):
    """A model that ignores the features, with a head of your choice.

    Parameters
    ----------
    <head>
    <baseline_optimizer>
    <training>
    <stopping>

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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestHeadEstimator._parameter_constraints,
        **_Baseline._own_constraints,
    }

    def __init__(
        self,
        head: Head | None = None,
        *,
        optimizer: Any = "ftrl",
        learning_rate: float | RateFunction | None = 0.3,
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
        self.optimizer = optimizer
        self.learning_rate = learning_rate
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
