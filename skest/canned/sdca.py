# SPDX-License-Identifier: Apache-2.0
"""`LinearSDCA`: linear models trained by stochastic dual coordinate ascent."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from skest.core.checks import check_not_negative, check_positive
from skest.feature_columns.base import CategoricalColumn
from skest.feature_columns.categorical import int64_keys
from skest.feature_columns.columns import FeatureColumns
from skest.feature_columns.dense import EmbeddingColumn
from skest.feature_columns.modules import LinearFeatures
from skest.feature_columns.numeric_vectors import CodeOutput, PiecewiseLinearColumn
from skest.feature_columns.sparse_matrix import SparseMatrixColumn
from skest.feature_columns.table import Table
from skest.heads.classification import BinaryClassHead, MultiClassHead
from skest.heads.regression import RegressionHead
from skest.heads.single_task import SingleTaskHead
from skest.keys import ModeKeys
from skest.optimizers.dual_ascent import DualAscent, Examples
from skest.spec import EstimatorSpec

_C = TypeVar("_C")
_IDS_KEY = "sdca/example_ids"
# The loss "squared" is half the squared error of the head.
_LOSS_NAMES: Mapping[type, str] = {
    BinaryClassHead: "logistic",
    RegressionHead: "squared",
}
_INSTEAD = 'Use another optimizer for it, such as "ftrl".'


@dataclass(frozen=True)
class LinearSDCA:
    """Settings of dual coordinate ascent, the `optimizer` of a linear model.

    The model minimises

        Σ weight · loss + l1 · ‖v‖₁ + ½ · l2 · ‖v‖²

    over its weights v, the bias among them. The loss is that of logistic regression, or
    half the squared error. The sum goes over all examples, so penalties do not grow with
    the data: ``l2`` is 1/C of `sklearn.linear_model.LogisticRegression` and alpha of
    `Ridge`, but here the bias is penalised too.

    There is no learning rate, and training leads to the optimum itself, not near it.
    Unless it is `proximal`, the epochs that a digit takes grow with
    ``weight · ‖x‖² / l2``. Every example is a step of its own, so an epoch takes longer
    than with optimizers that go by batches, and on a GPU there is nothing to gain. Larger
    batches cost less time and change nothing else.

    Parameters
    ----------
    example_id_column : str, default=None
        Feature that tells the examples apart, which must not be one of the model:
        strings or integers, the same whenever an example is seen again. `fit` of
        scikit-learn's estimators numbers the rows if it is None; a model function needs
        it.
    l1 : float, default=0.0
        Strength of the L1 penalty, >= 0, which makes weights exactly zero.
    l2 : float, default=1.0
        Strength of the L2 penalty, > 0.
    proximal : bool, default=False
        Whether every epoch is held near the one before, with which weak penalties take tens
        of epochs and not thousands. The estimators with ``fit`` always do; tf.estimator
        does not, and examples must come again for it.

    Raises
    ------
    ValueError, TypeError
        If a value is out of range or of the wrong type.

    See Also
    --------
    skest.optimizers.dual_ascent.DualAscent : The algorithm.

    Notes
    -----
    As ``tf.estimator.experimental.LinearSDCA``, where the penalties are called
    ``symmetric_l1_regularization`` and ``symmetric_l2_regularization``. The original goes
    through a batch in random order; here it is the order of the batch. Only two classes
    or one number can be learned, from columns without embeddings.

    `skest.LinearRegressor` learns the target in units of its standard deviation, and with
    its mean taken off, so that is what the penalties then refer to. The estimators stop by
    their training loss, as with any optimizer; for all digits of the optimum set
    ``n_iter_no_change=np.inf`` and enough epochs (`max_iter`).

    Examples
    --------
    >>> import numpy as np
    >>> from skest import LinearRegressor
    >>> from skest.canned.sdca import LinearSDCA
    >>> X = np.linspace(-1, 1, 100).reshape(-1, 1)
    >>> model = LinearRegressor(optimizer=LinearSDCA(l2=0.01), random_state=0)
    >>> model.fit(X, 2 * X[:, 0] + 1).predict([[0.0], [1.0]]).round(2)
    array([1., 3.])
    """

    example_id_column: str | None = None
    l1: float = 0.0
    l2: float = 1.0
    proximal: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        column = self.example_id_column
        if column is not None and not (isinstance(column, str) and column):
            raise TypeError(
                "'example_id_column' of LinearSDCA must be the name of a feature or None; "
                f"got {column!r}."
            )
        check_not_negative(self.l1, "l1", "LinearSDCA")
        check_positive(self.l2, "l2", "LinearSDCA")


def as_sdca(optimizer: Any) -> LinearSDCA | None:
    """Return the settings that `optimizer` stands for; None for another optimizer.

    Examples
    --------
    >>> from skest.canned.sdca import as_sdca
    >>> as_sdca("sdca")
    LinearSDCA(example_id_column=None, l1=0.0, l2=1.0, proximal=False)
    >>> as_sdca("ftrl")
    """
    # As "Ftrl" and "ftrl": names of optimizers are taken in any case.
    if isinstance(optimizer, str) and optimizer.lower() == "sdca":
        return LinearSDCA()
    return optimizer if isinstance(optimizer, LinearSDCA) else None


def sdca_spec(
    settings: LinearSDCA,
    features: Any,
    labels: Any,
    *,
    head: Any,
    columns: FeatureColumns,
    network: LinearFeatures,
    encode: Callable[[Any], Mapping[str, Tensor]],
) -> EstimatorSpec:
    """Return a linear model of mode TRAIN that dual coordinate ascent trains.

    Parameters
    ----------
    settings : LinearSDCA
        With an `example_id_column`.
    features, labels : arrays or dictionaries of arrays
        The first batch.
    head : BinaryClassHead or RegressionHead
        Without a loss of its own; the regression of one number.
    columns : FeatureColumns
        Fitted columns, none of them an embedding.
    network : LinearFeatures
        Of these columns, with the sparse_combiner "sum".
    encode : callable
        Raw features to what the network takes.

    Returns
    -------
    EstimatorSpec

    Raises
    ------
    ValueError
        If head, columns or combiner are others, or the ids are missing.
    """
    loss_name, id_column = _loss_name(head), _id_column(settings, features)
    _check_network(columns, network, id_column)
    # No learning rate, schedule or clipping: each step is the exact one.
    optimizer = DualAscent(
        _parameters(columns, network),
        loss_name,
        l1=float(settings.l1),
        l2=float(settings.l2),
        proximal=settings.proximal,
    )
    spec = head.create_estimator_spec(
        features,
        ModeKeys.TRAIN,
        network,
        labels=labels,
        optimizer=optimizer,
        encode=partial(_with_ids, encode, id_column),
    )

    def loss(labels: Any, logits: Tensor, features: Any) -> Tensor:
        if not torch.is_grad_enabled():  # rows to validate on, which no step follows
            return head.compute_loss(labels, logits, features)
        if _IDS_KEY not in features:
            # The first batch had them, and this one has not.
            raise _missing_ids(id_column)
        # The optimizer takes examples in place of gradients: SDCA solves for one dual
        # variable at a time.
        optimizer.observe(_examples(labels, features, head, columns, network))
        # The backward pass of the training step ends here: nothing uses gradients.
        return head.compute_loss(labels, logits.detach().requires_grad_(), features)

    return replace(spec, loss=loss)


def _id_column(settings: LinearSDCA, features: Any) -> str:
    """Return the name of the id column, which the first batch must have."""
    column = settings.example_id_column
    if column is None:
        raise ValueError(
            "LinearSDCA needs to tell the examples apart in a model function; name a "
            "feature with unique ids: LinearSDCA(example_id_column=...)."
        )
    if column not in Table(features).keys:
        raise _missing_ids(column)
    return column


def _missing_ids(column: str) -> ValueError:
    return ValueError(
        f"LinearSDCA needs the example id column {column!r} among the features to train. "
        "Let input_fn return it: strings or integers, unique to each example."
    )


def _loss_name(head: Any) -> str:
    """Return which loss of `DualAscent` is that of the head."""
    if isinstance(head, MultiClassHead):
        raise ValueError(
            "Only binary classification is supported. LinearSDCA cannot learn the "
            f"{head.n_classes} classes of this head. {_INSTEAD}"
        )
    loss_name = _LOSS_NAMES.get(type(head))  # a derived head may have another loss
    # The closed form of a dual step is that of one loss.
    if loss_name is None or head.loss_fn is not None:
        raise ValueError(
            "LinearSDCA minimises the loss of a BinaryClassHead or the squared error of a "
            f"RegressionHead; got {head!r}. {_INSTEAD}"
        )
    if head.logits_dimension != 1:
        raise ValueError(
            "LinearSDCA learns one number for each example; got a head with "
            f"label_dimension={head.logits_dimension}. Train a model for each of them, "
            "or use another optimizer."
        )
    return loss_name


def _check_network(
    columns: FeatureColumns, network: LinearFeatures, id_column: str
) -> None:
    # A mean has other norms of examples than those that the dual steps go by.
    if network.sparse_combiner != "sum":
        raise ValueError(
            'LinearSDCA needs sparse_combiner="sum"; got '
            f"{network.sparse_combiner!r}. {_INSTEAD}"
        )
    for column in columns.active:
        if isinstance(column, EmbeddingColumn):
            raise ValueError(
                f"LinearSDCA cannot learn the embedding column {column.name!r}, which "
                "makes the model more than linear. Use the categorical column itself, or "
                "another optimizer."
            )
        if isinstance(column, SparseMatrixColumn):
            raise ValueError(
                f"LinearSDCA cannot learn the sparse matrix {column.name!r}. Make it "
                "dense, or use another optimizer."
            )
        if id_column in column.feature_keys:
            raise ValueError(
                f"The feature column {column.name!r} reads {id_column!r}, which "
                "LinearSDCA takes for the ids of the examples. Name the 'feature_columns' "
                "without it."
            )


def _with_ids(
    encode: Callable[[Any], Mapping[str, Tensor]], id_column: str, features: Any
) -> dict[str, Tensor]:
    """Encode features, and the ids if they are there: only training needs them."""
    encoded = dict(encode(features))
    if id_column in Table(features).keys:
        encoded[_IDS_KEY] = _example_ids(features, id_column)
    return encoded


def _example_ids(features: Any, id_column: str) -> Tensor:
    """Return ids of shape (n_rows,): integers as they are, 64-bit hashes of strings."""
    cells = Table(features).factorized(id_column)
    codes = cells.codes
    if codes.size != len(codes):
        raise ValueError(
            f"The example id column {id_column!r} must have one value for each example; "
            f"got the shape {codes.shape}."
        )
    codes = codes.ravel()
    if (codes < 0).any():
        raise ValueError(
            f"The example id column {id_column!r} has no value in row "
            f"{np.flatnonzero(codes < 0)[0]}. Every example needs an id of its own."
        )
    # Hashed once a value, not once a row.
    return torch.from_numpy(int64_keys(cells.distinct).view(np.int64)[codes])


def _parameters(columns: FeatureColumns, network: LinearFeatures) -> list[nn.Parameter]:
    """Return the parameters in the order of `Examples`: dense ones, then looked up."""
    by_column = network.column_parameters()
    columns_in_order = [
        *_of_kind(columns, PiecewiseLinearColumn),
        *_of_kind(columns, CategoricalColumn),
    ]
    # The bias first: `_examples` has its 1 in front of all other numbers.
    names = [*network.multiplied, *(column.name for column in columns_in_order)]
    return [network.bias, *(by_column[name] for name in names)]


def _of_kind(columns: FeatureColumns, kind: type[_C]) -> list[_C]:
    return [column for column in columns.active if isinstance(column, kind)]


def _examples(
    labels: Tensor,
    features: Mapping[str, Tensor],
    head: SingleTaskHead,
    columns: FeatureColumns,
    network: LinearFeatures,
) -> Examples:
    """Take a batch apart into examples, as the network sees them."""
    # To SDCA, the bias is the weight of a number that is always 1, and penalised as such.
    dense = network.bias.new_ones(len(labels), 1)
    if network.dense is not None:
        dense = torch.cat([dense, network.dense(features)], dim=1)
    # A table of a piecewise-linear column is what multiplies its code.
    for column in _of_kind(columns, PiecewiseLinearColumn):
        # (n_rows, size of the code)
        code = CodeOutput.of(column)(features, dense.dtype)
        dense = torch.cat([dense, code], dim=1)
    looked_up = _of_kind(columns, CategoricalColumn)
    return Examples(
        features[_IDS_KEY],
        # Labels and weights come as (n_rows, 1).
        labels.ravel(),
        None if head.weight_column is None else features[head.weight_key].ravel(),
        dense,
        [features[column.encoded_key] for column in looked_up],
        [features[c.weight_key] if c.weight_key else None for c in looked_up],
    )
