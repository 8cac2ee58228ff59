# SPDX-License-Identifier: Apache-2.0
"""What estimators for classes, for numbers, and for any kind of target predict."""

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any, Self

import numpy as np
import pandas as pd
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import (
    ClassifierTags,
    RegressorTags,
    assert_all_finite,
    compute_class_weight,
)
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted

from skest.adapters.base import has_partial_fit
from skest.adapters.features import Rows, as_rows, without_columns
from skest.adapters.parameters import parameter, with_parameters
from skest.adapters.stream import StreamTrained
from skest.adapters.targets import infer
from skest.adapters.targets.base import Scored, Target
from skest.adapters.targets.classes import ClassTarget, LabelsTarget, as_matrix
from skest.adapters.targets.numbers import LOSSES, NumberTarget
from skest.adapters.targets.several import SeveralTargets, columns_of
from skest.core.checks import check_not_negative
from skest.core.sklearn_compat import Interval, StrOptions
from skest.feature_columns.columns import FeatureColumns, same
from skest.feature_columns.sources import is_frame
from skest.feature_columns.table import TableColumns
from skest.heads.base import Head
from skest.heads.classification import SingleLabelHead
from skest.heads.multi_head import MultiHead
from skest.heads.multi_label import MultiLabelHead, as_cells
from skest.heads.regression import PoissonRegressionHead, RegressionHead
from skest.heads.single_task import SingleTaskHead
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

        Columns learn levels, means and scales from the rows of `fit`, or of the first
        call: of a level that only later ones have, nothing is learned.

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
        return super().score(X, as_rows(y), sample_weight)

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
            # As in scikit-learn: a fold may lack a class, but this looks like a slip.
            if unknown and not all(label in given for label in self.classes_.tolist()):
                raise ValueError(
                    f"The classes, {unknown}, of 'class_weight' are not in y; the classes "
                    f"are {self.classes_.tolist()}, and not all of them have a weight."
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

        Columns learn levels, means and scales from the rows of `fit`, or of the first
        call: of a level that only later ones have, nothing is learned.

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


def _has_probabilities(estimator: "SkestMixedEstimator") -> bool:
    # Before fit, the parameters may say it: scikit-learn asks for the method then, too.
    fitted = estimator.__sklearn_is_fitted__()
    target = estimator._target if fitted else estimator._target_of_head()
    return target is None or bool(target.proba_keys)


class SkestMixedEstimator(StreamTrained):
    """What estimators for any kind of target have in common; not for direct use."""

    @available_if(has_partial_fit)
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None
    ) -> Self:
        """Train one epoch, going on from the present state.

        Columns learn levels, means and scales from the rows of `fit`, or of the first
        call: of a level that only later ones have, nothing is learned.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), DataFrame or dict of arrays
            Training data.
        y : array-like, DataFrame or dict of arrays
            Targets as in `fit`.
        classes : array-like, or dict of array-like by head, default=None
            All classes; needed in the first call where `y` does not have them all.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        object
            This estimator.
        """
        return self._partial_fit(X, y, sample_weight, classes)

    def predict(self, X: Any) -> Any:
        """Return the predictions in the form that `y` had in `fit`.

        Parameters
        ----------
        X : array-like, DataFrame or dict of arrays
            Data as in `fit`.

        Returns
        -------
        ndarray, DataFrame or dict of ndarray
            Classes, indicators of labels, or numbers.
        """
        answer = super().predict(X)
        # So that answers can be joined to X.
        if isinstance(answer, pd.DataFrame) and isinstance(X, pd.DataFrame):
            answer.index = X.index
        return answer

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> Any:
        """Return the probabilities of classes or labels.

        Parameters
        ----------
        X : array-like, DataFrame or dict of arrays
            Data as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples, n_classes), or list of them
            With several heads a list with an element for each; it is None for a head
            that predicts numbers. Columns are in the order of `classes_`.
        """
        check_is_fitted(self)
        target = self._target
        return target.probabilities(self._predict(X, target.proba_keys))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the score of the predictions.

        Parameters
        ----------
        X : array-like, DataFrame or dict of arrays
            Data as in `fit`.
        y : array-like, DataFrame or dict of arrays
            True values; with several heads, some may be missing.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        float
            Accuracy for classes, share of rows without any wrong label for several
            labels, R² for numbers; with several heads the mean of their scores,
            weighted by `head_weights`.
        """
        check_is_fitted(self)
        # As in scikit-learn, a class that was not seen is predicted wrongly.
        rows = self._check_evaluation_rows(X, y, sample_weight, strict=False)
        predictions = self._predict(X, self._target.answer_keys)
        return self._target.score(Scored(predictions, rows.labels, rows.weight))

    def _target_of_head(self) -> Target | None:
        """Return the target that the parameters say; None if that is for `y` to say."""
        return None

    def _check_resumed(self) -> None:
        # Other logits, or another loss: the optimizer's state would belong to another
        # problem.
        for name in ("head", "heads", "head_weights"):
            before, now = self._params_in_fit.get(name), getattr(self, name, None)
            if not same(before, now):
                raise ValueError(
                    f"The earlier fit had {name}={before!r}, and training cannot go on "
                    f"with {name}={now!r}. Fit anew with warm_start=False."
                )

    def _learn_target(self, y: Any, classes: Any) -> None:
        super()._learn_target(y, classes)
        # A list by head, as multi-output classifiers of scikit-learn have it.
        if isinstance(self._target, SeveralTargets):
            self.classes_ = [
                getattr(target, "classes", None)
                for target in self._target.targets.values()
            ]
        elif hasattr(self._target, "classes"):
            self.classes_ = self._target.classes

    def _heads_of_user(self) -> list[Head]:
        """Return the heads among the parameters."""
        return []

    def _check_features(self, X: Any, *, reset: bool) -> TableColumns:
        """Read the weights of the head beside the features; they are none of them."""
        # tf.estimator's weight_column is among the features, and no feature.
        X, weights = without_columns(X, self._weight_keys)
        features = super()._check_features(X, reset=reset)
        return features | weights if weights else features

    def _given_columns(
        self, parameter: str, kind: str, rows: Rows
    ) -> FeatureColumns | None:
        # A weight would be inferred as a number like others, and predict what it
        # weighs.
        weights = self._weight_keys
        if weights:
            others = {k: v for k, v in rows.features.items() if k not in weights}
            rows = rows._replace(features=TableColumns(others))
        return super()._given_columns(parameter, kind, rows)

    @property
    def _needs_names(self) -> bool:
        return any(head._takes_features for head in self._heads_of_user())

    @property
    def _weight_keys(self) -> list[Any]:
        """Keys of the columns of X that the head reads weights from."""
        columns = [c for head in self._heads_of_user() for c in head._weight_columns]
        return [
            key
            for column in columns
            for key in ([column] if isinstance(column, str) else column.feature_keys)
        ]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.target_tags.multi_output = True
        tags.classifier_tags = ClassifierTags()  # for y that turns out to be classes
        return tags


def cells_by_head(y: Any, heads: Any) -> Any:
    """Return a dictionary of labels; lists of classes are no matrix for their heads."""
    if not (isinstance(y, Mapping) and isinstance(heads, Mapping)):
        return y
    # Only for those: elsewhere, lists of equal length are the numbers of several
    # outputs.
    is_cells = {key for key, head in heads.items() if isinstance(head, MultiLabelHead)}
    return {key: as_cells(v) if key in is_cells else v for key, v in y.items()}


@with_parameters
class HeadParameters:
    """The head, which comes first.

    Parameters
    ----------
    head : Head
        Loss, predictions and metrics: a head of `skest.heads`, also a `MultiHead` for
        several targets. None chooses one for `y`: several labels for a matrix of zeros
        and ones; for other matrices, tables and dictionaries one for each column, as
        `MultiHeadEstimator` does with ``heads="auto"``; classes or numbers for a single
        column.
    """

    head: Head | None = parameter(default=None, kw_only=False, values=[Head, None])


class SkestHeadEstimator(HeadParameters, SkestMixedEstimator):
    """What estimators with a head of the user's have in common; not for direct use."""

    def _target_of_head(self) -> Target | None:
        owner = type(self).__name__
        if self.head is None:
            return None
        if isinstance(self.head, MultiHead):
            return infer.given_targets(owner, self.head)
        if isinstance(self.head, SingleTaskHead):
            return infer.GivenTarget(owner, self.head)
        raise TypeError(
            f"'head' of {owner} must derive from SingleTaskHead or be a MultiHead; got "
            f"{type(self.head).__name__}. Use skest.Estimator with a model_fn."
        )

    def _new_target(self, y: Any) -> Target:
        given = self._target_of_head()
        if given is not None:
            return given
        owner = type(self).__name__
        # Columns with names are targets by themselves, also where all of them are zeros
        # and ones.
        if isinstance(y, Mapping) or is_frame(y):
            return infer.several_targets(y, "auto", None, owner)
        columns = columns_of(y)
        # A matrix without names: zeros and ones are labels, as in scikit-learn's
        # multilabel y.
        if len(columns) > 1:
            matrix = as_matrix(y)
            if matrix.dtype.kind in "biuf" and np.isin(matrix, (0, 1)).all():
                return LabelsTarget(owner)
            return infer.several_targets(y, "auto", None, owner)
        (values,) = columns.values()
        return infer.infer_target(values, owner)

    def _target_rows(self, y: Any) -> Any:
        if isinstance(self.head, MultiLabelHead):
            y = as_cells(y)
        elif isinstance(self.head, MultiHead):
            y = cells_by_head(y, {head.name: head for head in self.head.heads})
        return super()._target_rows(y)

    def _heads_of_user(self) -> list[Head]:
        return [] if self.head is None else [self.head]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if isinstance(self.head, SingleLabelHead):
            tags.estimator_type = "classifier"
            tags.target_tags.multi_output = False
        elif isinstance(self.head, RegressionHead):
            tags.estimator_type = "regressor"
            tags.classifier_tags = None
            tags.regressor_tags = RegressorTags()
            tags.target_tags.multi_output = self.head.label_dimension > 1
            tags.target_tags.single_output = self.head.label_dimension == 1
            is_count = isinstance(self.head, PoissonRegressionHead)
            tags.target_tags.positive_only = is_count
        return tags
