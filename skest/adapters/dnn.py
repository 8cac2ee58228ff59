# SPDX-License-Identifier: Apache-2.0
"""`DNNClassifier`, `DNNRegressor`, `DNNEstimator`: perceptrons on feature columns.

`MultiHeadEstimator` is one for targets of different kinds.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from skest.adapters import allowed
from skest.adapters.base import ModelFunction, SkestEstimator
from skest.adapters.parameters import OptimizerParameters, parameter, with_parameters
from skest.adapters.predictors import (
    LossParameters,
    SkestClassifier,
    SkestHeadEstimator,
    SkestMixedEstimator,
    SkestRegressor,
    cells_by_head,
)
from skest.adapters.targets.base import Target
from skest.adapters.targets.infer import several_targets
from skest.canned.dnn import dnn_model_fn
from skest.feature_columns.columns import FeatureColumns
from skest.heads.base import Head


@with_parameters
class DNNParameters(OptimizerParameters):
    """A perceptron on feature columns.

    Parameters
    ----------
    hidden_units : sequence of int
        Widths of the hidden layers.
    feature_columns : FeatureColumns or list of columns
        What the features are and how they enter the network; see
        `skest.feature_columns`. None infers it: numbers are scaled, gaps in them
        filled with the mean and marked; strings and categories become indicators if
        they have few levels and embeddings if they have many, see
        `skest.feature_columns.infer_feature_columns`. With the recipe (`learning_rate`),
        numbers get piecewise-linear columns as well. What given columns do not read is
        dropped with a warning, see `FeatureColumns` and its `remainder`.
    activation : str or callable
        Of the hidden layers: a name of `skest.networks.ACTIVATIONS` or a function of a
        tensor.
    dropout : float or "auto"
        Probability that a hidden unit is dropped in training. "auto" is .1 with
        the recipe (`learning_rate`), else 0.
    batch_norm : bool
        Normalise after every hidden layer.
    optimizer : str, class, callable or list
        A name of `skest.optimizers.OPTIMIZERS`, a class of `torch.optim`, a function from
        parameters to an optimizer, or a list of pairs of a pattern of parameter names and
        one of these, as ``[("inputs.*", "adagrad"), ("*", "adam")]``. "auto" is AdamW with
        betas of .9 and .95, and Adagrad at 25 times the rate for tables of embeddings;
        the numbers by which members scale the inputs have up to 20 times the rate of the
        recipe (a hundredth of the steps), so that columns that tell nothing fade.
    learning_rate : float, callable, "auto" or None
        "auto" is the recipe for tables: the rate falls to zero in four cosine cycles of
        doubling length, see `skest.optimizers.schedules.CosineCycles`, over the epochs
        of `max_iter`, from a peak of .002 (of Adagrad, FTRL and SGD .05). In `partial_fit`
        and `train`, which know no end, it is the peak itself; after a `fit` with that peak
        .3 of it, and less where `partial_fit` has fewer rows than a batch. Numbers that are
        predicted stay within the range of the `y` that was trained on, but for those of
        Poisson and logistic losses. A number alone is another peak; beside an
        `optimizer` that is named, it is a constant rate, and there is no recipe. Neither
        is there with a function of the global step, or with None, the optimizer's own
        default.
    weight_decay : float or "auto"
        L2 penalty of the optimizer; of AdamW, decay of the weights. "auto" is .01 with the
        recipe and an `optimizer` "auto", else 0.
    n_members : int or "auto"
        Networks in one: they share the hidden layers, each scales the inputs by numbers
        of its own and has its own last layer, and learns from its own errors; the mean of
        their probabilities, or numbers, is predicted (TabM-mini, arXiv 2410.24210).
        "auto" is 3 with the recipe, 16 of fewer than 60 rows, else 1.
    """

    hidden_units: Sequence[int] | int = parameter(
        default=(128, 64), kw_only=False, values=allowed.WIDTHS
    )
    feature_columns: Any = parameter(default=None, values=allowed.COLUMNS)
    activation: Any = parameter(default="relu", values=allowed.ACTIVATION)
    dropout: float | str = parameter(default="auto", values=allowed.DROPOUT)
    batch_norm: bool = parameter(default=False, values=["boolean"])
    optimizer: Any = parameter(default="auto", values=allowed.OPTIMIZER)
    learning_rate: allowed.Rate | str = parameter(
        default="auto", values=allowed.RATE_OR_AUTO
    )
    weight_decay: float | str = parameter(
        default="auto", values=allowed.NOT_NEGATIVE_OR_AUTO
    )
    n_members: int | str = parameter(default="auto", values=allowed.COUNT_OR_AUTO)
    # With 200 and 10, as of other estimators, the recipe could not choose by the rows.
    max_iter: int | str = "auto"
    n_iter_no_change: float | str = "auto"


class SkestDNN(DNNParameters, SkestEstimator):
    """What estimators with a DNN have in common; not for direct use."""

    feature_columns_: FeatureColumns

    _column_parameters: ClassVar[dict[str, str]] = {"feature_columns": "dense"}
    # Named here, for wide & deep has them under other names.
    _recipe_for: ClassVar[tuple[str, str] | None] = ("optimizer", "learning_rate")

    def _model_fn(self, head: Any) -> ModelFunction:
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
    >>> X = np.linspace(-1, 1, 50).reshape(-1, 1)
    >>> model = DNNRegressor(random_state=0).fit(X, X[:, 0] ** 2)
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
    >>> X = np.linspace(-1, 1, 50).reshape(-1, 1)
    >>> y = np.where(X[:, 0] > 0, "up", "down")
    >>> head = BinaryClassHead(label_vocabulary=["down", "up"], thresholds=[0.3])
    >>> model = DNNEstimator(head, random_state=0).fit(X, y)
    >>> model.predict([[-0.9], [0.9]]).tolist()
    ['down', 'up']
    >>> "recall/positive_threshold_0.3" in model.evaluate(X, y)
    True
    """


