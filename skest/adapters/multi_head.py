# SPDX-License-Identifier: Apache-2.0
"""`MultiHeadEstimator`: one network for targets of different kinds."""

from collections.abc import Sequence
from typing import Any, ClassVar

from skest.adapters.dnn import DNNParameters
from skest.adapters.mixed import SkestMixedEstimator, cells_by_head
from skest.adapters.parameters import with_shared_docs
from skest.adapters.targets.base import Target
from skest.adapters.targets.infer import several_targets
from skest.core.sklearn_compat import StrOptions
from skest.heads.base import Head
from skest.optimizers.schedules import LRSchedulerLike, RateFunction


@with_shared_docs
class MultiHeadEstimator(DNNParameters, SkestMixedEstimator):
    """A multilayer perceptron that predicts several targets of different kinds.

    The hidden layers are common to all targets, and each has a head of its own: its
    logits, its loss and its metrics. In each row, some targets may be missing (None,
    NaN); they count neither in the losses nor in the scores.

    Parameters
    ----------
    hidden_units : sequence of int, default=(128, 64)
        Widths of the hidden layers.
    heads : "auto", dict or list, default="auto"
        What the columns of `y` are: a dictionary by column name, or a list with an entry
        for each column. An entry is

        - "classification", "multilabel", "regression", "absolute_error", "huber",
          "poisson" for counts, "logistic" for shares in [0, 1];
        - a head of `skest.heads` for one target;
        - or a pair of one of these and a list of columns that together are its target,
          as ``("multilabel", ["drama", "comedy"])``; the key is then a name of its own.

        Columns of an array are called "y0", "y1" and so on. With "auto", strings,
        categories, booleans and whole numbers of at most 20 different values are
        classes, a matrix of zeros and ones in a dictionary is several labels, and
        everything else is numbers.
    head_weights : dict of float by head, or list of float, default=None
        Factors of the losses, and of the scores in `score`; None is 1 for all.
    <columns>
    <network>
    <optimizer>
    <schedule>
    <training>
    <stopping>

    Attributes
    ----------
    classes_ : list of ndarray
        The classes of each head; None for heads that predict numbers.
    feature_columns_ : FeatureColumns
        The fitted columns.
    <fitted>

    See Also
    --------
    DNNEstimator : Takes one head, which may be a `skest.heads.MultiHead`.

    Notes
    -----
    The head is that of ``tf.estimator.MultiHead``. Numbers are learned in standard units
    and counts from their mean, so that the losses of the heads are of comparable size.
    Early stopping goes by minus the weighted sum of these losses on the held-out rows,
    each of them the mean over the rows that have the label.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from skest import MultiHeadEstimator
    >>> X = pd.DataFrame({"size": np.linspace(0, 1, 60)})
    >>> y = pd.DataFrame({"kind": np.where(X["size"] > 0.5, "big", "small")})
    >>> y["price"] = 10 * X["size"] + 5
    >>> y.loc[::7, "price"] = np.nan
    >>> model = MultiHeadEstimator(random_state=0).fit(X, y)
    >>> model.predict(X.iloc[[10, 50]]).round()
         kind  price
    10  small    7.0
    50    big   13.0
    """

    heads: Any
    head_weights: Any

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestMixedEstimator._parameter_constraints,
        **DNNParameters._own_constraints,
        "heads": [StrOptions({"auto"}), dict, list, tuple],
        "head_weights": [dict, list, tuple, None],
    }

    def __init__(
        self,
        hidden_units: Sequence[int] | int = (128, 64),
        *,
        heads: Any = "auto",
        head_weights: Any = None,
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
        self.heads = heads
        self.head_weights = head_weights
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

    def _new_target(self, y: Any) -> Target:
        return several_targets(y, self.heads, self.head_weights, type(self).__name__)

    def _target_rows(self, y: Any) -> Any:
        return super()._target_rows(cells_by_head(y, self.heads))

    def _heads_of_user(self) -> list[Head]:
        entries = self.heads.values() if isinstance(self.heads, dict) else self.heads
        kinds = [entry[0] if isinstance(entry, tuple) else entry for entry in entries]
        return [kind for kind in kinds if isinstance(kind, Head)]
