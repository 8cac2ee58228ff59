# SPDX-License-Identifier: Apache-2.0
"""`ClassTarget`: one class per row."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas.api.types import is_extension_array_dtype
from sklearn.metrics import accuracy_score
from sklearn.utils import assert_all_finite
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from skest.adapters.target_scale import TargetScale
from skest.adapters.targets.base import Predictions, Target
from skest.adapters.temperature import temperature_of
from skest.heads.binary_class import BinaryClassHead
from skest.heads.multi_class import MultiClassHead
from skest.heads.single_label import SingleLabelHead
from skest.keys import PredictionKeys

__all__ = ["ClassTarget"]

# Position of a class that was not learned, which is never predicted.
_UNKNOWN = -2


class ClassTarget(Target):
    """A column of class labels: numbers, strings or booleans.

    Labels are the positions of the classes in `classes`.

    Parameters
    ----------
    owner : str
        The estimator, as messages call it.

    Attributes
    ----------
    classes : ndarray of shape (n_classes,)
        The classes seen in fit, sorted.
    """

    answer_keys = (PredictionKeys.CLASS_IDS,)
    proba_keys = (PredictionKeys.PROBABILITIES,)

    def learn(self, y: Any, *, gaps: bool = False, classes: Any = None) -> None:
        """Learn the classes; `classes` are all of them if `y` may lack some."""
        _, known = self._column(y, gaps)
        check_classification_targets(known)
        self.classes = np.unique(known if classes is None else np.asarray(classes))
        if len(self.classes) < 2:
            raise ValueError(
                f"{self.owner} needs samples of at least 2 classes in the data, but the "
                f"data contains only one class: {self.classes[0]}. Where the first part "
                "of the data lacks classes, name all with 'classes' (partial_fit, train)."
            )

    def check_classes(self, classes: Any) -> None:
        """Refuse classes that are not those learned; None is fine."""
        if classes is None:
            return
        given = np.unique(np.asarray(classes))
        if not np.array_equal(given, self.classes):
            raise ValueError(
                f"classes={given.tolist()} is not the same as in the first call, where "
                f"it was {self.classes.tolist()}."
            )

    def encode(
        self, y: Any, *, gaps: bool = False, strict: bool = True
    ) -> NDArray[Any]:
        """Return the positions of the classes; with gaps as floats, NaN where missing."""
        column, known = self._column(y, gaps)
        if column.dtype.kind == "O":  # which may hold what cannot be looked up
            check_classification_targets(known)
        codes, labels = pd.factorize(column)
        id_of = {label: i for i, label in enumerate(self.classes.tolist())}
        ids = np.array([id_of.get(label, _UNKNOWN) for label in labels.tolist()], int)
        unknown = [label for label in labels.tolist() if label not in id_of]
        if unknown:  # others are as those that were learned, and checked then
            check_classification_targets(known)
        if unknown and strict:
            raise ValueError(
                f"y contains labels that are not among the classes: {unknown}; "
                f"the classes are {self.classes.tolist()}. Name all classes in the "
                "first call (classes=...), or fit anew."
            )
        if (codes < 0).any():
            return np.append(ids, np.nan)[codes]
        return ids[codes]

    def head(
        self, weight_column: str | None, name: str | None = None
    ) -> SingleLabelHead:
        """Return the head for two, or for more classes."""
        if len(self.classes) == 2:
            return BinaryClassHead(weight_column=weight_column, name=name)
        return MultiClassHead(len(self.classes), weight_column=weight_column, name=name)

    def answer(self, predictions: Predictions) -> NDArray[Any]:
        """Return the classes."""
        return self.classes[predictions[PredictionKeys.CLASS_IDS][:, 0]]

    def score(
        self, predictions: Predictions, labels: Any, weight: NDArray[Any] | None
    ) -> float:
        """Return the accuracy."""
        ids = predictions[PredictionKeys.CLASS_IDS][:, 0]
        return float(accuracy_score(labels, ids, sample_weight=weight))

    def calibration(
        self, predictions: Predictions, labels: Any, weight: NDArray[Any] | None
    ) -> TargetScale | None:
        """Return the scale that temperature scaling gives."""
        logits = predictions[PredictionKeys.LOGITS]
        temperature = temperature_of(logits, labels, weight)
        if temperature == 1:
            return None
        none = TargetScale.none(logits.shape[1])
        return none._replace(scale=none.scale / temperature)

    def _column(self, y: Any, gaps: bool) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the labels, and those that are there in a type of their own."""
        if hasattr(y, "dtype") and is_extension_array_dtype(y.dtype):
            values = pd.Series(y.to_numpy(dtype=object), dtype=object)
            y = values.infer_objects().to_numpy()
        y = column_or_1d(y, warn=True)
        known = y
        if gaps:
            known = y[~pd.isna(y)]
            if known.dtype.kind == "O":  # gaps hide the type of the others
                known = pd.Series(known).infer_objects().to_numpy()
        _refuse_missing(known)
        _refuse_dates(known)
        return y, known


def _refuse_dates(y: NDArray[Any]) -> None:
    if y.dtype.kind in "mM":
        raise ValueError(
            f"y holds dates or durations (dtype {y.dtype}), which are no classes. Make "
            "numbers or categories of them."
        )


def _refuse_missing(y: NDArray[Any]) -> None:
    """Refuse NaN, None and infinity, which np.unique would take for classes."""
    if y.dtype.kind == "f":
        assert_all_finite(y, input_name="y")
    elif y.dtype.kind == "O":
        n_missing = int(pd.isna(y).sum())
        if n_missing:
            raise ValueError(
                f"Input y contains NaN: {n_missing} label(s) are missing. Drop these rows."
            )
