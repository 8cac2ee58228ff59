# SPDX-License-Identifier: Apache-2.0
"""`MultiHeadEstimator`: one network for targets of different kinds."""

from typing import Any

from skest.adapters.dnn import SkestDNN
from skest.adapters.mixed import SkestMixedEstimator, cells_by_head
from skest.adapters.parameters import AUTO, parameter, with_parameters
from skest.adapters.targets.base import Target
from skest.adapters.targets.infer import several_targets
from skest.heads.base import Head


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

    heads: Any = parameter(default="auto", values=[AUTO, dict, list, tuple])
    head_weights: Any = parameter(default=None, values=[dict, list, tuple, None])

    def _new_target(self, y: Any) -> Target:
        return several_targets(y, self.heads, self.head_weights, type(self).__name__)

    def _target_rows(self, y: Any) -> Any:
        return super()._target_rows(cells_by_head(y, self.heads))

    def _heads_of_user(self) -> list[Head]:
        entries = self.heads.values() if isinstance(self.heads, dict) else self.heads
        kinds = [entry[0] if isinstance(entry, tuple) else entry for entry in entries]
        return [kind for kind in kinds if isinstance(kind, Head)]
