# SPDX-License-Identifier: Apache-2.0
"""`SkestClassifier` and `SkestRegressor`: predictions of one target from ``X, y``."""

import math
from numbers import Real
from typing import Any, Self

import numpy as np
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import assert_all_finite, compute_class_weight
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from skest.adapters.base import has_partial_fit
from skest.adapters.features import Rows
from skest.adapters.parameters import parameter, with_parameters
from skest.adapters.stream import StreamTrained
from skest.adapters.targets.classes import ClassTarget, LabelsTarget, as_matrix
from skest.adapters.targets.numbers import LOSSES, NumberTarget
from skest.core.checks import check_not_negative
from skest.core.sklearn_compat import Interval, StrOptions
from skest.feature_columns.sources import is_frame
from skest.keys import PredictionKeys


@with_parameters
class ClassParameters:
    """What is to be said about classes.

    Parameters
    ----------
    class_weight : dict, "balanced" or None
        Weights of the classes, multiplied with the sample weights, also of rows that are
        held out (not of `X_val`, whose weights are `sample_weight_val`). "balanced"
        makes all classes weigh the same; `predict_proba` speaks of such classes then.
        Columns learn without class weights; with sample weights that follow from the
        label, what is rare in a column would tell it.
    """

    class_weight: Any = parameter(
        default=None, values=[StrOptions({"balanced"}), dict, None]
    )


class SkestClassifier(ClassParameters, ClassifierMixin, StreamTrained):
    """What the classifiers of skest have in common; not for direct use."""

    _target: ClassTarget | LabelsTarget

    @available_if(has_partial_fit)
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> Self:
        """Train one epoch, going on from the present state.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), DataFrame or dict of arrays
            Training data.
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
            Class labels, or indicators of several labels.
        classes : array-like of shape (n_classes,), default=None
            All classes; required in the first call unless `y` has them all.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        object
            This estimator.
        """
        return self._partial_fit(X, y, sample_weight, classes)

    def _check_partial_fit(self) -> None:
        super()._check_partial_fit()
        if self.class_weight == "balanced":
            raise ValueError(
                "class_weight='balanced' needs all rows at once, which partial_fit and "
                "train do not have. Compute the weights with "
                "sklearn.utils.class_weight.compute_class_weight and pass a dictionary."
            )

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes.

        Parameters
        ----------
        X : array-like, DataFrame or dict of arrays
            Data as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes)
            Columns in the order of `classes_`. With several labels per row, the
            probability of each.
        """
        return self._predict(X, [PredictionKeys.PROBABILITIES])[
            PredictionKeys.PROBABILITIES
        ]

    def predict_log_proba(self, X: Any) -> np.ndarray:
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
        logits = self._logits(X)
        if isinstance(self._target, LabelsTarget):
            # log sigmoid(z), exact also where the sigmoid is rounded to 0.
            return -np.logaddexp(0, -logits)
        # The softmax of 0 and z has the sigmoid of z as its second part.
        if logits.shape[1] == 1:
            logits = np.concatenate([np.zeros_like(logits), logits], axis=1)
        return log_softmax(logits, axis=1)

    def decision_function(self, X: Any) -> np.ndarray:
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
        logits = self._logits(X)
        return logits[:, 0] if logits.shape[1] == 1 else logits

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; of several labels the share of rows without a wrong one.

        Parameters
        ----------
        X : array-like, DataFrame or dict of arrays
            Data as in `fit`.
        y : array-like of shape (n_samples,) or (n_samples, n_labels)
            True classes, or indicators of labels.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        float
        """
        check_is_fitted(self)
        if isinstance(self._target, LabelsTarget):
            # accuracy_score compares matrices of one kind; `y` may be a frame, or
            # sparse.
            y = self._target.encode(y)
        return super().score(X, y, sample_weight)

    def _logits(self, X: Any) -> np.ndarray:
        return self._predict(X, [PredictionKeys.LOGITS])[PredictionKeys.LOGITS]

    def _new_target(self, y: Any) -> ClassTarget | LabelsTarget:
        owner = type(self).__name__
        if np.ndim(y) == 2 or is_frame(y):
            matrix = as_matrix(y)
            if matrix.dtype.kind == "f":
                assert_all_finite(matrix, input_name="y")
            # type_of_target sorts, which strings beside numbers or gaps cannot be.
            is_mixed = (
                matrix.dtype.kind == "O"
                and len({isinstance(value, str) for value in matrix.flat}) == 2
            )
            if (
                not is_mixed
                and type_of_target(matrix, input_name="y") == "multilabel-indicator"
            ):
                return LabelsTarget(owner)
            if matrix.ndim == 2 and matrix.shape[1] > 1:
                raise ValueError(
                    "y should be a 1d array of classes, or a matrix of zeros and ones "
                    f"for several labels per row; {owner} got an array of shape "
                    f"{matrix.shape} with other values. For several targets use "
                    "skest.MultiHeadEstimator, or one classifier for each with "
                    "sklearn.multioutput.MultiOutputClassifier."
                )
        return ClassTarget(owner)

    def _learn_target(self, y: Any, classes: Any) -> None:
        super()._learn_target(y, classes)
        self.classes_ = self._target.classes

    def _balanced_weight(self, rows: Rows) -> np.ndarray | None:
        weight, ids = rows.weight, rows.labels
        # Class weights are weights of rows, as in scikit-learn: the head knows nothing
        # of them.
        if self.class_weight is None:
            return weight
        if isinstance(self._target, LabelsTarget):
            raise ValueError(
                "'class_weight' is for one class per row; y has several labels per row. "
                "Pass 'sample_weight' instead."
            )
        present = np.unique(ids)  # a rare class may be held out as a whole
        given = self.class_weight
        if isinstance(given, dict):
            unknown = [label for label in given if label not in self.classes_]
            if unknown:
                raise ValueError(
                    f"The classes, {unknown}, of 'class_weight' are not in y; the classes "
                    f"are {self.classes_.tolist()}."
                )
            for label, value in given.items():
                check_not_negative(value, f"class_weight[{label}]", type(self).__name__)
            given = {k: v for k, v in given.items() if k in self.classes_[present]}
        by_class = np.ones(len(self.classes_))
        by_class[present] = compute_class_weight(
            given,
            classes=self.classes_[present],
            y=self.classes_[ids],
            sample_weight=weight,
        )
        return by_class[ids] if weight is None else weight * by_class[ids]

    def _strata(self, labels: np.ndarray) -> np.ndarray | None:
        """Return the classes if all of them fit into both parts."""
        if isinstance(self._target, LabelsTarget):
            return None
        # train_test_split refuses to stratify by classes that one part cannot have.
        counts = np.bincount(labels)
        counts = counts[counts > 0]
        n_held_out = math.ceil(self.validation_fraction * len(labels))
        smaller = min(n_held_out, len(labels) - n_held_out)
        return labels if counts.min() > 1 and len(counts) <= smaller else None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Weights of classes are weights of rows, and a row of several labels has no one
        # class.
        tags.classifier_tags.multi_label = self.class_weight is None
        return tags


