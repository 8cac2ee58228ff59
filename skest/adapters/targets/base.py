# SPDX-License-Identifier: Apache-2.0
"""`Target`: the contract between ``y`` and a head; `TargetScale`: its scale."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from pandas.api.types import infer_dtype
from scipy.special import logit
from torch import Tensor, nn

from skest.core.checks import warn
from skest.engine.model import pure_model_fn
from skest.feature_columns.cells import TIMES_AMONG_OBJECTS
from skest.heads.base import Head
from skest.heads.multi_head import whole_ids
from skest.keys import MetricKeys, ModeKeys, PredictionKeys
from skest.spec import EstimatorSpec

_CENTER, _SCALE, _SHIFT = "target_center", "target_scale", "target_shift"
_LOW, _HIGH = "target_low", "target_high"
# Of the center: float32 leaves a tenth of a deviation then.
_MOST_DEVIATIONS = 1e6


class TargetScale(NamedTuple):
    """Center and scale of targets, one for each logit.

    The first steps of a network would not reach numbers far from zero, and learning rates
    suit no other scale than one. So a network whose output is the target itself learns
    ``(y - center) / scale``; one behind a link (Poisson, logistic) starts at the mean.

    Attributes
    ----------
    center, scale : ndarray of shape (n_logits,)
        Added to and multiplied with the logits.
    is_linked : ndarray of bool, shape (n_logits,)
        Whether a logit passes a link; it is only shifted then, in training too.
    low, high : ndarray of shape (n_logits,)
        Predictions stay within them: the range of the targets, infinite for a link.
    """

    center: np.ndarray
    scale: np.ndarray
    is_linked: np.ndarray
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def of(cls, y: np.ndarray, weight: np.ndarray | None, loss: str) -> "TargetScale":
        """Learn the scale of targets of shape (n_samples,) or (n_samples, n_outputs)."""
        y = y.reshape(len(y), -1)
        mean = np.average(y, axis=0, weights=weight)
        ones, linked = np.ones_like(mean), np.full(len(mean), True)
        if loss == "poisson":
            tiny = np.finfo(np.float32).tiny
            # The logit is the logarithm of the mean (the link of the head), so that a
            # network of zeros predicts the mean; a mean of 0 has no logarithm.
            return cls._unbounded(np.log(np.maximum(mean, tiny)), ones, linked)
        if loss == "logistic":
            # As above, with logits that are finite for a mean of 0 or 1.
            return cls._unbounded(logit(np.clip(mean, 1e-6, 1 - 1e-6)), ones, linked)
        # Two passes: E[y²] - E[y]² loses all digits of numbers far from zero, such as
        # years.
        variance = np.average((y - mean) ** 2, axis=0, weights=weight)
        # Equal numbers whose mean was rounded: a division would make noise of that.
        constant = variance <= np.finfo(np.float64).eps * mean**2
        deviation = np.where(constant, 1.0, np.sqrt(variance))
        # On bike sharing, LinearRegressor has an R² of .40 so, and -.28 without.
        return cls(mean, deviation, ~linked, y.min(axis=0), y.max(axis=0))

    @classmethod
    def none(cls, n_logits: int) -> "TargetScale":
        """Return the scale of logits that stay as they are."""
        zeros = np.zeros(n_logits)
        return cls._unbounded(zeros, zeros + 1, np.full(n_logits, True))

    @classmethod
    def _unbounded(
        cls, center: np.ndarray, scale: np.ndarray, is_linked: np.ndarray
    ) -> "TargetScale":
        infinite = np.full(len(center), np.inf)
        return cls(center, scale, is_linked, -infinite, infinite)

    def warn_of_lost_digits(self) -> None:
        """Warn if float32, which has 7 digits, can't tell the targets apart."""
        is_far = np.abs(self.center) > _MOST_DEVIATIONS * self.scale
        if (is_far & (self.low < self.high) & np.isfinite(self.low)).any():
            warn(
                f"y is {np.abs(self.center).max():.3g} in the mean, but varies by "
                f"{self.scale.min():.3g} only, and predictions are float32, with 7 digits. "
                "Subtract the mean, e.g. by TransformedTargetRegressor(model, "
                "transformer=StandardScaler())."
            )

    def unbounded(self) -> "TargetScale":
        """Return this scale without a range for predictions."""
        return self._unbounded(self.center, self.scale, self.is_linked)

    def half(self) -> "TargetScale":
        """Return the scale that, one after the other, two times does what this does.

        It is one of logits that are not shifted.
        """
        return self._replace(scale=np.sqrt(self.scale))

    def widened(self, y: np.ndarray) -> "TargetScale":
        """Return this scale with a range that holds other targets, too."""
        y = y.reshape(len(y), -1)
        low = np.where(self.is_linked, self.low, np.minimum(self.low, y.min(axis=0)))
        high = np.where(self.is_linked, self.high, np.maximum(self.high, y.max(axis=0)))
        return self._replace(low=low, high=high)

    @property
    def is_bounded(self) -> bool:
        """Whether there is a range for some prediction."""
        return bool(np.isfinite(self.low).any())

    def after(self, first: "TargetScale | None") -> "TargetScale":
        """Return this scale of logits on top of another, such as a source's."""
        # Logits are divided by a temperature where they are multiplied with a scale
        # anyway: an export, a pickle and `evaluate` know no temperature of its own.
        if first is None:
            return self
        return first._replace(
            center=first.center + self.center, scale=first.scale * self.scale
        )

    @classmethod
    def joined(cls, scales: Sequence["TargetScale"]) -> "TargetScale":
        """Return the scale of the logits of several heads, side by side."""
        return cls(*(np.concatenate(parts) for parts in zip(*scales, strict=True)))

    def split(self, sizes: Sequence[int]) -> list["TargetScale"]:
        """Undo `joined`."""
        ends = np.cumsum(sizes)[:-1]
        parts = zip(*(np.split(values, ends) for values in self), strict=True)
        return [TargetScale(*part) for part in parts]

    def scaled(self, y: Any) -> Any:
        """Return targets of shape (n,) or (n, n_logits) as the network learns them."""
        if self.is_linked.all():
            return y
        return (np.asarray(y, dtype=np.float64) - self.center) / self.scale

    def scaled_logits(self, logits: np.ndarray) -> np.ndarray:
        """Return logits of `y` as those that the network learns."""
        center = np.where(self.is_linked, 0.0, self.center).astype(logits.dtype)
        return (logits - center) / self.scale.astype(logits.dtype)


