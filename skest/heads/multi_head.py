# SPDX-License-Identifier: Apache-2.0
"""`MultiHead`: several targets of one network, any of which may be missing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse
import torch
from torch import Tensor, nn

from skest.core.checks import check_not_negative
from skest.heads.base import REGULARIZATION_LOSS, Head
from skest.heads.labels import WeightColumn, dense_array, with_columns
from skest.heads.multi_label import MultiLabelHead, as_cells
from skest.heads.single_task import SingleTaskHead
from skest.keys import MetricKeys
from skest.metrics import Mean, Metric


class MultiHead(Head):
    """Head for several targets (``tf.estimator.MultiHead``).

    The loss is the sum of the losses of the heads, times `head_weights`. Labels are a
    dictionary or a DataFrame with one entry for each head, by name. Logits are one
    tensor, with those of the heads side by side, or a dictionary.

    A label may be missing: None, NaN or pandas.NA (in a tensor none is). It counts as one
    of weight 0, in the loss (whose divisor still is the number of rows) and in the metrics
    of its head.

    Predictions have keys ``(head, key)``, as ``("click", "probabilities")``; metrics
    end in "/<head>", and "loss/<head>" is the mean over the batches of the loss of a
    head, without its weight.

    Parameters
    ----------
    heads : sequence of SingleTaskHead
        Heads with different names and the same `loss_reduction`.
    head_weights : sequence of float, not negative, default=None
        Factors of the losses; None is 1 for all.

    Raises
    ------
    ValueError
        If there is no head, a name is missing or there twice, reductions differ, or the
        number of weights or a weight is wrong.
    TypeError
        If a head is none, or a weight is no number.

    Examples
    --------
    >>> import torch
    >>> from skest.heads import BinaryClassHead, MultiHead, RegressionHead
    >>> head = MultiHead(
    ...     [BinaryClassHead(name="click"), RegressionHead(name="price")],
    ...     head_weights=[1.0, 0.5],
    ... )
    >>> head.logits_dimension
    2
    >>> logits = torch.tensor([[0.0, 1.0], [0.0, 2.0]])
    >>> head.loss({"click": [1, 0], "price": [3.0, None]}, logits)
    tensor(1.6931)
    >>> head.predictions(logits, keys=[("price", "predictions")])
    {('price', 'predictions'): tensor([[1.],
            [2.]])}
    """

    def __init__(
        self,
        heads: Sequence[SingleTaskHead],
        head_weights: Sequence[float] | None = None,
    ) -> None:
        self.heads = heads
        self.head_weights = head_weights
        self._by_name = _check_heads(heads)
        self._factors = _check_head_weights(head_weights, list(self._by_name))
        # As MultiHead of tf.estimator calls itself.
        self.name = "_".join(self._by_name)
        self.loss_reduction = heads[0].loss_reduction

    @property
    def logits_dimension(self) -> int:
        """Sum of the dimensions of all heads."""
        return sum(head.logits_dimension for head in self.heads)

    @property
    def _weight_columns(self) -> list[str | WeightColumn]:
        return [column for head in self.heads for column in head._weight_columns]

    @property
    def _takes_features(self) -> bool:
        return any(head._takes_features for head in self.heads)

    # Encoding, on the host

    def encode_labels(self, labels: Any, ndim: int | None = 2) -> dict[str, Any]:
        """Check raw labels and return what `compute_loss` takes.

        Parameters
        ----------
        labels : dict or DataFrame
            Raw labels by the name of the head; other entries are ignored.
        ndim : int or None, default=2
            Dimensions of the logits, as in `SingleTaskHead.encode_labels`.

        Returns
        -------
        dict of str to Tensor, or to a dict of two if labels are missing
            Encoded labels of shape (n, label_dimension) by head; see
            `skest.heads.multi_head.encode_with_gaps`.

        Raises
        ------
        ValueError
            If there are no labels, those of a head lack, or their shape or a value is
            wrong.
        TypeError
            If they are of the wrong type.
        """
        given = self._by_head(labels, "labels")
        return {
            name: encode_with_gaps(head, given[name], ndim)
            for name, head in self._by_name.items()
        }

    def encode_features(
        self, features: Any, encoded: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        """Add to encoded features what the heads need from the raw ones."""
        for head in self.heads:
            # Keys have the names of heads in front, so that none overwrites another's.
            encoded = head.encode_features(features, encoded)
        return dict(encoded)

    def _encode_beside(self, logits: Any, labels: Any) -> dict[str, Any]:
        given = self._by_head(labels, "labels")
        return {
            name: _encode_with_gaps_beside(self._by_name[name], part, given[name])
            for name, part in self._split(logits).items()
        }

    def check_network(self, network: nn.Module) -> None:
        """Raise ValueError if the network does not go with one of the heads."""
        for head in self.heads:
            head.check_network(network)

    # Loss

    def compute_loss(self, labels: Any, logits: Any, features: Any = None) -> Tensor:
        """Return the weighted sum of the losses; values are not checked, shapes are.

        Parameters
        ----------
        labels : dict
            Result of `encode_labels`.
        logits : Tensor of shape (..., logits_dimension), or dict of Tensor by head
            Result of the network.
        features : dict, default=None
            Result of `encode_features`.

        Returns
        -------
        Tensor of shape ()

        Raises
        ------
        ValueError
            If a head has no labels or logits, shapes don't match or weights are missing.
        """
        losses = self._losses(labels, logits, features)
        # MultiHead.loss of TensorFlow: head_weights weigh the sum, "loss/<head>" is
        # without them.
        factors = zip(self._factors, losses.values(), strict=True)
        # (n_heads,)
        return torch.stack([factor * loss for factor, loss in factors]).sum()

    def _losses(self, labels: Any, logits: Any, features: Any) -> dict[str, Tensor]:
        """Losses of the heads by name."""
        parts, given = self._split(logits), self._by_head(labels, "labels")
        losses = {}
        for name, head in self._by_name.items():
            # Zero is a class or a number that every loss takes.
            encoded, known = labels_and_known(given[name])
            losses[name] = head.compute_loss(encoded, parts[name], features, known)
        return losses

    def _named_losses(
        self, labels: Any, logits: Any, features: Any
    ) -> dict[str, Tensor]:
        losses = self._losses(labels, logits, features)
        return {_loss_name(head): losses[name] for name, head in self._by_name.items()}

    # Predictions

    def predictions(
        self, logits: Any, keys: Sequence[tuple[str, str]] | None = None
    ) -> dict[tuple[str, str], Any]:
        """Return what the logits say.

        Parameters
        ----------
        logits : Tensor of shape (..., logits_dimension), or dict of Tensor by head
            Result of the network.
        keys : sequence of (head, key), default=None
            Predictions wanted; nothing else is computed. None is all.

        Returns
        -------
        dict of (str, str) to Tensor or ndarray
            Class names are ndarrays of dtype object, all others tensors.

        Raises
        ------
        ValueError
            If a key is unknown or the logits have the wrong shape.
        """
        parts = self._split(logits)
        # None asks a head for all of its predictions.
        wanted: dict[str, list[str] | None] = dict.fromkeys(parts)
        if keys is not None:
            wanted = self._keys_by_head(keys)
        return {
            (name, key): value
            for name, keys_of_head in wanted.items()
            for key, value in self._by_name[name]
            .predictions(parts[name], keys_of_head)
            .items()
        }

    def _keys_by_head(self, keys: Sequence[Any]) -> dict[str, list[str] | None]:
        grouped: dict[str, list[str] | None] = {}
        for key in keys:
            if not (
                isinstance(key, tuple) and len(key) == 2 and key[0] in self._by_name
            ):
                raise ValueError(
                    f"{self._title} has no prediction {key!r}. Its keys are pairs of a "
                    f"head, {_listed(self._by_name)}, and a key of that head: "
                    f"[({self.heads[0].name!r}, 'logits')]."
                )
            # Each head is asked once, for all that is wanted of it.
            grouped[key[0]] = [*(grouped.get(key[0]) or []), key[1]]
        return grouped

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
            "loss/<head>" and the metrics of every head.
        """
        metrics: dict[str, Metric] = {}
        if regularization_losses:
            metrics[self._metric_name(REGULARIZATION_LOSS)] = Mean()
        for head in self.heads:
            metrics[_loss_name(head)] = Mean()
            metrics |= head.metrics()
        return metrics

    def update_metrics(
        self,
        eval_metrics: Mapping[str, Any],
        labels: Any,
        logits: Any,
        features: Any = None,
        regularization_losses: Sequence[Any] | None = None,
    ) -> None:
        """Add a batch to metrics that `metrics` returned.

        Parameters
        ----------
        eval_metrics : dict of str to Metric
            The metrics of this head, perhaps among others.
        labels : dict or DataFrame
            By the name of the head: encoded labels, whose values are not checked again,
            or raw ones.
        logits : Tensor of shape (..., logits_dimension), or dict of Tensor by head
            Result of the network.
        features : DataFrame or dict of arrays, default=None
            Raw or encoded features, for the weights and `loss_fn`.
        regularization_losses : sequence of scalars, default=None
            As given to `metrics`.

        Raises
        ------
        ValueError
            If a shape or value is wrong.
        TypeError
            If something is of the wrong type.
        """
        parts, given = self._split(logits), self._by_head(labels, "labels")
        for name, head in self._by_name.items():
            part, of_head = parts[name], given[name]
            # A dictionary of labels and gaps passes through unchanged, so that this
            # encodes raw ones.
            if not isinstance(of_head, Tensor):
                of_head = _encode_with_gaps_beside(head, part, of_head)
            # tf.estimator.MultiHead has the losses of its heads as metrics, each the
            # mean over batches.
            encoded, known = labels_and_known(of_head)
            loss = head.compute_loss(encoded, part, features, known)
            eval_metrics[_loss_name(head)].update(loss)
            head.update_metrics(eval_metrics, encoded, part, features, known=known)
        self._note_regularization(eval_metrics, regularization_losses)

    # Entries by head

    def _split(self, logits: Any) -> dict[str, Tensor]:
        """Return the logits of the heads by name."""
        if not isinstance(logits, Tensor):
            return self._by_head(logits, "logits")
        if logits.ndim < 2 or logits.shape[-1] != self.logits_dimension:
            raise ValueError(
                f"{self._title} needs logits of shape (..., {self.logits_dimension}), "
                f"those of {_listed(self._by_name)} side by side; got "
                f"{tuple(logits.shape)}."
            )
        # In the order of the heads, as MultiHead of TensorFlow splits them.
        sizes = [head.logits_dimension for head in self.heads]
        return dict(zip(self._by_name, logits.split(sizes, dim=-1), strict=True))

    def _by_head(self, values: Any, what: str) -> dict[str, Any]:
        """Return what a dictionary or DataFrame has for the heads."""
        if isinstance(values, Mapping):
            names = list(values)
        elif hasattr(values, "columns"):
            names = list(values.columns)
        else:
            raise ValueError(
                f"{self._title} needs {what} as a dictionary with the keys "
                f"{_listed(self._by_name)}; got {type(values).__name__}."
            )
        missing = [name for name in self._by_name if name not in names]
        if missing:
            raise ValueError(
                f"{self._title} needs {what} of its head(s) {_listed(missing)}; got "
                f"those of {_listed(names) or 'none'}."
            )
        # Others are no business of the head: the input_fn may serve several models.
        return {name: values[name] for name in self._by_name}


