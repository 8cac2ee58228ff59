# SPDX-License-Identifier: Apache-2.0
"""`Target`: the contract between ``y`` and a head."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch

from skest.adapters.target_scale import TargetScale
from skest.heads.base import Head
from skest.heads.multi_head import whole_ids
from skest.keys import MetricKeys, PredictionKeys

#: Predictions of a head by key.
Predictions = Mapping[Any, np.ndarray]

_WEIGHT = "weight"


class Scored(NamedTuple):
    """Predictions of a head for some rows, and what they are compared with.

    Attributes
    ----------
    predictions : dict of ndarray
        By key.
    labels : object
        Encoded labels.
    weight : ndarray of shape (n_rows,), or None
        Weights of the rows.
    features : dict of Tensor, default=None
        What the head reads beside the logits, encoded.
    """

    predictions: Predictions
    labels: Any
    weight: np.ndarray | None
    features: Mapping[str, Any] | None = None


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

    #: A score of fewer rows has no meaning.
    fewest_scored: int = 1

    answer_keys: Sequence[Any]
    proba_keys: Sequence[Any] = ()

    def __init__(self, owner: str) -> None:
        self.owner = owner

    @abstractmethod
    def learn(self, y: Any, *, gaps: bool = False, classes: Any = None) -> None:
        """Learn what kind of values `y` has: its classes, or its width.

        Parameters
        ----------
        y : array-like
            The values of the training data.
        gaps : bool, default=False
            Whether labels may be missing.
        classes : array-like, default=None
            All classes, if `y` may lack some.
        """

    def check_classes(self, classes: Any) -> None:
        """Refuse classes that are not those learned; None is fine."""
        if classes is not None:
            raise ValueError(
                f"'classes' is for targets with one class per row; this one of "
                f"{self.owner} has none. Leave it out."
            )

    @abstractmethod
    def encode(self, y: Any, *, gaps: bool = False, strict: bool = True) -> Any:
        """Check `y` and return labels for the head, rows along the first dimension.

        Unless `strict`, a class that was not learned becomes a label that no prediction
        equals.
        """

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
    def score(self, rows: Scored) -> float:
        """Return what ``score`` says, for labels that are all there."""

    @property
    def validation_keys(self) -> Sequence[Any]:
        """Predictions of the head that `validation_score` takes."""
        return self.loss_keys

    def validation_score(self, rows: Scored, scale: TargetScale | None = None) -> float:
        """Return the score that early stopping goes by: minus the mean loss.

        Of classes the best accuracy may be that of the majority. `scale` is that of
        training.
        """
        return -self.mean_loss(rows)

    def validation_loss(self, score: float) -> float:
        """Return a validation score in the unit of the training loss."""
        return -score

    def check_validation(self, labels: Any) -> None:
        """Refuse labels that `validation_score` can do nothing with."""
        if not self.known(labels).any():
            raise ValueError(f"A score of {self.owner} needs labels; all are missing.")

    @property
    def loss_keys(self) -> Sequence[Any]:
        """The prediction that `mean_loss` takes: the logits."""
        return (PredictionKeys.LOGITS,)

    def mean_loss(
        self, rows: Scored, scale: TargetScale | None = None, name: str | None = None
    ) -> float:
        """Return the weighted mean of the losses; with a scale as training sees them."""
        predictions, labels, weight, features = rows
        # A head of its own: that of the fit reads weights only if the fit had some.
        head: Any = self.head(None if weight is None else _WEIGHT, name)
        beside = dict(features or {})
        if weight is not None:
            beside[head.weight_key] = torch.from_numpy(np.asarray(weight))
        # By the head's own metric: the loss then is that of training, whichever it is.
        metrics = head.metrics()
        (key,) = self.loss_keys
        logits = predictions[key]
        if scale is not None:
            labels, logits = self.scaled(labels, scale), scale.scaled_logits(logits)
        if isinstance(labels, np.ndarray | pd.Series):
            # Gaps in other rows have made floats of class ids.
            labels = whole_ids(np.asarray(labels), head)
        head.update_metrics(metrics, labels, torch.from_numpy(logits), beside)
        # Behind a slash it has the name of the head, if there is one.
        (name,) = (n for n in metrics if n.startswith(MetricKeys.AVERAGE_LOSS))
        return float(metrics[name].compute())

    def calibration(self, rows: Scored) -> TargetScale | None:
        """Return the scale of logits that held-out rows ask for, if any."""
        return None

    def scale(self, labels: Any, weight: np.ndarray | None) -> TargetScale | None:
        """Return the scale of the labels that the network need not learn, if any."""
        return None

    def widened(self, scale: TargetScale, labels: Any) -> TargetScale:
        """Return a scale whose range of predictions holds these labels, too."""
        return scale

    def scaled(self, labels: Any, scale: TargetScale) -> Any:
        """Return encoded labels as the network learns them."""
        return scale.scaled(labels)

    def known(self, labels: Any) -> np.ndarray:
        """Return which rows have a label, shape (n_rows,)."""
        # A row of several numbers lacks all of them or none: `encode` has seen to that.
        missing = np.asarray(pd.isna(labels))
        return np.logical_not(missing if missing.ndim == 1 else missing.all(axis=1))
