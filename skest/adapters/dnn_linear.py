# SPDX-License-Identifier: Apache-2.0
"""`DNNLinearCombinedClassifier`, `…Regressor` and `…Estimator`: wide & deep."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from skest.adapters import allowed
from skest.adapters.base import ModelFunction, SkestEstimator
from skest.adapters.parameters import (
    FORMER_ARGUMENTS,
    OptimizerParameters,
    parameter,
    with_parameters,
)
from skest.adapters.predictors import (
    LossParameters,
    SkestClassifier,
    SkestHeadEstimator,
    SkestRegressor,
)
from skest.canned.dnn_linear import dnn_linear_combined_model_fn
from skest.feature_columns.columns import FeatureColumns


@with_parameters
class CombinedParameters(OptimizerParameters):
    """A linear model and a perceptron whose logits are added.

    Parameters
    ----------
    dnn_hidden_units : sequence of int
        Widths of the hidden layers.
    linear_feature_columns : FeatureColumns or list of columns
        What the linear model takes; see `skest.feature_columns`. If these columns and
        those of the DNN are None, they are inferred. If only one is given, there is only
        that part.
    dnn_feature_columns : FeatureColumns or list of columns
        What the DNN takes.
    dnn_activation : str or callable
        Of the hidden layers: a name of `skest.networks.ACTIVATIONS` or a function of a
        tensor.
    dnn_dropout : float or "auto"
        Probability that a hidden unit is dropped in training. "auto" is .1 with
        the recipe (`dnn_learning_rate`), else 0.
    batch_norm : bool
        Normalise after every hidden layer.
    dnn_optimizer : str, class, callable or list
        Of the DNN: a name of `skest.optimizers.OPTIMIZERS`, a class of `torch.optim`, a
        function from parameters to an optimizer, or a list of pairs of a pattern of
        parameter names, which begin with "dnn.", and one of these. "auto" is that of
        `DNNClassifier`.
    dnn_learning_rate : float, callable, "auto" or None
        "auto" is the recipe, a number alone its peak, and beside a `dnn_optimizer` that
        is named a constant rate, as in `DNNClassifier`. A function of the global step
        makes a schedule; None is the optimizer's own default.
    linear_optimizer : str, class, callable or list
        Of the linear model.
    linear_learning_rate : float, callable, "auto" or None
        "auto" is that of TensorFlow, ``min(0.005, 1 / sqrt(n_columns))``; the others as
        for `dnn_learning_rate`.
    linear_sparse_combiner : {"sum", "mean", "sqrtn"}
        How the weights of several values in one cell are combined.
    l1 : float
        L1 penalty of the linear model, if its optimizer is "ftrl" or
        "proximaladagrad".
    l2 : float
        Its L2 penalty.
    weight_decay : float or "auto"
        Of the DNN, as in `DNNClassifier`.
    n_members : int or "auto"
        Of the DNN, as in `DNNClassifier`.
    """

    dnn_hidden_units: Sequence[int] | int = parameter(
        default=(128, 64), kw_only=False, values=allowed.WIDTHS
    )
    linear_feature_columns: Any = parameter(default=None, values=allowed.COLUMNS)
    dnn_feature_columns: Any = parameter(default=None, values=allowed.COLUMNS)
    dnn_activation: Any = parameter(default="relu", values=allowed.ACTIVATION)
    dnn_dropout: float | str = parameter(default="auto", values=allowed.DROPOUT)
    batch_norm: bool = parameter(default=False, values=["boolean"])
    dnn_optimizer: Any = parameter(default="auto", values=allowed.OPTIMIZER)
    dnn_learning_rate: allowed.Rate | str = parameter(
        default="auto", values=allowed.RATE_OR_AUTO
    )
    # As tf.estimator.DNNLinearCombinedClassifier.
    linear_optimizer: Any = parameter(default="ftrl", values=allowed.OPTIMIZER)
    linear_learning_rate: allowed.Rate | str = parameter(
        default=0.05, values=allowed.RATE_OR_AUTO
    )
    linear_sparse_combiner: str = parameter(default="sum", values=allowed.COMBINER)
    l1: float = parameter(default=0.0, values=allowed.NOT_NEGATIVE)
    l2: float = parameter(default=0.0, values=allowed.NOT_NEGATIVE)
    weight_decay: float | str = parameter(
        default="auto", values=allowed.NOT_NEGATIVE_OR_AUTO
    )
    n_members: int | str = parameter(default="auto", values=allowed.COUNT_OR_AUTO)
    # With 200 and 10, as of other estimators, the recipe could not choose by the rows.
    max_iter: int | str = "auto"
    n_iter_no_change: float | str = "auto"


class SkestCombined(CombinedParameters, SkestEstimator):
    """What the wide & deep estimators have in common; not for direct use."""

    # Those of a DNNClassifier, which belong to one of two parts here.
    _former_arguments: ClassVar[Mapping[str, str]] = FORMER_ARGUMENTS | {
        "activation": "use 'dnn_activation'",
        "dropout": "use 'dnn_dropout'",
        "feature_columns": "use 'dnn_feature_columns' and 'linear_feature_columns'",
        "hidden_units": "use 'dnn_hidden_units'",
        "learning_rate": "use 'dnn_learning_rate' and 'linear_learning_rate'",
        "optimizer": "use 'dnn_optimizer' and 'linear_optimizer'",
    }

    linear_feature_columns_: FeatureColumns | None
    dnn_feature_columns_: FeatureColumns | None

    _column_parameters: ClassVar[dict[str, str]] = {
        # The name of the part in the network is what stands before "feature_columns":
        # "linear" is in tf.estimator's variables, too.
        "linear_feature_columns": "linear",
        "dnn_feature_columns": "dense",
    }
    # The deep part is trained by it; the wide one is convex, and FTRL does well as it
    # is.
    _recipe_for: ClassVar[tuple[str, str] | None] = (
        "dnn_optimizer",
        "dnn_learning_rate",
    )

    def _model_fn(self, head: Any) -> ModelFunction:
        return self._bound(
            dnn_linear_combined_model_fn,
            head=head,
            linear_columns=self.linear_feature_columns_,
            dnn_columns=self.dnn_feature_columns_,
        )


@with_parameters
class DNNLinearCombinedClassifier(SkestCombined, SkestClassifier):
    """A wide & deep model that classifies rows of arrays or mixed tables.

    A linear model memorises sparse columns and their crosses, a DNN generalises from
    dense columns and embeddings; their logits are added and trained together.

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


@with_parameters
class DNNLinearCombinedRegressor(LossParameters, SkestCombined, SkestRegressor):
    """A wide & deep model that predicts numbers from rows of arrays or mixed tables.

    A linear model memorises sparse columns and their crosses, a DNN generalises from
    dense columns and embeddings; their logits are added and trained together.

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
    >>> X = np.linspace(-1, 1, 50).reshape(-1, 1)
    >>> y = X[:, 0] + X[:, 0] ** 2
    >>> model = DNNLinearCombinedRegressor(random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.9)
    True
    """


@with_parameters
class DNNLinearCombinedEstimator(SkestCombined, SkestHeadEstimator):
    """A wide & deep model with a head of your choice.

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
    >>> X = np.linspace(-1, 1, 50).reshape(-1, 1)
    >>> y = {"sign": (X[:, 0] > 0).astype(int), "square": X[:, 0] ** 2}
    >>> head = MultiHead([BinaryClassHead(name="sign"), RegressionHead(name="square")])
    >>> model = DNNLinearCombinedEstimator(head, (8,), max_iter=5, random_state=0).fit(X, y)
    >>> sorted(model.predict(X))
    ['sign', 'square']
    """
