# SPDX-License-Identifier: Apache-2.0
"""`LabelsTarget`: any number of classes per row, as indicators."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import issparse

from skest.adapters.targets.base import Predictions, Target
from skest.heads.multi_label import MultiLabelHead
from skest.keys import PredictionKeys

__all__ = ["LabelsTarget", "as_matrix", "without_na"]


class LabelsTarget(Target):
    """A matrix of zeros and ones with a column for each label, dense or sparse.

    Parameters
    ----------
    owner : str
        The estimator, as messages call it.

    Attributes
    ----------
    classes : ndarray of shape (n_labels,)
        Numbers of the columns.
    """

    answer_keys = (PredictionKeys.LOGITS,)
    proba_keys = (PredictionKeys.PROBABILITIES,)

    def learn(self, y: Any, *, gaps: bool = False, classes: Any = None) -> None:
        """Learn the number of labels."""
        self.check_classes(classes)
        n_labels = _matrix(y, self.owner).shape[1]
        if n_labels < 2:
            raise ValueError(
                f"Several labels per row need at least 2 columns of y; {self.owner} got "
                f"{n_labels}. Pass one column as a target of two classes."
            )
        self.classes = np.arange(n_labels)

    def encode(
        self, y: Any, *, gaps: bool = False, strict: bool = True
    ) -> NDArray[Any]:
        """Return indicators of shape (n_rows, n_labels); missing rows are NaN."""
        y = _matrix(y, self.owner)
        if y.shape[1] != len(self.classes):
            raise ValueError(
                f"y must have {len(self.classes)} columns, one for each label as in fit; "
                f"{self.owner} got {y.shape[1]}."
            )
        missing = np.isnan(y).all(axis=1) if gaps else np.zeros(len(y), dtype=bool)
        wrong = ~np.isin(y, (0, 1)) & ~missing[:, None]
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise ValueError(
                f"Indicators of labels must be 0 or 1; {self.owner} got "
                f"{y[row, column]} in row {row}, column {column} of y."
            )
        return y if missing.any() else y.astype(np.uint8)

    def head(
        self, weight_column: str | None, name: str | None = None
    ) -> MultiLabelHead:
        """Return the head for as many labels."""
        n_labels = len(self.classes)
        return MultiLabelHead(n_labels, weight_column=weight_column, name=name)

    def answer(self, predictions: Predictions) -> NDArray[Any]:
        """Return the indicators of shape (n_rows, n_labels)."""
        # The probability exceeds one half.
        return (predictions[PredictionKeys.LOGITS] > 0).astype(int)

    def score(
        self, predictions: Predictions, labels: Any, weight: NDArray[Any] | None
    ) -> float:
        """Return the share of rows of which all labels are right."""
        right = np.equal(labels, self.answer(predictions)).all(axis=1)
        return float(np.average(right, weights=weight))


def as_matrix(y: Any) -> NDArray[Any]:
    """Return a matrix of labels, a frame or a sparse matrix as an array; gaps are NaN."""
    if issparse(y):
        return y.toarray()
    if isinstance(y, pd.DataFrame):
        try:
            return y.to_numpy(dtype=np.float64, na_value=np.nan)
        except (TypeError, ValueError):  # its values are refused where they are used
            y = y.to_numpy()
    return without_na(np.asarray(y), np.nan)


def without_na(values: NDArray[Any], gap: Any) -> NDArray[Any]:
    """Return objects with `gap` in place of pandas.NA and its like."""
    if values.dtype.kind != "O":
        return values
    return np.where(np.asarray(pd.isna(values)), gap, values)


def _matrix(y: Any, owner: str) -> NDArray[Any]:
    y = as_matrix(y)
    if y.ndim != 2:
        raise ValueError(
            f"Several labels per row are a matrix of zeros and ones; {owner} got y of "
            f"shape {y.shape}."
        )
    try:
        return y.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"Several labels per row are a matrix of zeros and ones; {owner} got other "
            f"values in y ({error}). Use sklearn.preprocessing.MultiLabelBinarizer."
        ) from error