@with_parameters
class MultiHeadEstimator(SkestDNN, SkestMixedEstimator):
    """A multilayer perceptron that predicts several targets of different kinds.

    The hidden layers are common to all targets, and each has a head of its own: its
    logits, its loss and its metrics. In each row, some targets may be missing (None,
    NaN); they count neither in the losses nor in the scores.

    Parameters
    ----------
    heads : "auto", dict or list
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
    head_weights : dict of float by head, or list of float
        Factors of the losses, and of the scores in `score`; None is 1 for all.

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
    >>> X = pd.DataFrame({"size": np.linspace(0, 1, 51)})
    >>> y = pd.DataFrame({"kind": np.where(X["size"] > 0.5, "big", "small")})
    >>> y["price"] = 10 * X["size"] + 5
    >>> y.loc[::7, "price"] = np.nan
    >>> model = MultiHeadEstimator(random_state=0).fit(X, y)
    >>> model.predict(X.iloc[[10, 40]]).round()
         kind  price
    10  small    7.0
    40    big   13.0
    """

    heads: Any = parameter(default="auto", values=[allowed.AUTO, dict, list, tuple])
    head_weights: Any = parameter(default=None, values=[dict, list, tuple, None])

    def _new_target(self, y: Any) -> Target:
        return several_targets(y, self.heads, self.head_weights, type(self).__name__)

    def _target_rows(self, y: Any) -> Any:
        # Lists of classes for a MultiLabelHead would be read as a matrix of another
        # shape.
        return super()._target_rows(cells_by_head(y, self.heads))

    def _heads_of_user(self) -> list[Head]:
        # Of "auto" the letters are looked at, of which none is a head.
        entries = self.heads.values() if isinstance(self.heads, dict) else self.heads
        kinds = [entry[0] if isinstance(entry, tuple) else entry for entry in entries]
        return [kind for kind in kinds if isinstance(kind, Head)]
