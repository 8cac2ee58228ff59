# SPDX-License-Identifier: Apache-2.0
"""`EnsembleClassifier`, `EnsembleRegressor`: weighted means of models that are there."""

import os
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    RegressorMixin,
    is_classifier,
    is_regressor,
)
from sklearn.ensemble import VotingClassifier, VotingRegressor
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import get_scorer, log_loss, make_scorer
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import check_is_fitted, column_or_1d

from skest.adapters.base import SkestEstimator
from skest.adapters.export import mean_exported
from skest.adapters.targets.classes import in_numpy_type
from skest.core.checks import warn
from skest.core.sklearn_compat import safe_indexing
from skest.exceptions import ExportError
from skest.export.writer import write_export


class _Ensemble:
    """Can be exported."""

    weights: Any

    def onnx_graph(self) -> Any:
        """Return the ensemble as one ONNX graph, from raw columns to the mean.

        Returns
        -------
        onnx.ModelProto
            As that of an estimator of skest.

        Raises
        ------
        ExportError
            If a member is no estimator of skest, or can't be exported.
        """
        return self._exported(None).model.model

    def export(
        self,
        export_dir_base: str | os.PathLike[str],
        *,
        example: Any = None,
        verify: bool = True,
        atol: float = 1e-5,
    ) -> Path:
        """Write the ensemble as a new version that runs without Python.

        Parameters
        ----------
        export_dir_base, example, verify, atol
            As for ``export`` of an estimator of skest.

        Returns
        -------
        Path
            The directory of the version, which has one ``model.onnx``.

        Raises
        ------
        ExportError
            If a member is no estimator of skest, or can't be exported, or what was
            written does not predict what the ensemble does.
        """
        exported = self._exported(example)
        return write_export(exported, export_dir_base, verify=verify, atol=atol)

    def _exported(self, example: Any) -> Any:
        check_is_fitted(self)
        found: Any = self
        # Those of a search are in a FrozenEstimator each.
        members = [getattr(m, "estimator", m) for m in found.estimators_]
        weights = found._weights_not_none  # without those of members that are "drop"
        weights = np.ones(len(members)) if weights is None else weights
        # As the greedy choice makes them: how often a member was added.
        times = np.asarray(weights).astype(int)
        if not np.array_equal(times, weights):
            raise ExportError(
                f"'weights' must be whole to be exported; got {self.weights!r}."
            )
        for member in members:
            if not isinstance(member, SkestEstimator):
                raise ExportError(
                    "An ensemble can be exported if its members are estimators of skest, "
                    f"without steps before them; got {type(member).__name__}. Columns "
                    "that are described to the estimator do what such steps do."
                )
        name = type(self).__name__
        # Members that were fitted here have learned numbers of classes.
        classes = getattr(self, "classes_", None)
        return mean_exported(members, times.tolist(), classes, example, name)


class EnsembleClassifier(_Ensemble, VotingClassifier):
    """Mean of the probabilities of several classifiers.

    It is `sklearn.ensemble.VotingClassifier` with ``voting="soft"``, which can be
    exported. The `ensemble` of a search makes one of models that are fitted; its
    ``single_`` is the best candidate, as the search has refitted it.

    Parameters
    ----------
    estimators : list of (str, estimator)
        Names and members. One in a `sklearn.frozen.FrozenEstimator` stays as it is.
    weights : array-like of shape (n_estimators,), default=None
        How much each counts.
    n_jobs : int, default=None
        As in scikit-learn.

    Examples
    --------
    >>> from sklearn.base import clone
    >>> from sklearn.datasets import load_iris
    >>> from skest import DNNClassifier
    >>> from skest.model_selection import EnsembleClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = DNNClassifier((8,), max_iter=9)
    >>> seeds = [(str(i), clone(model).set_params(random_state=i)) for i in (0, 1)]
    >>> EnsembleClassifier(seeds).fit(X, y).predict_proba(X).shape
    (150, 3)
    """

    def __init__(
        self, estimators: Any, *, weights: Any = None, n_jobs: int | None = None
    ) -> None:
        super().__init__(estimators, voting="soft", weights=weights, n_jobs=n_jobs)

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:
        """Fit the members.

        Parameters
        ----------
        X, y : table and labels
            As for ``fit`` of the members.
        **fit_params
            As in scikit-learn.

        Returns
        -------
        EnsembleClassifier
            This ensemble.
        """
        super().fit(X, in_numpy_type(y), **fit_params)
        return self

    def _collect_probas(self, X: Any) -> Any:
        # (n_members, n_rows, n_classes)
        return _with_sum_1(super()._collect_probas(X))