def _check_heads(heads: Any) -> dict[str, SingleTaskHead]:
    """Return the heads by name, if they go together."""
    if not isinstance(heads, Sequence) or not heads:
        raise ValueError(
            f"'heads' of MultiHead must be a list of heads; got {heads!r}."
        )
    by_name: dict[str, SingleTaskHead] = {}
    for head in heads:
        if not isinstance(head, SingleTaskHead):
            raise TypeError(
                f"'heads' of MultiHead must hold heads for one target; got {head!r}."
            )
        if head.name is None:
            raise ValueError(
                f"Every head of a MultiHead needs a name; {head!r} has none. Pass name=... "
                "to it: labels, metrics and predictions are found by it."
            )
        # tf.estimator lets the second head overwrite the first.
        if head.name in by_name:
            raise ValueError(
                f"The heads of a MultiHead need different names; got {head.name!r} twice."
            )
        # A sum and a mean would be added, and weighed against each other by the batch
        # size.
        if head.loss_reduction != heads[0].loss_reduction:
            raise ValueError(
                "The heads of a MultiHead need the same 'loss_reduction'; got "
                f"{heads[0].loss_reduction!r} of {heads[0].name!r} and "
                f"{head.loss_reduction!r} of {head.name!r}."
            )
        by_name[head.name] = head
    return by_name


