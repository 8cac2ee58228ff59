# SPDX-License-Identifier: Apache-2.0
"""`GivenTarget`: the target of a head that the user gives."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import column_or_1d

from skest.adapters.target_scale import TargetScale
from skest.adapters.targets.base import Predictions, Target
from skest.adapters.targets.classes import ClassTarget
from skest.adapters.targets.labels import LabelsTarget, without_na
from skest.adapters.targets.numbers import NumberTarget
from skest.heads.logistic import LogisticRegressionHead
from skest.heads.missing import encode_with_gaps, labels_and_known, whole_ids
from skest.heads.multi_label import MultiLabelHead
from skest.heads.poisson import PoissonRegressionHead
from skest.heads.regression import RegressionHead
from skest.heads.single_label import SingleLabelHead
from skest.heads.single_task import SingleTaskHead
from skest.keys import PredictionKeys

__all__ = ["GivenTarget"]


class GivenTarget(Target):
    """The target of a head: it takes what the head takes, and checks as the head does.

    Parameters
    ----------
    owner : str
        The estimator, as messages call it.
    head : SingleTaskHead
        Loss, predictions and metrics. A head for no kind of classes is expected to
        predict "predictions".
    """

    def __init__(self, owner: str, head: SingleTaskHead) -> None:
        super().__init__(owner)
        self._head = head
        self._like = _target_like(owner, head)
        self.fewest_scored = self._like.fewest_scored
        self.answer_keys: Sequence[Any] = self._like.answer_keys
        self.proba_keys: Sequence[Any] = self._like.proba_keys

    @property
    def classes(self) -> NDArray[Any]:
        """The names of the classes, or their ids; AttributeError if there are none."""
        return self._like.classes  # type: ignore[attr-defined]

    def learn(self, y: Any, *, gaps: bool = False, classes: Any = None) -> None:
        """Learn the shape of numbers; anything else is said by the head."""
        self.check_classes(classes)
        if isinstance(self._like, NumberTarget):
            self._like.shape = np.shape(self._values(y))[1:]

    def check_classes(self, classes: Any) -> None:
        """Refuse classes that are not those of the head; None is fine."""
        self._like.check_classes(classes)

    def encode(self, y: Any, *, gaps: bool = False, strict: bool = True) -> Any:
        """Return `y` itself after a check: the head looks names up on its own."""
        y = self._values(y)
        if gaps:
            encoded, known = labels_and_known(encode_with_gaps(self._head, y))
            encoded = encoded if known is None else encoded[known[:, 0]]
        else:
            encoded = self._head.encode_labels(y)
        if isinstance(self._like, NumberTarget):
            self._like.check_range(encoded.numpy())
        return y

    def _values(self, y: Any) -> Any:
        # As scikit-learn does where there is one number or class in a row.
        is_single = self._head._label_dimension == 1 and np.ndim(y) == 2
        y = column_or_1d(y, warn=True) if is_single else y
        if isinstance(y, pd.Series) and y.dtype == object:
            y = y.to_numpy()
        return without_na(y, None) if isinstance(y, np.ndarray) else y

    def head(
        self, weight_column: str | None, name: str | None = None
    ) -> SingleTaskHead:
        """Return the head, with the weights of this fit."""
        if weight_column is not None and self._head.weight_column is not None:
            raise ValueError(
                f"{self.owner} got 'sample_weight', but its {self._head!r} reads "
                "weights from a column. Give weights in one way only."
            )
        return self._head.adapted(name=name, weight_column=weight_column)

    def answer(self, predictions: Predictions) -> NDArray[Any]:
        """Return classes, indicators or numbers."""
        return self._like.answer(predictions)

    def score(
        self, predictions: Predictions, labels: Any, weight: NDArray[Any] | None
    ) -> float:
        """Return accuracy or R²; a probability as label counts as the class it is for."""
        if isinstance(labels, np.ndarray | pd.Series):
            labels = whole_ids(np.asarray(labels), self._head)
        encoded = self._head.encode_labels(labels).numpy()
        if isinstance(self._like, ClassTarget):
            encoded = encoded[:, 0].round().astype(int)
        return self._like.score(predictions, encoded, weight)

    @property
    def loss_keys(self) -> Sequence[Any]:
        """The prediction that is the logits: that of numbers, if they have no link."""
        head = self._head
        has_link = not isinstance(head, RegressionHead) or head.inverse_link_fn
        return (PredictionKeys.LOGITS if has_link else PredictionKeys.PREDICTIONS,)

    def scale(self, labels: Any, weight: NDArray[Any] | None) -> TargetScale | None:
        """Return the scale if the head has a loss for which it is known."""
        if not isinstance(self._like, NumberTarget) or _is_custom(self._head):
            return None
        return self._like.scale(self._head.encode_labels(labels).numpy(), weight)


def _target_like(owner: str, head: SingleTaskHead) -> Target:
    """Return the target whose answers the predictions of a head make."""
    like: ClassTarget | LabelsTarget
    if isinstance(head, SingleLabelHead):
        like = ClassTarget(owner)
    elif isinstance(head, MultiLabelHead):
        like = LabelsTarget(owner)
    elif isinstance(head, PoissonRegressionHead):
        return NumberTarget(owner, "poisson")
    elif isinstance(head, LogisticRegressionHead):
        return NumberTarget(owner, "logistic")
    else:
        return NumberTarget(owner)
    names = head.label_vocabulary
    like.classes = np.arange(head.n_classes) if names is None else np.asarray(names)
    return like


def _is_custom(head: SingleTaskHead) -> bool:
    """Tell whether a head of numbers has a loss or a link of the user's."""
    known = (PoissonRegressionHead, LogisticRegressionHead)
    is_own = not isinstance(head, RegressionHead) or head.loss_fn is not None
    has_link = getattr(head, "inverse_link_fn", None) is not None
    return is_own or (has_link and not isinstance(head, known))
