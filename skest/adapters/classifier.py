# SPDX-License-Identifier: Apache-2.0
"""`SkestClassifier`: classification with ``X, y``."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import assert_all_finite, compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from skest._compat import StrOptions
from skest.adapters.base import SkestEstimator
from skest.heads.binary_class import BinaryClassHead
from skest.heads.multi_class import MultiClassHead
from skest.keys import PredictionKeys

__all__ = ["SkestClassifier"]


class SkestClassifier(ClassifierMixin, SkestEstimator):
    """What the classifiers of skest have in common; not for direct use."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **SkestEstimator._parameter_constraints,
        "class_weight": [StrOptions({"balanced"}), dict, None],
    }
    _prediction_key = PredictionKeys.LOGITS

    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> Any:
        """Train one epoch, going on from the present state.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), DataFrame or dict of arrays
            Training data.
        y : array-like of shape (n_samples,)
            Class labels.
        classes : array-like of shape (n_classes,), default=None
            All classes; required in the first call unless `y` has them all.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        object
            This estimator.
        """
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all rows at once, which partial_fit does "
                "not have. Compute the weights with "
                "sklearn.utils.class_weight.compute_class_weight and pass a dictionary."
            )
        return self._partial_fit(X, y, sample_weight, classes=classes)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row.

        Parameters
        ----------
        X : array-like, DataFrame or dict of arrays
            Data as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples,)
            Elements of `classes_`; at a tie the first one.
        """
        ids = _class_ids(self._predict(X, PredictionKeys.LOGITS))
        return self.classes_[ids]

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probabilities of the classes.

        Parameters
        ----------
        X : array-like, DataFrame or dict of arrays
            Data as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns in the order of `classes_`.
        """
        return self._predict(X, PredictionKeys.PROBABILITIES)

    def predict_log_proba(self, X: Any) -> NDArray[Any]:
        """Return the logarithms of the probabilities, computed from the logits.

        Parameters
        ----------
        X : array-like, DataFrame or dict of arrays
            Data as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns in the order of `classes_`.
        """
        logits = self._predict(X, PredictionKeys.LOGITS)
        if logits.shape[1] == 1:
            logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
        logits = logits - logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return the logits.

        Parameters
        ----------
        X : array-like, DataFrame or dict of arrays
            Data as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_classes)
            One column for two classes: positive values mean ``classes_[1]``.
        """
        logits = self._predict(X, PredictionKeys.LOGITS)
        return logits[:, 0] if logits.shape[1] == 1 else logits

    def _check_target(
        self, y: Any, *, reset: bool, classes: Any = None
    ) -> NDArray[Any]:
        y = column_or_1d(y, warn=True)
        _refuse_missing(y)
        check_classification_targets(y)
        if reset:
            self.classes_ = np.unique(y if classes is None else np.asarray(classes))
        elif classes is not None and not np.array_equal(
            np.unique(np.asarray(classes)), self.classes_
        ):
            raise ValueError(
                f"classes={np.unique(classes).tolist()} is not the same as in the first "
                f"call, where it was {self.classes_.tolist()}."
            )
        codes, labels = pd.factorize(y)
        id_of = {label: i for i, label in enumerate(self.classes_.tolist())}
        ids = np.array([id_of.get(label, -1) for label in labels.tolist()])
        unknown = [label for label in labels.tolist() if label not in id_of]
        if unknown:
            raise ValueError(
                f"y contains labels that are not among the classes: {unknown}; "
                f"the classes are {self.classes_.tolist()}. Name all classes in the "
                "first call (classes=...), or fit anew."
            )
        return ids[codes]

    def _balanced_weight(
        self, weight: NDArray[Any] | None, y: NDArray[Any]
    ) -> NDArray[Any] | None:
        if self.class_weight is None:
            return weight
        present = np.unique(y)  # a rare class may be held out as a whole
        given = self.class_weight
        if isinstance(given, dict):
            self._check_class_weight(given)
            given = {k: v for k, v in given.items() if k in self.classes_[present]}
        by_class = np.ones(len(self.classes_))
        by_class[present] = compute_class_weight(
            given,
            classes=self.classes_[present],
            y=self.classes_[y],
            sample_weight=weight,
        )
        return by_class[y] if weight is None else weight * by_class[y]

    def _check_class_weight(self, class_weight: dict[Any, float]) -> None:
        unknown = [label for label in class_weight if label not in self.classes_]
        if unknown:
            raise ValueError(
                f"The classes, {unknown}, of 'class_weight' are not in y; the classes are "
                f"{self.classes_.tolist()}."
            )

    def _check_enough(self, y: NDArray[Any]) -> None:
        if len(self.classes_) < 2:
            raise ValueError(
                f"{type(self).__name__} needs samples of at least 2 classes in the "
                f"data, but the data contains only one class: {self.classes_[0]}."
            )

    def _strata(self, y: NDArray[Any]) -> NDArray[Any] | None:
        """Return the classes if all of them fit into both parts."""
        counts = np.bincount(y)
        counts = counts[counts > 0]
        n_held_out = math.ceil(self.validation_fraction * len(y))
        smaller = min(n_held_out, len(y) - n_held_out)
        return y if counts.min() > 1 and len(counts) <= smaller else None

    def _make_head(self, weight_column: str | None) -> Any:
        if len(self.classes_) == 2:
            return BinaryClassHead(weight_column=weight_column)
        return MultiClassHead(len(self.classes_), weight_column=weight_column)

    def _score(
        self,
        predictions: Mapping[str, NDArray[Any]],
        y: NDArray[Any],
        sample_weight: NDArray[Any] | None,
    ) -> float:
        ids = _class_ids(predictions[PredictionKeys.LOGITS])
        return float(accuracy_score(y, ids, sample_weight=sample_weight))


def _class_ids(logits: NDArray[Any]) -> NDArray[Any]:
    if logits.shape[1] == 1:
        return (logits[:, 0] > 0).astype(int)
    return logits.argmax(axis=1)


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