class EnsembleRegressor(_Ensemble, VotingRegressor):
    """Mean of the predictions of several regressors.

    It is `sklearn.ensemble.VotingRegressor`, which can be exported. The `ensemble` of a
    search makes one of models that are fitted; its ``single_`` is the best candidate, as
    the search has refitted it.

    Parameters
    ----------
    estimators : list of (str, estimator)
        Names and members. One in a `sklearn.frozen.FrozenEstimator` stays as it is.
    weights : array-like of shape (n_estimators,), default=None
        How much each counts.
    n_jobs : int, default=None
        As in scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from skest import LinearRegressor
    >>> from skest.model_selection import EnsembleRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> seeds = [(f"seed {i}", LinearRegressor(random_state=i)) for i in range(3)]
    >>> EnsembleRegressor(seeds).fit(X, y).predict(X).shape
    (442,)
    """

    def __init__(
        self, estimators: Any, *, weights: Any = None, n_jobs: int | None = None
    ) -> None:
        super().__init__(estimators, weights=weights, n_jobs=n_jobs)


def _with_sum_1(probabilities: Any) -> NDArray[np.float64]:
    # Of float32 members: metrics of scikit-learn want sums as near 1 as the type is.
    found = np.asarray(probabilities, dtype=np.float64)
    sums = found.sum(axis=-1, keepdims=True)
    # OneVsRestClassifier may find that no class is likely at all.
    return found / np.where(sums == 0, 1, sums)


def labels_to_average(estimator: Any, y: Any) -> Any:
    """Return the labels, of a regressor without a second dimension.

    Estimators whose predictions are no probabilities and no numbers are refused.

    Parameters
    ----------
    estimator : estimator
        Not fitted.
    y : labels
        Of the search.
    """
    found = " without y" if y is None else ""
    if y is not None and is_classifier(estimator):
        try:
            kind = type_of_target(y, input_name="y", raise_unknown=True)
        except TypeError:  # it cannot sort what is in them
            kind = "numbers and strings"
        if kind in ("binary", "multiclass") and hasattr(estimator, "predict_proba"):
            return y
        found = f" and labels that are {kind}"
    elif y is not None and is_regressor(estimator):
        shape = np.asarray(y).shape
        if len(shape) == 1:
            return y
        if shape[1:] == (1,):
            return column_or_1d(y, warn=True)
        found = " and several numbers for each row"
    raise ValueError(
        "An ensemble needs a classifier with predict_proba and one class for each row, "
        "or a regressor and one number for each row; got "
        f"{type(estimator).__name__}{found}. Leave out 'ensemble'."
    )


# Scorers of scikit-learn take an estimator. These give them what was predicted once,
# since a round of the choice scores the mean with each candidate.
class _Known:
    """Predicts what it was given."""

    def fit(self, X: Any, y: Any) -> Any:
        """Do nothing."""
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            "with 'ensemble' a scorer may use predictions only; a mean of several models "
            f"has no {name!r}"
        )


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
        # With replacement, and from nothing on (Caruana et al., section 2.1).
        scores = [score((total + own) / n) for own in predictions]
        # The first of equal ones: candidates keep the order of the search.
        chosen = int(np.nanargmax(scores))
        total = total + predictions[chosen]
        counts = counts.copy()
        counts[chosen] += 1
        # A round may be worse than those before: the best of the nested ensembles counts.
        if scores[chosen] > best:
            best, best_counts = scores[chosen], counts
    return best_counts


