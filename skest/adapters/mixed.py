# SPDX-License-Identifier: Apache-2.0
"""`SkestMixedEstimator`: any kind of target, and several at once."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skest.adapters.base import has_partial_fit
from skest.adapters.features import without_columns
from skest.adapters.parameters import parameter, with_parameters
from skest.adapters.stream import StreamTrained
from skest.adapters.targets import infer
from skest.adapters.targets.base import Scored, Target
from skest.adapters.targets.classes import LabelsTarget, as_matrix
from skest.adapters.targets.several import SeveralTargets, columns_of
from skest.feature_columns.columns import FeatureColumns, same
from skest.feature_columns.sources import is_frame
from skest.feature_columns.table import TableColumns
from skest.heads.base import Head
from skest.heads.classification import SingleLabelHead
from skest.heads.multi_head import MultiHead
from skest.heads.multi_label import MultiLabelHead, as_cells
from skest.heads.regression import PoissonRegressionHead, RegressionHead
from skest.heads.single_task import SingleTaskHead


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
        self, parameter: str, kind: str, features: TableColumns
    ) -> FeatureColumns | None:
        # A weight would be inferred as a number like others, and predict what it
        # weighs.
        weights = self._weight_keys
        if weights:
            others = {k: cells for k, cells in features.items() if k not in weights}
            features = TableColumns(others)
        return super()._given_columns(parameter, kind, features)

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