def _check_head_weights(weights: Any, names: list[str]) -> list[float]:
    """Return the factors of the losses."""
    if weights is None:
        return [1.0] * len(names)
    factors = list(weights)
    if len(factors) != len(names):
        raise ValueError(
            f"'head_weights' of MultiHead must have one number for each of the "
            f"{len(names)} heads; got {len(factors)}."
        )
    for factor, name in zip(factors, names, strict=True):
        check_not_negative(factor, "head_weights", f"MultiHead, for {name!r},")
    return [float(factor) for factor in factors]


def _loss_name(head: SingleTaskHead) -> str:
    return f"{MetricKeys.LOSS}/{head.name}"


def _encode_with_gaps_beside(head: SingleTaskHead, logits: Tensor, labels: Any) -> Any:
    head._check_logits(logits)
    encoded = encode_with_gaps(head, labels, logits.ndim)
    if isinstance(encoded, Tensor):
        return encoded.to(logits.device)
    # Labels and where they are known.
    return {key: tensor.to(logits.device) for key, tensor in encoded.items()}


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(map(repr, names))


_LABELS, _KNOWN = "labels", "known"


def encode_with_gaps(
    head: SingleTaskHead, labels: Any, ndim: int | None = 2
) -> Tensor | dict[str, Tensor]:
    """Encode labels of which some may be missing: None, NaN, NaT or pandas.NA.

    A row with several label dimensions is missing if all of them are; where only some
    are, the head decides.

    Parameters
    ----------
    head : SingleTaskHead
        Checks and encodes the labels that are there.
    labels : array-like
        As ``head.encode_labels`` takes them, or a dictionary that this returned. In
        tensors nothing is missing.
    ndim : int or None, default=2
        Dimensions of the logits, as in ``head.encode_labels``.

    Returns
    -------
    Tensor, or dict with the keys "labels" and "known"
        The dictionary if something is missing: the labels have zeros there, and the
        other tensor, of bool and shape (..., 1), has False.

    Raises
    ------
    ValueError, TypeError
        As ``head.encode_labels``.

    Examples
    --------
    >>> from skest.heads.multi_head import encode_with_gaps
    >>> from skest.heads.classification import MultiClassHead
    >>> encode_with_gaps(MultiClassHead(3), [2.0, None])
    {'labels': tensor([[2],
            [0]]), 'known': tensor([[ True],
            [False]])}
    """
    if isinstance(labels, Mapping) and labels.keys() == {_LABELS, _KNOWN}:
        return dict(labels)
    if scipy.sparse.issparse(labels) or isinstance(labels, Tensor):
        return head.encode_labels(labels, ndim)  # there is no place for a gap
    # A list of lists is one list of classes for each row, not a matrix.
    if isinstance(head, MultiLabelHead):
        labels = as_cells(labels)
    array = dense_array(labels, head._title)
    if head._label_dimension == 1:
        array = with_columns(array, 1, head._title, ndim)
        if array.shape[-1] != 1:  # one column that was left out
            array = array[..., None]
    known = ~_is_missing(array)
    if known.all():
        return head.encode_labels(labels, ndim)
    # Zeros stand for missing labels; `known` keeps them out of losses and metrics.
    # `known` is (n,), or (n, n_steps) for sequences.
    encoded = torch.zeros((*known.shape, head._label_dimension), dtype=torch.int64)
    if known.any():
        # (n_known, label_dimension): only what is there is checked.
        values = head.encode_labels(whole_ids(array[known], head))
        encoded = encoded.to(values.dtype)
        encoded[torch.from_numpy(known)] = values
    return {_LABELS: encoded, _KNOWN: torch.from_numpy(known).unsqueeze(-1)}


def labels_and_known(
    encoded: Tensor | Mapping[str, Tensor],
) -> tuple[Tensor, Tensor | None]:
    """Take the result of `encode_with_gaps` apart; None is if nothing is missing."""
    if isinstance(encoded, Mapping):
        return encoded[_LABELS], encoded[_KNOWN]
    return encoded, None


def _is_missing(array: np.ndarray) -> np.ndarray:
    missing = np.asarray(pd.isna(array))
    # Rows without any entry are empty lists of classes.
    return missing if array.ndim == 1 else missing.all(axis=-1) & (array.shape[-1] > 0)


def whole_ids(array: np.ndarray, head: SingleTaskHead) -> np.ndarray:
    """Undo what gaps did to class ids: pandas, polars and NumPy make them floats."""
    if not head._labels_are_ids or array.dtype.kind not in "fO":
        return array
    # A None left out, objects may be nothing but floats.
    inferred = pd.Series(array.ravel()).infer_objects()
    if inferred.dtype.kind == "f" and (inferred % 1 == 0).all():
        return inferred.to_numpy().astype(np.int64).reshape(array.shape)
    return array
