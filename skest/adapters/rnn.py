# SPDX-License-Identifier: Apache-2.0
"""`RNNClassifier` and `RNNRegressor`: a recurrent network on sequences."""

from collections.abc import Sequence
from typing import Any, ClassVar

from skest.adapters import allowed
from skest.adapters.base import ModelFunction, SkestEstimator
from skest.adapters.parameters import OptimizerParameters, parameter, with_parameters
from skest.adapters.predictors import LossParameters, SkestClassifier, SkestRegressor
from skest.canned.rnn import rnn_model_fn
from skest.core.sklearn_compat import StrOptions
from skest.feature_columns.columns import FeatureColumns
from skest.networks.rnn import CELL_TYPES


@with_parameters
class RNNParameters(OptimizerParameters):
    """A recurrent network on sequences.

    Parameters
    ----------
    units : int or sequence of int
        Widths of the recurrent layers.
    sequence_feature_columns : FeatureColumns or list of columns
        What the steps of the sequences are; see `skest.feature_columns`. If these columns
        and those of the context are None, they are inferred: lists become sequences of
        scaled numbers or of categories, other columns the context; an array of
        shape (n_samples, n_steps) is one sequence of numbers in each row, where NaN at
        the end is padding.
    context_feature_columns : FeatureColumns or list of columns
        What holds for all steps of a row. If only `sequence_feature_columns` are given,
        there is no context.
    cell_type : {"simple_rnn", "lstm", "gru"}
        Kind of the recurrent layers, see `skest.networks.RNN`. "simple_rnn" learns from
        the fewest steps; "gru" and "lstm" can add up or remember over more of them.
    optimizer : str, class, callable or list
        A name of `skest.optimizers.OPTIMIZERS`, a class of `torch.optim`, a function from
        parameters to an optimizer, or a list of pairs of a pattern of parameter names and
        one of these.
    learning_rate : float, callable or None
        A function of the global step makes a schedule; None is the optimizer's own
        default.
    weight_decay : float
        L2 penalty of the optimizer; of AdamW, decay of the weights.
    """

    units: Sequence[int] | int = parameter(
        default=32, kw_only=False, values=allowed.WIDTHS
    )
    sequence_feature_columns: Any = parameter(default=None, values=allowed.COLUMNS)
    context_feature_columns: Any = parameter(default=None, values=allowed.COLUMNS)
    cell_type: str = parameter(
        default="simple_rnn", values=[StrOptions(set(CELL_TYPES))]
    )
    # No recipe for tables: its schedule was measured on rows, not on sequences.
    optimizer: Any = parameter(default="adagrad", values=allowed.OPTIMIZER)
    learning_rate: allowed.Rate = parameter(default=0.05, values=allowed.RATE)
    weight_decay: float = parameter(default=0.0, values=allowed.NOT_NEGATIVE)
    # As the Adagrad of tf.estimator's RNNEstimator: gradients through many steps
    # explode.
    clip_norm: float | None = 5.0


class SkestRNN(RNNParameters, SkestEstimator):
    """What `RNNClassifier` and `RNNRegressor` have in common; not for direct use."""

    sequence_feature_columns_: FeatureColumns | None
    context_feature_columns_: FeatureColumns | None

    _column_parameters: ClassVar[dict[str, str]] = {
        "sequence_feature_columns": "sequence",
        "context_feature_columns": "context",
    }

    def _model_fn(self, head: Any) -> ModelFunction:
        # Of two kinds of columns only one was given, and the other was not inferred
        # then.
        if self.sequence_feature_columns_ is None:
            raise ValueError(
                "'context_feature_columns' are given, but 'sequence_feature_columns' are "
                "not. Give them too, or use a DNN, which takes no sequences."
            )
        return self._bound(
            rnn_model_fn,
            head=head,
            sequence_columns=self.sequence_feature_columns_,
            context_columns=self.context_feature_columns_,
        )


@with_parameters
class RNNClassifier(SkestRNN, SkestClassifier):
    """A recurrent network that classifies sequences.

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


@with_parameters
class RNNRegressor(LossParameters, SkestRNN, SkestRegressor):
    """A recurrent network that predicts numbers from sequences.

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
