# SPDX-License-Identifier: Apache-2.0
"""`MultiLabelHead`: any number of classes at once."""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from skest.core.checks import check_integer
from skest.heads.classification import (
    check_thresholds,
    threshold_inputs,
    threshold_metrics,
)
from skest.heads.labels import (
    WeightColumn,
    as_tensor,
    check_range,
    check_vocabulary,
    class_names,
    first,
    is_text,
    numbers,
    vocabulary_ids,
    vocabulary_index,
)
from skest.heads.single_task import SingleTaskHead
from skest.keys import MetricKeys, PredictionKeys
from skest.losses import sigmoid_cross_entropy
from skest.metrics import AUC, Mean, Metric

_PROBABILITY_MEAN = "probability_mean"
_INDICATORS = "Give indicators as an array: np.asarray(labels)."
_LISTS = (list, tuple, set, frozenset, np.ndarray)


class MultiLabelHead(SingleTaskHead):
    """Head for several classes that exclude nothing (``tf.estimator.MultiLabelHead``).

    The loss of an example is the mean of the sigmoid cross-entropies of its classes.
    Labels are one of:

    - indicators: an array, DataFrame or SciPy sparse matrix of shape (n, n_classes) with
      values 0 and 1, or probabilities in between;
    - lists of class ids, one per example: a list of lists, or a Series or array of dtype
      object that holds lists. ``[[0, 1], [1, 0]]`` are classes 0 and 1 twice,
      ``np.array([[0, 1], [1, 0]])`` is class 1 and class 0;
    - lists of class names in the same way, if there is a vocabulary.

    `skest.inputs.ArrayDataset` and `skest.inputs.numpy_input_fn` make arrays of lists;
    give them lists of ids as a Series.

    Predictions are logits, probabilities and classes (the names of all classes);
    metrics are average_loss, auc and auc_precision_recall, three for each threshold,
    and three for each class of `classes_for_class_based_metrics`. A label above 0 counts
    as positive there.

    Parameters
    ----------
    n_classes : int, at least 2
        Number of classes.
    weight_column : str or NumericColumn, default=None
        See `skest.heads.SingleTaskHead`.
    thresholds : sequence of float in (0, 1), default=None
        Where to take "accuracy/positive_threshold_<t>", precision and recall.
    label_vocabulary : sequence of n_classes str, default=None
        Names of the classes, in the order of their ids.
    loss_reduction, loss_fn
        See `skest.heads.SingleTaskHead`.
    classes_for_class_based_metrics : sequence of int or str, default=None
        Ids or names of classes that get their own "probability_mean/…", "auc/…" and
        "auc_precision_recall/…": by name if there is a vocabulary, else as "class<id>".
    name : str, default=None
        See `skest.heads.SingleTaskHead`.

    Raises
    ------
    ValueError
        If the number of classes, the vocabulary, a threshold, a class or the reduction
        is wrong.
    TypeError
        If an argument has the wrong type.

    Examples
    --------
    >>> import torch
    >>> from skest.heads import MultiLabelHead
    >>> head = MultiLabelHead(3, label_vocabulary=["cat", "dog", "emu"])
    >>> head.encode_labels([["emu", "cat"], ["dog"]])
    tensor([[1, 0, 1],
            [0, 1, 0]], dtype=torch.uint8)
    >>> head.loss(torch.tensor([[1, 0, 1], [0, 1, 0]]), torch.zeros(2, 3))
    tensor(0.6931)
    """

    def __init__(
        self,
        n_classes: int,
        weight_column: str | WeightColumn | None = None,
        thresholds: Sequence[float] | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Tensor] | None = None,
        classes_for_class_based_metrics: Sequence[int | str] | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(weight_column, loss_reduction, loss_fn, name)
        check_integer(n_classes, "n_classes", self._title, 2)
        check_vocabulary(label_vocabulary, n_classes, self._title)
        self.n_classes = n_classes
        self.thresholds = thresholds
        self.label_vocabulary = label_vocabulary
        self.classes_for_class_based_metrics = classes_for_class_based_metrics
        self._thresholds = check_thresholds(thresholds, self._title)
        self._metric_classes = {
            id_: f"class{id_}" if label_vocabulary is None else label_vocabulary[id_]
            for id_ in map(self._class_id, classes_for_class_based_metrics or ())
        }

    def _class_id(self, class_: int | str) -> int:
        """Id of a class that was given by name or by id."""
        owner = f"'classes_for_class_based_metrics' of {self._title}"
        if isinstance(class_, str):
            if self.label_vocabulary is None:
                raise ValueError(
                    f"{owner} holds the name {class_!r}, which needs 'label_vocabulary'."
                )
            names = list(self.label_vocabulary)
            if class_ not in names:
                raise ValueError(
                    f"{owner} holds {class_!r}, which is not in 'label_vocabulary'."
                )
            return names.index(class_)
        if not 0 <= class_ < self.n_classes:
            raise ValueError(
                f"{owner} must hold ids in [0, {self.n_classes - 1}]; got {class_!r}."
            )
        return int(class_)

    @property
    def logits_dimension(self) -> int:
        """Number of classes."""
        return self.n_classes

    def encode_labels(self, labels: Any, ndim: int | None = 2) -> Tensor:
        """Check raw labels and return them as indicators.

        Parameters
        ----------
        labels : array, sparse matrix, Series or list of lists
            See the class.
        ndim : int or None, default=2
            Taken for the sake of other heads: here no dimension may be left out.

        Returns
        -------
        Tensor of shape (n, n_classes)
            uint8, or the type of the labels if these are real numbers.

        Raises
        ------
        ValueError
            If there are no labels, or their shape or a value is wrong.
        TypeError
            If they are of the wrong type.
        """
        # Dense from here on: the loss looks at each class of each row.
        if scipy.sparse.issparse(labels):
            labels = labels.toarray()
        elif isinstance(labels, Tensor):
            labels = labels.to_dense()
        # A tensor holds indicators: it cannot hold lists.
        cells = None if isinstance(labels, Tensor) else _lists(as_cells(labels))
        if cells is None:
            return super().encode_labels(labels, ndim)
        return as_tensor(self._indicators(cells), labels)

    def _indicators(self, cells: Sequence[Any]) -> np.ndarray:
        """Return multi-hot rows for lists of ids or names."""
        # Of the types, which are few, and not of a million lists one by one.
        for kind in set(map(type, cells)):
            if not issubclass(kind, _LISTS):
                raise TypeError(
                    f"{self._title} got a {kind.__name__} among the lists of classes. "
                    "Pass an empty list where there are none."
                )
        # A byte each: a table of labels may be as large as that of the features.
        indicators = np.zeros((len(cells), self.n_classes), dtype=np.uint8)
        # Row and id of every 1: (n_ones,) each.
        rows = np.repeat(np.arange(len(cells)), [len(cell) for cell in cells])
        if rows.size:
            # One array for all lists: vocabularies and ranges are checked at once.
            values = np.array(list(chain.from_iterable(cells)))
            index = vocabulary_index(self.label_vocabulary)
            ids = numbers(vocabulary_ids(values, index, self._title), self._title)
            if ids.dtype.kind == "f" or ids.ndim > 1:
                raise ValueError(
                    f"{self._title} needs lists of integer class ids; got {first(values)}. "
                    f"{_INDICATORS}"
                )
            check_range(ids, self.n_classes - 1, self._title, "ids of classes")
            # [[0, 1, 1], ...] for three classes: indicators that came as lists.
            if ids.max() < 2 < self.n_classes == min(map(len, cells)):
                raise ValueError(
                    f"{self._title} needs lists of class ids; got {cells[0]!r}, which is "
                    f"0 or 1 for each of the {self.n_classes} classes. {_INDICATORS}"
                )
            indicators[rows, ids] = 1
        return indicators

    def _encode_array(self, array: np.ndarray, is_encoded: bool) -> np.ndarray:
        values = numbers(array, self._title)
        check_range(values, 1, self._title, "0 or 1 for every class")
        return values.astype(np.uint8) if values.dtype.kind == "i" else values

    def _default_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        # The mean over the classes, as tf.estimator.MultiLabelHead takes it.
        return sigmoid_cross_entropy(labels, logits).mean(dim=-1, keepdim=True)

    def _predictors(self) -> dict[str, Callable[[Tensor], Any]]:
        names = class_names(self.label_vocabulary, self.n_classes)
        return {
            PredictionKeys.LOGITS: lambda logits: logits,
            PredictionKeys.PROBABILITIES: torch.sigmoid,
            # All of them, not the predicted ones, as in tf.estimator.
            PredictionKeys.CLASSES: lambda z: np.broadcast_to(
                names, (z.shape[0], self.n_classes)
            ),
        }

    def _metrics(self) -> dict[str, Metric]:
        metrics: dict[str, Metric] = {
            MetricKeys.AUC: AUC(),
            MetricKeys.AUC_PR: AUC("PR"),
            **threshold_metrics(self._thresholds),
        }
        for name in self._metric_classes.values():
            # Names of tf.estimator: "probability_mean/<class>", "auc/<class>".
            metrics[f"{_PROBABILITY_MEAN}/{name}"] = Mean()
            metrics[f"{MetricKeys.AUC}/{name}"] = AUC()
            metrics[f"{MetricKeys.AUC_PR}/{name}"] = AUC("PR")
        return metrics

    def _metric_inputs(
        self, labels: Tensor, logits: Tensor
    ) -> dict[str, tuple[Tensor, ...]]:
        probabilities = torch.sigmoid(logits)
        inputs: dict[str, tuple[Tensor, ...]] = {
            MetricKeys.AUC: (probabilities, labels),
            MetricKeys.AUC_PR: (probabilities, labels),
            **threshold_inputs(self._thresholds, probabilities, labels),
        }
        for id_, name in self._metric_classes.items():
            # (..., 1) again, as weights of examples are.
            column = (probabilities[..., id_, None], labels[..., id_, None])
            inputs[f"{_PROBABILITY_MEAN}/{name}"] = column[:1]
            inputs[f"{MetricKeys.AUC}/{name}"] = column
            inputs[f"{MetricKeys.AUC_PR}/{name}"] = column
        return inputs


def as_cells(labels: Any) -> Any:
    """Return a list of lists as an array of them, so that nobody takes it for a matrix."""
    if isinstance(labels, list | tuple) and any(isinstance(c, _LISTS) for c in labels):
        # np.array would make a matrix of lists that are of one length.
        return np.fromiter(labels, dtype=object, count=len(labels))
    return labels


def _lists(labels: Any) -> Any:
    """Return labels that are one list per example, None if they are indicators."""
    array = labels.to_numpy() if hasattr(labels, "to_numpy") else labels
    if not isinstance(array, np.ndarray) or len(array) == 0:
        return None
    if array.ndim == 1:
        return array if any(isinstance(cell, _LISTS) for cell in array) else None
    # A row without any entry is an empty list, whatever the type.
    return array if array.ndim == 2 and (array.size == 0 or is_text(array)) else None