_MEDIAN = 0.5  # the default of `quantile`


@with_parameters
class LossParameters:
    """What a regression minimises.

    Parameters
    ----------
    loss : {"squared_error", "absolute_error", "huber", "quantile", "poisson", "logistic"}
        What is minimised. "absolute_error" predicts medians; "huber" is half the squared
        error up to a difference of one standard deviation of `y`, and linear beyond (in
        ``evaluate``: up to a difference of 1); "poisson"
        is for counts, `y >= 0`, and predicts the exponential of the network's output;
        "logistic" is for shares, `y` in [0, 1], and predicts its sigmoid. Early stopping
        goes by R² for "squared_error", and by the mean loss, with a minus, for the
        others.
    quantile : float in (0, 1)
        What loss="quantile" predicts; another loss takes no other value.
    """

    loss: str = parameter(default="squared_error", values=[StrOptions(set(LOSSES))])
    quantile: float = parameter(
        default=_MEDIAN, values=[Interval(Real, 0, 1, closed="neither")]
    )


class SkestRegressor(RegressorMixin, StreamTrained):
    """What the regressors of skest have in common; not for direct use."""

    loss: str
    quantile: float
    _target: NumberTarget

    @available_if(has_partial_fit)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train one epoch, going on from the present state.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), DataFrame or dict of arrays
            Training data.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Target values.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        object
            This estimator.
        """
        return self._partial_fit(X, y, sample_weight)

    def _new_target(self, y: Any) -> NumberTarget:
        if self.loss != "quantile" and self.quantile != _MEDIAN:
            raise ValueError(
                f"'quantile' needs loss=\"quantile\"; got quantile={self.quantile!r} and "
                f"loss={self.loss!r}. Set the loss, or leave the quantile at {_MEDIAN}."
            )
        return NumberTarget(type(self).__name__, self.loss, self.quantile)

    def _check_resumed(self) -> None:
        # The network and its optimizer have learned for one loss; another has other
        # gradients, and other logits behind a link.
        before = self._target.loss, self._target.quantile
        if before != (self.loss, self.quantile):
            raise ValueError(
                f"The earlier fit had loss={before[0]!r} and quantile={before[1]!r}, and "
                f"training cannot go on with loss={self.loss!r} and "
                f"quantile={self.quantile!r}. Fit anew with warm_start=False."
            )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.positive_only = self.loss == "poisson"
        return tags
