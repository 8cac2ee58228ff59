# SPDX-License-Identifier: Apache-2.0
"""`MultiClassHead`: one of three or more classes."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from skest._checks import check_integer
from skest.heads.labels import check_range, numbers
from skest.heads.single_label import SingleLabelHead
from skest.heads.weights import WeightColumn
from skest.keys import MetricKeys
from skest.losses import softmax_cross_entropy
from skest.metrics import Accuracy, Metric

__all__ = ["MultiClassHead"]


class MultiClassHead(SingleLabelHead):
    """Head for one of several classes (``tf.estimator.MultiClassHead``).

    The loss is softmax cross-entropy. Labels are integers from 0, or names of the
    vocabulary. Among equal logits, the lowest class id is predicted.

    Predictions are logits, probabilities, class_ids, classes, all_class_ids and
    all_classes; metrics are average_loss and accuracy.

    Parameters
    ----------
    n_classes : int, at least 3
        Number of classes.
    weight_column : str or NumericColumn, default=None
        See `skest.heads.SingleTaskHead`.
    label_vocabulary : sequence of n_classes str, default=None
        Names of the classes, in the order of their ids.
    loss_reduction, loss_fn, name
        See `skest.heads.SingleTaskHead`.

    Raises
    ------
    ValueError
        If the number of classes, the vocabulary or the reduction is wrong.
    TypeError
        If an argument has the wrong type.

    Examples
    --------
    >>> import torch
    >>> from skest.heads import MultiClassHead
    >>> head = MultiClassHead(3)
    >>> logits = torch.tensor([[0.0, 0.0, 1.0]])
    >>> head.loss([2], logits)
    tensor(0.5514)
    >>> head.predictions(logits, keys=["class_ids"])
    {'class_ids': tensor([[2]])}
    """

    _labels_are_ids = True

    def __init__(
        self,
        n_classes: int,
        weight_column: str | WeightColumn | None = None,
        label_vocabulary: Sequence[str] | None = None,
        loss_reduction: str = "sum_over_batch_size",
        loss_fn: Callable[..., Tensor] | None = None,
        name: str | None = None,
    ) -> None:
        owner = type(self).__name__
        if n_classes == 2:
            raise ValueError(
                f"'n_classes' of {owner} must be greater than 2; got 2. "
                "Use BinaryClassHead."
            )
        check_integer(n_classes, "n_classes", owner, 3)
        self.n_classes = n_classes
        super().__init__(weight_column, label_vocabulary, loss_reduction, loss_fn, name)

    @property
    def logits_dimension(self) -> int:
        """Number of classes."""
        return self.n_classes

    def _check_ids(self, labels: np.ndarray) -> np.ndarray:
        ids = numbers(labels, self._title)
        if ids.dtype.kind == "f":
            raise ValueError(
                f"{self._title} needs integer labels; got {labels.dtype}. Convert them "
                "with labels.astype(int), or use RegressionHead for real numbers."
            )
        check_range(ids, self.n_classes - 1, self._title, "one id for each class")
        return ids

    def _default_loss(self, labels: Tensor, logits: Tensor) -> Tensor:
        return softmax_cross_entropy(labels, logits)

    def _class_ids(self, logits: Tensor) -> Tensor:
        return logits.argmax(dim=-1, keepdim=True)

    def _probabilities(self, logits: Tensor) -> Tensor:
        return torch.softmax(logits, dim=-1)

    def _metrics(self) -> dict[str, Metric]:
        return {MetricKeys.ACCURACY: Accuracy()}

    def _metric_inputs(
        self, labels: Tensor, logits: Tensor
    ) -> dict[str, tuple[Tensor, ...]]:
        return {MetricKeys.ACCURACY: (self._class_ids(logits), labels)}