def greedy_ensemble(
    candidates: Sequence[Sequence[Mapping[str, Any]]],
    best: int,
    X: Any,
    y: Any,
    scorer: Any,
    name: str | None,
    n_rounds: int,
    judge: Any,
) -> tuple[Any, float]:
    """Return an ensemble of candidates of a search and its score, or None and NaN.

    The score is the mean over the splits, each with the members of that split.

    Parameters
    ----------
    candidates : sequence of sequence of mapping
        For each candidate and split a fitted "estimator", the rows of the "test" and the
        "fit_error".
    best : int
        The number of the best candidate, without which there is no ensemble.
    X, y : table and labels
        Of the search.
    scorer : callable or None
        ``scorer(estimator, X, y)``; None takes the log loss or the squared error.
    name : str or None
        The score, if a scorer returns several.
    n_rounds : int
        See `greedy_counts`.
    judge : callable or None
        The scorer of the search; of several scores, that of `name` counts.
    """
    silent = [
        i for i, (first, *_) in enumerate(candidates) if _lacks_probabilities(first)
    ]
    if best in silent:
        warn(
            "There is no ensemble: the best candidate has no predict_proba, and so can't "
            "be averaged with others."
        )
        return None, np.nan
    if silent:
        warn(f"The ensemble lacks the candidates {silent}: without predict_proba.")
    by_number = _comparable(candidates, silent)
    numbers, candidates = list(by_number), list(by_number.values())
    classifies = candidates and is_classifier(candidates[0][0]["estimator"])
    classes = np.unique(np.asarray(in_numpy_type(y))) if classifies else None
    # Columns of probabilities must mean the same in all members.
    splits = [
        k
        for k in range(len(candidates[0]) if candidates else 0)
        if classes is None or all(_knows(parts[k], classes) for parts in candidates)
    ]
    if not splits:
        warn(
            "There is no ensemble: no candidate was fitted on all parts of the rows, or no "
            "part has all classes. best_estimator_ is a single model."
        )
        return None, np.nan
    tests = [candidates[0][k]["test"] for k in splits]
    method = "predict" if classes is None else "predict_proba"
    # (n_rows held out,) or (n_rows held out, n_classes), a candidate each.
    predictions = [
        np.concatenate(
            [
                getattr(parts[k]["estimator"], method)(safe_indexing(X, test))
                for k, test in zip(splits, tests, strict=True)
            ]
        )
        for parts in candidates
    ]
    if classes is not None:
        predictions = [_with_sum_1(found) for found in predictions]
    held_out = np.concatenate(tests)
    X_held_out, y_held_out = safe_indexing(X, held_out), safe_indexing(y, held_out)
    if scorer is None and classes is None:
        scorer = get_scorer("neg_mean_squared_error")
    elif scorer is None:
        loss = {"greater_is_better": False, "response_method": "predict_proba"}
        scorer = make_scorer(log_loss, **loss, labels=classes)

    def score(mean: Any, rows: Any = slice(None), by: Any = scorer) -> float:
        mean = mean[rows]
        known = _KnownNumbers(mean) if classes is None else _KnownClasses(mean, classes)
        X, y = safe_indexing(X_held_out, rows), safe_indexing(y_held_out, rows)
        found = by(known, X, y)
        return found[name] if isinstance(found, Mapping) else found

    counts = greedy_counts(predictions, score, n_rounds)
    mean = np.average(predictions, axis=0, weights=counts)
    # Rows of the splits lie one behind the other in the predictions.
    ends = np.cumsum([0, *map(len, tests)])
    by_split = [np.nan]
    if judge is not None:
        by_split = [score(mean, np.arange(*part), judge) for part in pairwise(ends)]
    # The same mean with the smallest whole numbers.
    counts //= np.gcd.reduce(counts)
    members, weights = [], []
    for i in np.flatnonzero(counts):
        for k in splits:
            # Or the fit below would train it anew.
            model = FrozenEstimator(candidates[i][k]["estimator"])
            members.append((f"candidate {numbers[i]}, split {k}", model))
            weights.append(float(counts[i]))
    kind = EnsembleRegressor if classes is None else EnsembleClassifier
    # The fit trains nothing: it learns the classes.
    return kind(members, weights=weights).fit(X, y), float(np.mean(by_split))


def _comparable(candidates: Sequence[Any], others: Collection[int]) -> dict[int, Any]:
    """Return, but for `others`, those without errors tested on the rows of the last."""
    # Rounds of a halving search by n_samples are tested on different rows.
    tests = [part["test"] for part in candidates[-1]]
    return {
        number: parts
        for number, parts in enumerate(candidates)
        if number not in others
        and all(
            part["fit_error"] is None and np.array_equal(part["test"], test)
            for part, test in zip(parts, tests, strict=True)
        )
    }


def _lacks_probabilities(part: Mapping[str, Any]) -> bool:
    model = part["estimator"]
    return is_classifier(model) and not hasattr(model, "predict_proba")


def _knows(part: Mapping[str, Any], classes: NDArray[Any]) -> bool:
    return len(part["estimator"].classes_) == len(classes)