@pure_model_fn
def scaled_target_model_fn(
    features: Any,
    labels: Any,
    mode: str,
    *,
    model_fn: Callable[..., EstimatorSpec],
    scale: TargetScale,
    scaled_labels: Callable[[Any], Any],
) -> EstimatorSpec:
    """Let the network of `model_fn` learn scaled targets and otherwise speak of ``y``."""
    spec = model_fn(features, labels, mode)
    if spec.network is not None:
        _attach(scale, spec.network)
    encode = spec.encode_labels
    # Evaluation is in the units of y: there the network adds the scale to its logits
    # itself.
    if mode != ModeKeys.TRAIN or encode is None:
        return spec
    return replace(spec, encode_labels=lambda y: encode(scaled_labels(y)))


def _attach(scale: TargetScale, network: nn.Module) -> None:
    """Let the logits of `network` be those of `y`, in training those of scaled `y`."""
    dtype = next(network.parameters()).dtype
    shift = np.where(scale.is_linked, scale.center, 0.0)
    for name, values in (
        (_CENTER, scale.center),
        (_SCALE, scale.scale),
        (_SHIFT, shift),
        (_LOW, scale.low),
        (_HIGH, scale.high),
    ):
        # Buffers move to the device with the network; they are no variables.
        network.register_buffer(
            name, torch.tensor(values, dtype=dtype), persistent=False
        )
    # Hooks and no modules: names of variables stay those of tf.estimator's networks.
    network.register_forward_hook(_shift if shift.any() else _keep_in_training)
    if scale.is_bounded:
        network.register_forward_hook(_keep_within)


def learned_logits(network: nn.Module, logits: Tensor) -> Tensor:
    """Return logits of evaluation as those that the loss of training is for."""
    buffers = dict(network.named_buffers(recurse=False))
    if _SCALE not in buffers:
        return logits
    return (logits - buffers[_CENTER]) / buffers[_SCALE] + buffers[_SHIFT]


def _shift(network: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
    if network.training:
        return logits + network.get_buffer(_SHIFT)
    return logits * network.get_buffer(_SCALE) + network.get_buffer(_CENTER)


def _keep_in_training(network: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
    return logits if network.training else _shift(network, inputs, logits)


def _keep_within(network: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
    if network.training:
        return logits
    return torch.clamp(logits, network.get_buffer(_LOW), network.get_buffer(_HIGH))


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

    @property
    def is_to_balance(self) -> bool:
        """Whether the mean of the predictions shall be that of the labels."""
        return False

    def balance(self, rows: Scored) -> TargetScale:
        """Return the shift of logits after which predictions have the labels' mean."""
        raise NotImplementedError

    def scale(self, labels: Any, weight: np.ndarray | None) -> TargetScale | None:
        """Return the scale of the labels that the network need not learn, if any."""
        return None

    def best_constant(
        self, labels: Any, weight: np.ndarray | None
    ) -> TargetScale | None:
        """Return the scale whose center is the best answer that is one for all rows."""
        return self.scale(labels, weight)

    def tol_factor(self, labels: Any, weight: np.ndarray | None) -> float:
        """Return by what to multiply `tol`, which is for losses of about one."""
        return 1.0

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


def refuse_times(y: Any, what: str) -> None:
    """Refuse dates and durations; `what` says what they are instead, and what helps."""
    y = np.asarray(y)
    found = infer_dtype(y) if y.dtype.kind == "O" else str(y.dtype)
    if y.dtype.kind in "mM" or found in TIMES_AMONG_OBJECTS:
        raise ValueError(f"y holds dates or durations ({found}), which are {what}.")
