# SPDX-License-Identifier: Apache-2.0
"""`EnsembleClassifier`, `EnsembleRegressor`: weighted means of models that are there."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, is_classifier
from sklearn.ensemble import VotingClassifier, VotingRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import get_scorer
from sklearn.utils.multiclass import type_of_target

from skest.core.checks import warn
from skest.core.sklearn_compat import safe_indexing


class EnsembleClassifier(VotingClassifier):
    """Mean of the probabilities of fitted classifiers.

    It is `sklearn.ensemble.VotingClassifier` with ``voting="soft"``, whose members are
    `sklearn.frozen.FrozenEstimator`; the `ensemble` of a search makes it.
    """


class EnsembleRegressor(VotingRegressor):
    """Mean of the predictions of fitted regressors.

    It is `sklearn.ensemble.VotingRegressor`, whose members are
    `sklearn.frozen.FrozenEstimator`; the `ensemble` of a search makes it.
    """


def check_can_average(estimator: Any, y: Any) -> None:
    """Refuse estimators whose predictions are no probabilities and no numbers.

    Parameters
    ----------
    estimator : estimator
        Not fitted.
    y : labels
        Of the search.
    """
    kind = type_of_target(y, input_name="y")
    if is_classifier(estimator):
        fits = kind in ("binary", "multiclass") and hasattr(estimator, "predict_proba")
    else:
        fits = np.ndim(y) == 1
    if not fits:
        raise ValueError(
            "An ensemble needs a classifier with predict_proba and one class for each row, "
            "or a regressor and one number for each row; got "
            f"{type(estimator).__name__} and labels that are {kind}. Leave out 'ensemble'."
        )


class _Known:
    """Predicts what it was given."""

    def fit(self, X: Any, y: Any) -> Any:
        """Do nothing."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True


class _KnownClasses(_Known, ClassifierMixin, BaseEstimator):
    def __init__(self, probabilities: Any, classes: Any) -> None:
        self.probabilities, self.classes_ = probabilities, classes

    def predict_proba(self, X: Any) -> Any:
        """Return what is known."""
        return self.probabilities

    def predict(self, X: Any) -> Any:
        """Return the most probable classes."""
        return self.classes_[self.probabilities.argmax(axis=1)]


class _KnownNumbers(_Known, RegressorMixin, BaseEstimator):
    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def predict(self, X: Any) -> Any:
        """Return what is known."""
        return self.numbers


def greedy_counts(
    predictions: Sequence[NDArray[Any]], score: Any, n_rounds: int
) -> NDArray[np.int64]:
    """Return how often each candidate is in the ensemble that scores best.

    Parameters
    ----------
    predictions : sequence of ndarray
        Of the candidates, for the same rows.
    score : callable
        ``score(mean)``, which is to be high.
    n_rounds : int
        How many are added, one after the other, the same again if it is the best one.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.model_selection.ensemble import greedy_counts
    >>> greedy_counts([np.ones(2), -2 * np.ones(2)], lambda mean: -abs(mean.sum()), 4)
    array([2, 1])
    """
    counts = np.zeros(len(predictions), np.int64)
    total: Any = 0.0
    best, best_counts = -np.inf, counts
    for n in range(1, n_rounds + 1):
        scores = [score((total + own) / n) for own in predictions]
        chosen = int(np.nanargmax(scores))
        total = total + predictions[chosen]
        counts = counts.copy()
        counts[chosen] += 1
        if scores[chosen] > best:
            best, best_counts = scores[chosen], counts
    return best_counts


def greedy_ensemble(
    candidates: Sequence[Sequence[Mapping[str, Any]]],
    X: Any,
    y: Any,
    scorer: Any,
    name: str | None,
    n_rounds: int,
) -> Any:
    """Return an ensemble of candidates of a search, or None if there can't be one.

    Parameters
    ----------
    candidates : sequence of sequence of mapping
        For each candidate and split a fitted "estimator", the rows of the "test" and the
        "fit_error".
    X, y : table and labels
        Of the search.
    scorer : callable or None
        ``scorer(estimator, X, y)``; None takes the log loss or the squared error.
    name : str or None
        The score, if a scorer returns several.
    n_rounds : int
        See `greedy_counts`.
    """
    tests = [np.asarray(part["test"]) for part in candidates[-1]]
    candidates = [
        parts
        for parts in candidates
        if all(
            part["fit_error"] is None and np.array_equal(part["test"], test)
            for part, test in zip(parts, tests, strict=True)
        )
    ]
    classes = np.unique(y) if is_classifier(candidates[0][0]["estimator"]) else None
    splits = [
        k
        for k in range(len(tests))
        if classes is None
        or all(
            len(parts[k]["estimator"].classes_) == len(classes) for parts in candidates
        )
    ]
    if not splits:
        warn(
            "There is no ensemble: no part of the rows that models were trained on has "
            "all classes. best_estimator_ is a single model."
        )
        return None
    tests = [tests[k] for k in splits]
    rows = [safe_indexing(X, test) for test in tests]
    method = "predict" if classes is None else "predict_proba"
    predictions = [
        np.concatenate(
            [
                getattr(parts[k]["estimator"], method)(part)
                for k, part in zip(splits, rows, strict=True)
            ]
        )
        for parts in candidates
    ]
    held_out = np.concatenate(tests)
    X_held_out, y_held_out = safe_indexing(X, held_out), safe_indexing(y, held_out)
    if scorer is None:
        scorer = get_scorer(
            "neg_mean_squared_error" if classes is None else "neg_log_loss"
        )

    def score(mean: Any) -> float:
        known = _KnownNumbers(mean) if classes is None else _KnownClasses(mean, classes)
        found = scorer(known, X_held_out, y_held_out)
        return found[name] if isinstance(found, Mapping) else found

    counts = greedy_counts(predictions, score, n_rounds)
    members, weights = [], []
    for i in np.flatnonzero(counts):
        for k in splits:
            model = FrozenEstimator(candidates[i][k]["estimator"])
            members.append((f"candidate {i}, split {k}", model))
            weights.append(float(counts[i]))
    if classes is None:
        return EnsembleRegressor(members, weights=weights).fit(X, y)
    return EnsembleClassifier(members, voting="soft", weights=weights).fit(X, y)
