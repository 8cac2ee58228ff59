# SPDX-License-Identifier: Apache-2.0
"""`Target`: the contract between ``y`` and a head."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from skest.adapters.target_scale import TargetScale
from skest.heads.base import Head

__all__ = ["Predictions", "Target"]

#: Predictions of a head by key.
Predictions = Mapping[Any, NDArray[Any]]


class Target(ABC):
    """One kind of ``y``: how it becomes labels, and predictions an answer.

    A target is made for a fit and learns from its ``y`` (`learn`); afterwards it only
    answers. Labels that may be missing (`gaps`) are NaN or None.

    Parameters
    ----------
    owner : str
        The estimator, as messages call it.

    Attributes
    ----------
    answer_keys, proba_keys : sequence of keys
        Predictions of the head that `answer` and `score`, and `probabilities` take;
        there may be no probabilities.
    """

    answer_keys: Sequence[Any]
    proba_keys: Sequence[Any] = ()

    def __init__(self, owner: str) -> None:
        self.owner = owner

    @abstractmethod
    def learn(self, y: Any, *, gaps: bool = False) -> None:
        """Learn what kind of values `y` has: its classes, or its width."""

    @abstractmethod
    def encode(self, y: Any, *, gaps: bool = False) -> Any:
        """Check `y` and return labels for the head, rows along the first dimension."""

    @abstractmethod
    def head(self, weight_column: str | None, name: str | None = None) -> Head:
        """Return a head for these labels."""

    @abstractmethod
    def answer(self, predictions: Predictions) -> Any:
        """Return what ``predict`` says."""

    def probabilities(self, predictions: Predictions) -> Any:
        """Return what ``predict_proba`` says; None if there is nothing."""
        return predictions[self.proba_keys[0]] if self.proba_keys else None

    @abstractmethod
    def score(
        self, predictions: Predictions, labels: Any, weight: NDArray[Any] | None
    ) -> float:
        """Return what ``score`` says, for encoded labels that are all there."""

    @property
    def validation_keys(self) -> Sequence[Any]:
        """Predictions of the head that `validation_score` takes."""
        return self.answer_keys

    def validation_score(
        self, predictions: Predictions, labels: Any, weight: NDArray[Any] | None
    ) -> float:
        """Return the score that early stopping goes by."""
        return self.score(predictions, labels, weight)

    def scale(self, labels: Any, weight: NDArray[Any] | None) -> TargetScale | None:
        """Return the scale of the labels that the network need not learn, if any."""
        return None

    def scaled(self, labels: Any, scale: TargetScale) -> Any:
        """Return encoded labels as the network learns them."""
        return scale.scaled(labels)

    def known(self, labels: Any) -> NDArray[np.bool_]:
        """Return which rows have a label, shape (n_rows,)."""
        missing = np.asarray(pd.isna(labels))
        return np.logical_not(missing if missing.ndim == 1 else missing.all(axis=1))
