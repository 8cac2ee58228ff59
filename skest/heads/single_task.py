# SPDX-License-Identifier: Apache-2.0
"""`SingleTaskHead`: the base of all heads for one target."""

import copy
import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from skest.core.checks import arguments_named, check_choice
from skest.feature_columns.table import Table
from skest.heads.base import REGULARIZATION_LOSS, Head
from skest.heads.labels import (
    WeightColumn,
    as_tensor,
    check_dense,
    dense_array,
    encode_weights,
    matched_labels,
    with_columns,
)
from skest.keys import MetricKeys
from skest.losses import LOSS_REDUCTIONS, reduce_loss
from skest.metrics import Mean, Metric


class SingleTaskHead(Head):
    """A head with one target, whose labels and logits are one tensor each.

    Constructors keep each argument in an attribute of its name. A subclass defines
    `logits_dimension`, ``_encode_array``, ``_default_loss``, ``_predictors``,
    ``_metrics`` and ``_metric_inputs``, and maybe ``_label_dimension``.

    Parameters
    ----------
    weight_column : str or NumericColumn, default=None
        Feature with the weights of the examples, of shape (n,) or (n, 1). They multiply
        losses and count in metrics. It need not be there to predict.
    loss_reduction : {"sum_over_batch_size", "sum", "auto"}, \
default="sum_over_batch_size"
        How losses of examples become one of the batch; see `skest.losses.reduce_loss`.
    loss_fn : callable, default=None
        ``loss_fn(labels, logits)`` in place of the loss of the head. It gives one loss
        per example, of shape (..., 1), or one per logit. Labels come in the type of the
        logits, class ids as int64. It may also name ``loss_reduction``, and
        ``features``: a dictionary of the raw features that are numbers, not scaled or
        filled, in the type of the logits. Those of shape (n,) come as (n, 1).
    name : str, default=None
        Ends the names of the metrics, as in "accuracy/<name>".

    Raises
    ------
    ValueError
        If the reduction is unknown, or `loss_fn` takes other arguments.
    TypeError
        If an argument has the wrong type.
    """

    _labels_are_ids: ClassVar[bool] = False
    _weights_per_logit: ClassVar[bool] = False

    def __init__(
        self,
        weight_column: str | WeightColumn | None,
        loss_reduction: str,
        loss_fn: Callable[..., Tensor] | None,
        name: str | None,
    ) -> None:
        if name is not None and not (isinstance(name, str) and name):
            raise TypeError(
                f"'name' of {type(self).__name__} must be a string; got {name!r}."
            )
        self.name = name
        if weight_column is not None and not isinstance(
            weight_column, str | WeightColumn
        ):
            raise TypeError(
                f"'weight_column' of {self._title} must be the name of a feature or a "
                f"numeric column; got {weight_column!r}."
            )
        check_choice(loss_reduction, "loss_reduction", self._title, LOSS_REDUCTIONS)
        self.weight_column = weight_column
        self.loss_reduction = loss_reduction
        self.loss_fn = loss_fn
        # Read once, and not in every step.
        self._loss_extras = extra_arguments(loss_fn, self._title)

    def adapted(
        self, *, name: str | None = None, weight_column: str | None = None
    ) -> Self:
        """Return a copy with another name or weight column; None leaves them.

        Examples
        --------
        >>> from skest.heads import RegressionHead
        >>> RegressionHead(label_dimension=2).adapted(name="price")
        RegressionHead(label_dimension=2, name='price')
        """
        head = copy.copy(self)  # a constructor of the user's may take anything
        if name is not None:
            head.name = name
        if weight_column is not None:
            head.weight_column = weight_column
        return head

    # What a subclass says

    @property
    def _label_dimension(self) -> int:
        """Size of the last dimension of encoded labels: that of the logits, mostly."""
        return self.logits_dimension

    @abstractmethod
    def _encode_array(self, array: np.ndarray, is_encoded: bool) -> np.ndarray:
        """Check raw labels (..., label_dimension), turn them into numbers."""

    @abstractmethod
    def _default_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Losses of the examples if there is no `loss_fn`."""

    @abstractmethod
    def _predictors(self) -> dict[str, Callable[[Tensor], Any]]:
        """Functions of the logits by prediction key."""

    @abstractmethod
    def _metrics(self) -> dict[str, Metric]:
        """Return new metrics by key, without the name of the head."""

    @abstractmethod
    def _metric_inputs(
        self, labels: Tensor, logits: Tensor
    ) -> dict[str, tuple[Tensor, ...]]:
        """Arguments of ``update``, less the weights, for every key of `_metrics`."""

    # Encoding, on the host

    def encode_labels(self, labels: Any, ndim: int | None = 2) -> Tensor:
        """Check raw labels and return the tensor that `compute_loss` takes.

        Parameters
        ----------
        labels : array-like, Series or DataFrame of shape (n,) or (n, label_dimension)
            What the user has. A tensor counts as encoded: it is checked but not looked
            up in a vocabulary.
        ndim : int or None, default=2
            Dimensions of the logits. A label dimension of 1 may be left out: labels of
            shape (n, n_steps) belong to logits of shape (n, n_steps, 1). None is not
            known yet; `compute_loss` finds out then.

        Returns
        -------
        Tensor of shape (..., label_dimension)
            Integers as int64, real numbers in their own type.

        Raises
        ------
        ValueError
            If there are no labels, or their shape or a value is wrong.
        TypeError
            If they are of the wrong type.
        """
        array = dense_array(labels, self._title)
        array = with_columns(array, self._label_dimension, self._title, ndim)
        return as_tensor(self._encode_array(array, isinstance(labels, Tensor)), labels)

    def encode_features(
        self, features: Any, encoded: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Add to encoded features what the head needs from the raw ones.

        Parameters
        ----------
        features : DataFrame or dict of arrays
            Raw features.
        encoded : dict of str to Tensor
            What the network takes.

        Returns
        -------
        dict of str to Tensor
            A new dictionary, with the weights under `weight_key` if the head has a
            `weight_column`; and if its `loss_fn` takes features, with a dictionary of
            the raw numbers under `features_key`.

        Raises
        ------
        ValueError
            If the weight column is missing or has values that are not finite.
        TypeError
            If the weights are not numbers.
        """
        own: dict[str, Any] = {}
        if self.weight_column is not None:
            own[self.weight_key] = encode_weights(
                features, self.weight_column, self._title
            )
        if self._takes_features:
            own[self.features_key] = number_columns(features)
        return {**encoded, **own}

    @property
    def weight_key(self) -> str:
        """Key of the weights among the encoded features."""
        # A slash, so that no column of a table is likely to have this name.
        return f"{self.name or 'head'}/weights"

    @property
    def features_key(self) -> str:
        """Key of the raw numbers for `loss_fn` among the encoded features."""
        return f"{self.name or 'head'}/features"

    @property
    def _takes_features(self) -> bool:
        return "features" in self._loss_extras

    @property
    def _weight_columns(self) -> tuple[str | WeightColumn, ...]:
        return () if self.weight_column is None else (self.weight_column,)

    def _encode_beside(self, logits: Any, labels: Any) -> Tensor:
        self._check_logits(logits)
        return self.encode_labels(labels, logits.ndim).to(logits.device)

    # Loss

    def compute_loss(
        self,
        labels: Tensor,
        logits: Tensor,
        features: Any = None,
        known: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch; values are not checked, shapes are.

        Parameters
        ----------
        labels : Tensor of shape (..., label_dimension)
            Result of `encode_labels`; a dimension of 1 may be left out.
        logits : Tensor of shape (..., logits_dimension)
            Result of the network; its type is that of the loss.
        features : dict, default=None
            Result of `encode_features`; needed if there is a `weight_column` or
            `loss_fn` takes features.
        known : Tensor of bool, shape (..., 1), default=None
            False where the label stands for a missing one, which has the weight 0;
            None is True everywhere.

        Returns
        -------
        Tensor of shape ()

        Raises
        ------
        ValueError
            If shapes don't match or the weights are missing.
        """
        labels = self._matched(labels, logits)
        # As tf.losses with Reduction.SUM_OVER_BATCH_SIZE: the divisor is the number of
        # rows.
        losses, weights = self._losses(labels, logits, features, known)
        return reduce_loss(losses, weights, self.loss_reduction)

    def _losses(
        self, labels: Tensor, logits: Tensor, features: Any, known: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Losses of the examples and their weights."""
        if known is not None:
            # Not only a weight of 0: what stands for a label may have a loss of NaN,
            # and a gradient of NaN even where that loss is put aside.
            logits = logits.where(known, logits.detach())
        if self.loss_fn is None:
            losses = self._default_loss(labels, logits)
        else:
            extras = self._extras(features, logits)
            # By name, as tf.estimator calls a loss_fn.
            losses = self.loss_fn(labels=labels, logits=logits, **extras)
        # Kept dimensions: (n,) and (n, 1) would multiply to (n, n).
        one_per_row = (*logits.shape[:-1], 1)
        if losses.shape not in (one_per_row, logits.shape):
            what = "_default_loss" if self.loss_fn is None else "loss_fn"
            raise ValueError(
                f"'{what}' of {self._title} must return one loss per example, of shape "
                f"{one_per_row}, or one per logit; got {tuple(losses.shape)}. Keep the "
                "last dimension and leave the mean to the head."
            )
        weights = self._weights(features, logits)
        if known is None:
            return losses, weights
        # NaN times a weight of 0 would be NaN.
        losses = losses.where(known, 0.0)
        return losses, known if weights is None else weights * known

    def _extras(self, features: Any, logits: Tensor) -> dict[str, Any]:
        """Return the optional arguments that `loss_fn` names."""
        extras: dict[str, Any] = {}
        if "loss_reduction" in self._loss_extras:
            extras["loss_reduction"] = self.loss_reduction
        if self._takes_features:
            extras["features"] = self._loss_features(features, logits)
        return extras

    def _loss_features(self, features: Any, logits: Tensor) -> Any:
        """Return columns by key, in type and device of the logits; a tensor is itself."""
        if isinstance(features, Tensor):
            return features
        encoded = isinstance(features, Mapping) and self.features_key in features
        columns = features[self.features_key] if encoded else number_columns(features)
        found = LossFeatures(self._title)
        for key, column in columns.items():
            column = column.to(device=logits.device, dtype=logits.dtype)
            # As labels of shape (n, 1): the two would broadcast to (n, n).
            found[key] = column.unsqueeze(-1) if column.ndim == 1 else column
        return found

    def _weights(self, features: Any, logits: Tensor) -> Tensor | None:
        if self.weight_column is None:
            return None
        # In a run they were read and checked with the whole table.
        if isinstance(features, Mapping) and self.weight_key in features:
            weights = features[self.weight_key]
        else:
            weights = encode_weights(features, self.weight_column, self._title)
            weights = weights.to(logits.device)
        # (n,) to (n, 1), as a column of features comes.
        aligned = weights.unsqueeze(-1) if weights.ndim == logits.ndim - 1 else weights
        allowed = [(*logits.shape[:-1], 1)]
        if self._weights_per_logit:
            allowed.append(tuple(logits.shape))
        if aligned.shape not in allowed:
            shapes = " or ".join(map(str, allowed))
            raise ValueError(
                f"Weights of {self._title} must have shape {allowed[0][:-1]}, {shapes} for "
                f"logits of shape {tuple(logits.shape)}; got {tuple(weights.shape)}."
            )
        return aligned

    def _matched(self, labels: Tensor, logits: Tensor) -> Tensor:
        """Check the shapes; return the labels in the type of the logits unless ids."""
        check_dense(labels, self._title)
        self._check_logits(logits)
        labels = matched_labels(labels, logits, self._label_dimension, self._title)
        # Cross-entropy of classes takes int64; all other losses compute with the
        # logits.
        return labels if self._labels_are_ids else labels.to(logits.dtype)

    def _check_logits(self, logits: Any) -> None:
        if not isinstance(logits, Tensor) or not logits.is_floating_point():
            kind = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
            raise TypeError(
                f"{self._title} needs logits as a tensor of floats; got {kind}."
            )
        if logits.ndim < 2 or logits.shape[-1] != self.logits_dimension:
            raise ValueError(
                f"{self._title} needs logits of shape (..., {self.logits_dimension}); "
                f"got {tuple(logits.shape)}. Give the last layer of the network "
                f"{self.logits_dimension} output(s)."
            )

    # Predictions

    def predictions(
        self, logits: Tensor, keys: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return what the logits say.

        Parameters
        ----------
        logits : Tensor of shape (..., logits_dimension)
            Result of the network.
        keys : sequence of str, default=None
            Predictions wanted, see `skest.keys.PredictionKeys`; nothing else is
            computed. None is all.

        Returns
        -------
        dict of str to Tensor or ndarray
            Class names are ndarrays of dtype object, all others tensors.

        Raises
        ------
        ValueError
            If a key is unknown or the logits have the wrong shape.
        """
        self._check_logits(logits)
        # Functions, so that only what is asked for is computed.
        known = self._predictors()
        unknown = [key for key in keys or () if key not in known]
        if unknown:
            raise ValueError(
                f"{self._title} has no prediction {', '.join(map(repr, unknown))}; it "
                f"has {', '.join(map(repr, known))}."
            )
        return {key: known[key](logits) for key in (known if keys is None else keys)}

    # Metrics

    def metrics(
        self, regularization_losses: Sequence[Any] | None = None
    ) -> dict[str, Metric]:
        """Return new metrics by name, for `update_metrics`.

        Parameters
        ----------
        regularization_losses : sequence of scalars, default=None
            If there are any, a metric of their sum is added.

        Returns
        -------
        dict of str to Metric
            The names end in "/<name>" if the head has one.
        """
        # A mean by the weights, where the loss is divided by the number of rows: as in
        # tf.estimator, the two differ if there are weights.
        metrics: dict[str, Metric] = {MetricKeys.AVERAGE_LOSS: Mean()}
        if regularization_losses:
            metrics[REGULARIZATION_LOSS] = Mean()
        metrics |= self._metrics()
        return {self._metric_name(key): metric for key, metric in metrics.items()}

    def update_metrics(
        self,
        eval_metrics: Mapping[str, Any],
        labels: Any,
        logits: Tensor,
        features: Any = None,
        regularization_losses: Sequence[Any] | None = None,
        known: Tensor | None = None,
    ) -> None:
        """Add a batch to metrics that `metrics` returned.

        Parameters
        ----------
        eval_metrics : dict of str to Metric
            The metrics of this head, perhaps among others.
        labels : Tensor or array-like of shape (n,) or (n, label_dimension)
            Encoded labels as a tensor, whose values are not checked again; or raw ones.
        logits : Tensor of shape (..., logits_dimension)
            Result of the network.
        features : DataFrame or dict of arrays, default=None
            Raw or encoded features, for the weights and `loss_fn`.
        regularization_losses : sequence of scalars, default=None
            As given to `metrics`.
        known : Tensor of bool, shape (..., 1), default=None
            As in `compute_loss`.

        Raises
        ------
        ValueError
            If a shape or value is wrong.
        TypeError
            If something is of the wrong type.
        """
        # A tensor was encoded and checked as a table before the first step.
        if not isinstance(labels, Tensor):
            labels = self._encode_beside(logits, labels)
        labels = self._matched(labels, logits)
        losses, weights = self._losses(labels, logits, features, known)
        inputs = self._metric_inputs(labels, logits)
        inputs[MetricKeys.AVERAGE_LOSS] = (losses,)
        for key, arguments in inputs.items():
            # Every metric is weighted, as in tf.estimator.
            eval_metrics[self._metric_name(key)].update(*arguments, weights)
        self._note_regularization(eval_metrics, regularization_losses)


_NEEDED = ("labels", "logits")
_EXTRAS = ("features", "loss_reduction")


def extra_arguments(
    loss_fn: Callable[..., Tensor] | None, owner: str
) -> tuple[str, ...]:
    """Return which of the optional arguments a loss_fn takes, after a check of all.

    Parameters
    ----------
    loss_fn : callable or None
        What the user gave.
    owner : str
        The head, for the message.

    Returns
    -------
    tuple of str
        Some of "features" and "loss_reduction".

    Raises
    ------
    TypeError
        If it is no function.
    ValueError
        If it lacks labels or logits, or needs anything else.
    """
    if loss_fn is None:
        return ()
    if not callable(loss_fn):
        raise TypeError(f"'loss_fn' of {owner} must be a function; got {loss_fn!r}.")
    # Here, where the head is made, and not in the first step.
    named, others = arguments_named(loss_fn, (*_NEEDED, *_EXTRAS))
    if others or not set(_NEEDED) <= set(named):
        raise ValueError(
            f"'loss_fn' of {owner} must have the arguments {' and '.join(_NEEDED)}, and "
            f"may have {' and '.join(_EXTRAS)}; got {inspect.signature(loss_fn)}. Wrap it "
            "in a function that has them."
        )
    return tuple(name for name in _EXTRAS if name in named)


class LossFeatures(dict[Any, Tensor]):
    """Columns of numbers by key; a key that is missing is an error that lists the others.

    Parameters
    ----------
    owner : str
        The head, for the message.
    """

    def __init__(self, owner: str) -> None:
        super().__init__()
        self._owner = owner

    def __missing__(self, key: Any) -> NoReturn:
        listed = ", ".join(map(repr, self)) or "none"
        raise ValueError(
            f"'loss_fn' of {self._owner} asks for the feature {key!r}, but the columns of "
            f"numbers among the raw features are {listed}. Add it to the features, as "
            "numbers."
        )


def number_columns(features: Any) -> dict[Any, Tensor]:
    """Return the columns of raw features that hold numbers, as tensors by key.

    Parameters
    ----------
    features : DataFrame, dict of arrays or tensors, array, or None
        Raw features.

    Returns
    -------
    dict of Tensor
        Tensors as they came, all others as floats. Missing numbers are NaN. What is no
        column of numbers (strings, dates, lists of different lengths) is left out.

    Examples
    --------
    >>> from skest.heads.single_task import number_columns
    >>> number_columns({"area": [30, 50], "city": ["Bern", "Oslo"]})
    {'area': tensor([30., 50.], dtype=torch.float64)}
    """
    columns: dict[Any, Tensor] = {}
    if isinstance(features, Mapping):
        columns = {k: v for k, v in features.items() if isinstance(v, Tensor)}
        features = {
            k: v for k, v in features.items() if not isinstance(v, Tensor | Mapping)
        }
    if features is None or (isinstance(features, Mapping) and not features):
        return columns
    table = Table(features)
    whole = () if table.whole_key is None else (table.whole_key,)
    for key in (*table.keys, *whole):
        try:
            numbers = table.numbers(key)
        except (TypeError, ValueError):  # no numbers, which the loss may not need
            continue
        # As wide as they are: the loss takes them in the type of the logits later.
        floats = numbers.astype(np.promote_types(numbers.dtype, np.float32))
        columns[key] = torch.from_numpy(floats)
    return columns
