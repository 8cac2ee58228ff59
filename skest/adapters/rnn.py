# SPDX-License-Identifier: Apache-2.0
"""`RNNClassifier` and `RNNRegressor`: a recurrent network on sequences."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch

from skest.adapters.classifier import SkestClassifier
from skest.adapters.dnn import (
    COLUMNS_CONSTRAINT,
    HIDDEN_UNITS_CONSTRAINT,
    LEARNING_RATE_CONSTRAINT,
    OPTIMIZER_CONSTRAINT,
    SCHEDULE_CONSTRAINTS,
    WEIGHT_DECAY_CONSTRAINT,
)
from skest.adapters.parameters import with_shared_docs
from skest.adapters.regressor import SkestRegressor
from skest.canned.rnn import rnn_model_fn
from skest.core.sklearn_compat import StrOptions
from skest.feature_columns.columns import FeatureColumns
from skest.networks.rnn import CELL_TYPES
from skest.optimizers.schedules import LRSchedulerLike, RateFunction
from skest.spec import EstimatorSpec


class _RNN:
    """What `RNNClassifier` and `RNNRegressor` have in common."""

    units: Any
    cell_type: str
    optimizer: Any
    learning_rate: float | RateFunction | None
    weight_decay: float
    lr_scheduler: LRSchedulerLike | None
    clip_norm: float | None
    sequence_feature_columns_: FeatureColumns | None
    context_feature_columns_: FeatureColumns | None
    _torch_dtype: torch.dtype

    _column_parameters: ClassVar[dict[str, str]] = {
        "sequence_feature_columns": "sequence",
        "context_feature_columns": "context",
    }
    _own_constraints: ClassVar[dict[str, list[Any]]] = {
        "units": HIDDEN_UNITS_CONSTRAINT,
        "sequence_feature_columns": COLUMNS_CONSTRAINT,
        "context_feature_columns": COLUMNS_CONSTRAINT,
        "cell_type": [StrOptions(set(CELL_TYPES))],
        "optimizer": OPTIMIZER_CONSTRAINT,
        "learning_rate": LEARNING_RATE_CONSTRAINT,
        "weight_decay": WEIGHT_DECAY_CONSTRAINT,
        **SCHEDULE_CONSTRAINTS,
    }

    def _model_fn(self, head: Any) -> Callable[..., EstimatorSpec]:
        if self.sequence_feature_columns_ is None:
            raise ValueError(
                "'context_feature_columns' are given, but 'sequence_feature_columns' are "
                "not. Give them too, or use a DNN, which takes no sequences."
            )
        return partial(
            rnn_model_fn,
            head=head,
            sequence_columns=self.sequence_feature_columns_,
            context_columns=self.context_feature_columns_,
            units=self.units,
            cell_type=self.cell_type,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            lr_scheduler=self.lr_scheduler,
            clip_norm=self.clip_norm,
            dtype=self._torch_dtype,
        )


@with_shared_docs
class RNNClassifier(_RNN, SkestClassifier):
    """A recurrent network that classifies sequences.

    Parameters
    ----------
    units : int or sequence of int, default=32
        Widths of the recurrent layers.
    <sequence_columns>
    <optimizer>
    <rnn_schedule>
    <training>
    <class_weight>
    <stopping>

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Class labels, sorted.
    sequence_feature_columns_ : FeatureColumns
        The fitted columns of the steps.
    context_feature_columns_ : FeatureColumns or None
        The fitted columns of the context.
    <fitted>

    See Also
    --------
    DNNClassifier : Of a list of categories it sees which, not in what order.

    Notes
    -----
    As ``tf.estimator.experimental.RNNClassifier``, without ``return_sequences``.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest import RNNClassifier
    >>> visits = [["fall", "surgery"], ["surgery", "fall"], ["fall"], ["surgery"]] * 8
    >>> X = pd.DataFrame({"visits": visits, "age": [70, 50, 60, 80] * 8})
    >>> y = ["healed", "fell again", "fell again", "healed"] * 8
    >>> model = RNNClassifier(8, max_iter=40, random_state=0).fit(X, y)
    >>> model.predict(X[:4]).tolist()
    ['healed', 'fell again', 'fell again', 'healed']
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestClassifier._parameter_constraints,
        **_RNN._own_constraints,
    }

    def __init__(
        self,
        units: Sequence[int] | int = 32,
        *,
        sequence_feature_columns: Any = None,
        context_feature_columns: Any = None,
        cell_type: str = "simple_rnn",
        optimizer: Any = "adagrad",
        learning_rate: float | RateFunction | None = 0.05,
        weight_decay: float = 0.0,
        lr_scheduler: LRSchedulerLike | None = None,
        clip_norm: float | None = 5.0,
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
        self.units = units
        self.sequence_feature_columns = sequence_feature_columns
        self.context_feature_columns = context_feature_columns
        self.cell_type = cell_type
        self.optimizer = optimizer
        self.learning_rate = learning_rate
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
class RNNRegressor(_RNN, SkestRegressor):
    """A recurrent network that predicts numbers from sequences.

    Parameters
    ----------
    units : int or sequence of int, default=32
        Widths of the recurrent layers.
    <regression_loss>
    <sequence_columns>
    <optimizer>
    <rnn_schedule>
    <training>
    <stopping>

    Attributes
    ----------
    sequence_feature_columns_ : FeatureColumns
        The fitted columns of the steps.
    context_feature_columns_ : FeatureColumns or None
        The fitted columns of the context.
    <fitted>

    See Also
    --------
    DNNRegressor : Of a list of categories it sees which, not in what order.

    Notes
    -----
    As ``tf.estimator.experimental.RNNEstimator`` with a regression head, without
    ``return_sequences``.

    Examples
    --------
    >>> import pandas as pd
    >>> from skest import RNNRegressor
    >>> X = pd.DataFrame({"paid": [[3.0, 1.0], [2.0], [], [4.0, 4.0, 1.0]] * 16})
    >>> y = X["paid"].map(sum)
    >>> model = RNNRegressor(8, max_iter=100, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestRegressor._parameter_constraints,
        **_RNN._own_constraints,
    }

    def __init__(
        self,
        units: Sequence[int] | int = 32,
        *,
        loss: str = "squared_error",
        quantile: float = 0.5,
        sequence_feature_columns: Any = None,
        context_feature_columns: Any = None,
        cell_type: str = "simple_rnn",
        optimizer: Any = "adagrad",
        learning_rate: float | RateFunction | None = 0.05,
        weight_decay: float = 0.0,
        lr_scheduler: LRSchedulerLike | None = None,
        clip_norm: float | None = 5.0,
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
        self.units = units
        self.loss = loss
        self.quantile = quantile
        self.sequence_feature_columns = sequence_feature_columns
        self.context_feature_columns = context_feature_columns
        self.cell_type = cell_type
        self.optimizer = optimizer
        self.learning_rate = learning_rate
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
