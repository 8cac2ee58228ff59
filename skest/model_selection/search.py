# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's searches and validation, with an early end and an ensemble."""

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from sklearn import model_selection
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.pipeline import Pipeline
from sklearn.utils import indexable
from sklearn.utils.validation import _num_samples

from skest.adapters.recipe import AutoParameters, auto_epochs
from skest.core.checks import each_once, warn
from skest.core.console import listener
from skest.core.sklearn_compat import Interval
from skest.model_selection.ensemble import greedy_ensemble, labels_to_average
from skest.model_selection.tasks import UNFINISHED, Tasks

_ROUNDS = 32  # as TabPack has (arXiv 2607.05380)


class _Stopped(Exception):  # noqa: N818, no error: a way out
    """The search has ended before its last call."""


_ADDED: dict[str, list[Any]] = {
    "ensemble": ["boolean", Interval(Integral, 1, None, closed="left")],
    "time_limit": [Interval(Real, 0, None, closed="neither"), None],
}


_ADDED_DEFAULTS = {"ensemble": False, "time_limit": None}


def _constructor(**changed: Any) -> Callable[[type], type]:
    """Give a search the parameters of that of scikit-learn, some with another default.

    The added ones come last.
    """

    def decorate(cls: Any) -> Any:
        # The search of scikit-learn.
        base = cls.__mro__[cls.__mro__.index(_Search) + 1]
        inherited = [
            p.replace(default=changed.get(p.name, p.default))
            for p in inspect.signature(base.__init__).parameters.values()
        ]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in _ADDED_DEFAULTS.items()
        ]
        signature = inspect.Signature([*inherited, *added])

        def construct(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                given = signature.bind(self, *args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{type(self).__name__}.__init__() {error}") from None
            given.apply_defaults()
            # scikit-learn's constructor knows nothing of them.
            vars(self).update({n: given.arguments.pop(n) for n in _ADDED_DEFAULTS})
            base.__init__(*given.args, **given.kwargs)

        # `get_params` and `clone` go by it, as do editors: it names all parameters.
        construct.__signature__ = signature  # type: ignore[attr-defined]
        cls.__init__ = construct
        cls._parameter_constraints = {**base._parameter_constraints, **_ADDED}
        return cls

    return decorate


class _Search:
    """What the searches have in common."""

    estimator: Any
    ensemble: bool | int
    time_limit: float | None
    n_jobs: int | None
    refit: Any
    verbose: int
    best_estimator_: Any

    def fit(self, X: Any, y: Any = None, **params: Any) -> Self:
        """Fit with all sets of parameters, and refit the best.

        Parameters
        ----------
        X, y : table and labels
            As for ``fit`` of the estimator.
        **params
            As in scikit-learn.

        Returns
        -------
        object
            This search.

        Raises
        ------
        KeyboardInterrupt, TimeoutError
            If not even one candidate was done.
        """
        self._validate_params()  # type: ignore[attr-defined]
        if self.ensemble:
            if not self.refit:
                raise ValueError(
                    "The ensemble takes the place of best_estimator_, so it needs 'refit'; "
                    f"got ensemble={self.ensemble!r} and refit={self.refit!r}."
                )
            y = labels_to_average(self.estimator, y)
        self._members: list[Any] = []
        vars(self).pop("ensemble_score_", None)  # of an earlier fit
        self._tasks = Tasks(
            self.n_jobs,
            partial=listener() is None,  # within another search, Ctrl-C is for that
            time_limit=self.time_limit,
            keep=bool(self.ensemble),
            resource=self._resource_to_go_on(),
            verbose=self.verbose,
            score=self.refit if isinstance(self.refit, str) else None,
        )
        try:
            with each_once():
                with self._tasks.active():
                    super().fit(X, y, **params)  # type: ignore[misc]
                if self.ensemble and self.refit:
                    self._make_ensemble(X, y)
        finally:
            del self._tasks, self._members
        return self

    def _resource_to_go_on(self) -> str:
        return ""

    def _run_search(
        self, evaluate_candidates: Any, *, callback_ctx: Any = None
    ) -> None:
        self._tasks.take_no_more()  # such as those of the refit

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            if self._tasks.stopped is not None:
                raise _Stopped
            return evaluate_candidates(*args, **kwargs)

        try:
            super()._run_search(evaluate, callback_ctx=callback_ctx)  # type: ignore[misc]
        except _Stopped:
            self._end_early()
        if self.verbose and self.refit:
            print("Refitting the best candidate on all rows")

    def _end_early(self) -> None:
        """Set what a search sets at its end."""

    # A private method of BaseSearchCV: what it returns becomes cv_results_.
    def _format_results(
        self, candidate_params: Any, n_splits: int, out: Any, more_results: Any = None
    ) -> Any:
        """Leave out candidates that were not done on all splits."""
        split = range(n_splits)
        by_candidate = [
            [out[i * n_splits + k] for k in split] for i in range(len(candidate_params))
        ]
        done = [
            i
            for i, results in enumerate(by_candidate)
            if not any(UNFINISHED in result for result in results)
        ]
        if len(done) < len(candidate_params):
            stopped = self._tasks.stopped
            if not done:
                raise self._tasks.nothing_done()
            why = "Ctrl-C" if isinstance(stopped, KeyboardInterrupt) else stopped
            warn(
                f"The search has ended early ({why}): cv_results_ has "
                f"{len(done)} of {len(candidate_params)} candidates."
            )
        # Of a halving search it is called for each round with all rounds so far.
        self._members = [by_candidate[i] for i in done]
        more = {k: [v[i] for i in done] for k, v in (more_results or {}).items()}
        return super()._format_results(  # type: ignore[misc]
            [candidate_params[i] for i in done],
            n_splits,
            [result for i in done for result in by_candidate[i]],
            more,
        )

    def _make_ensemble(self, X: Any, y: Any) -> None:
        """Put the ensemble in the place of the best estimator."""
        search: Any = self
        name = self.refit if isinstance(self.refit, str) else None
        by_loss = search.scoring is None or (search.multimetric_ and name is None)
        judge: Any = search.scorer_
        if search.multimetric_ and name is None:
            judge = None  # there is no best_score_ either
        elif isinstance(judge, Mapping):
            judge = judge[name]
        scorer = None if by_loss else judge
        rounds = (
            _ROUNDS if isinstance(self.ensemble, bool | np.bool_) else self.ensemble
        )
        # As the search itself has done: labels may be a list.
        X, y = indexable(X, y)
        best = search.best_index_
        try:
            ensemble, score = greedy_ensemble(
                self._members, best, X, y, scorer, name, rounds, judge
            )
        except Exception as error:  # such as a scorer's: what was trained stays
            warn(f"There is no ensemble, for its choice failed: {error!r}")
            return
        if ensemble is not None:
            ensemble.single_ = self.best_estimator_
            self.best_estimator_, self.ensemble_score_ = ensemble, score


@_constructor()
class GridSearchCV(_Search, model_selection.GridSearchCV):
    """Exhaustive search that can end early and makes an ensemble of what it has trained.

    It is `sklearn.model_selection.GridSearchCV`, with its parameters, attributes, errors
    and results, for estimators of skest and others.

    Ctrl-C ends the search and not the call: `cv_results_` has the candidates that were done
    on all splits, and the best of them is refitted.

    Parameters
    ----------
    estimator, param_grid, scoring, refit, cv, pre_dispatch, error_score, \
return_train_score
        As in scikit-learn. The warning about a fit that failed names the candidate.
    verbose : int, default=0
        From 1 on it prints, every few seconds, how many candidates are done, the best
        score, and the time left; from 2 on also scikit-learn's lines about every fit. The
        estimators' own lines are shown in the refit only.
    n_jobs : int, default=None
        Processes, as in scikit-learn.
    ensemble : bool or int, default=False
        Make an ensemble of the models that were trained on the folds: in so many rounds
        (True is 32), the candidate is added with which predictions for held-out rows score
        best (Caruana et al., "Ensemble selection from libraries of models", ICML 2004).
        The score is `scoring`, that of `refit` if there are several, or by default the log
        loss of probabilities or the squared error. `best_estimator_`, which predicts, is
        the ensemble then, and its ``single_`` what else it would be.
    time_limit : float, default=None
        Seconds after which the search ends as by Ctrl-C, estimators of skest at the end of
        an epoch. The refit, and the choice of the ensemble, come on top. If no candidate
        is done by then, ``fit`` raises TimeoutError.

    Attributes
    ----------
    ensemble_score_ : float
        What `best_score_` is of the best candidate, of the ensemble, if there is one: the
        mean over the splits of the score for the rows held out, to which only the members
        contribute that have not seen them. All rows count alike, also with `sample_weight`.
        Both were chosen by these rows, so expect less
        for new ones. The others, such as `best_score_`, `best_params_` and `cv_results_`,
        are those of scikit-learn and tell of single candidates.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skest import LinearClassifier
    >>> from skest.model_selection import GridSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LinearClassifier(random_state=0, max_iter=9)
    >>> search = GridSearchCV(model, {"learning_rate": [0.01, 0.1]}, cv=3, ensemble=True)
    >>> search.fit(X, y).best_params_
    {'learning_rate': 0.1}
    >>> type(search.best_estimator_).__name__
    'EnsembleClassifier'
    """


@_constructor()
class RandomizedSearchCV(_Search, model_selection.RandomizedSearchCV):
    """Search among random candidates.

    It is `sklearn.model_selection.RandomizedSearchCV`; see `GridSearchCV` for what is
    added.

    Parameters
    ----------
    estimator, param_distributions, n_iter, scoring, refit, cv, verbose, pre_dispatch, \
random_state, error_score, return_train_score
        As in scikit-learn.
    n_jobs, ensemble, time_limit
        As in `GridSearchCV`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skest import LinearClassifier
    >>> from skest.model_selection import RandomizedSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LinearClassifier(random_state=0, max_iter=9)
    >>> rates = {"learning_rate": [0.001, 0.01, 0.1]}
    >>> search = RandomizedSearchCV(model, rates, n_iter=2, cv=3, random_state=0)
    >>> len(search.fit(X, y).cv_results_["params"])
    2
    """


class _HalvingSearch(_Search):
    """What the halving searches have in common."""

    resource: str
    max_resources: int | str

    def _resource_to_go_on(self) -> str:
        name = "max_iter"
        if isinstance(self.estimator, Pipeline):
            name = f"{self.estimator.steps[-1][0]}__max_iter"
        return self.resource if self.resource == name else ""

    def _check_input_parameters(self, X: Any, y: Any, split_params: Any) -> None:
        params = self.estimator.get_params()
        if self.resource == "max_iter" and isinstance(self.estimator, Pipeline):
            last = self.estimator.steps[-1][0]
            raise ValueError(
                "'resource' must name a parameter of the pipeline; got 'max_iter'. Write "
                f"resource='{last}__max_iter'."
            )
        number = params.get(self.resource)
        search: Any = self
        if self.max_resources == "auto" and self.resource != "n_samples":
            _, last = getattr(self.estimator, "steps", [("", self.estimator)])[-1]
            is_ours = isinstance(last, AutoParameters)
            if is_ours and number == "auto" and self._resource_to_go_on():
                number = auto_epochs(last, _num_samples(X if y is None else y))
            if self.resource in params and not isinstance(number, Integral):
                raise ValueError(
                    f"max_resources='auto' is the number of the parameter "
                    f"{self.resource!r} of the estimator, which is {number!r}. Give one "
                    f"of them a number, e.g. max_resources=81."
                )
            # Of a copy: a fit must not change parameters.
            search = copy.copy(self)
            search.max_resources = number
        super(_HalvingSearch, search)._check_input_parameters(X, y, split_params)  # type: ignore[misc]
        self.min_resources_ = search.min_resources_
        self.max_resources_ = search.max_resources_

    def _end_early(self) -> None:
        search: Any = self
        search.n_resources_.pop()  # of the iteration that did not begin
        search.n_remaining_candidates_ = search.n_candidates_.pop()
        search.n_iterations_ = len(search.n_resources_)


@_constructor(resource="max_iter")
class HalvingGridSearchCV(_HalvingSearch, model_selection.HalvingGridSearchCV):
    """Halving search of a grid, by epochs.

    It is `sklearn.model_selection.HalvingGridSearchCV`; see `GridSearchCV` for what is
    added. The resource is the number of epochs, and estimators of skest that stay in the
    race go on from where they were, with their optimizers. A schedule of the learning
    rate, as estimators have by default, begins anew then, as does early stopping: scores
    are others than those of as many epochs at once. So does the training where it can't go
    on, as by "sdca".

    Parameters
    ----------
    estimator, param_grid, factor, min_resources, aggressive_elimination, cv, scoring, \
refit, error_score, return_train_score, random_state, verbose
        As in scikit-learn.
    resource : str, default="max_iter"
        In a pipeline "<step>__max_iter". Others, as "n_samples", begin anew in every
        iteration.
    max_resources : int or "auto", default="auto"
        "auto" is the number that the estimator has as this parameter, or chooses for so
        many rows.
    n_jobs, ensemble, time_limit
        As in `GridSearchCV`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skest import LinearClassifier
    >>> from skest.model_selection import HalvingGridSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LinearClassifier(random_state=0, max_iter=9)
    >>> rates = {"learning_rate": [0.001, 0.01, 0.1]}
    >>> search = HalvingGridSearchCV(model, rates, cv=3).fit(X, y)
    >>> search.n_candidates_, search.n_resources_, search.best_params_
    ([3, 1], [3, 9], {'learning_rate': 0.1, 'max_iter': 9})
    """


@_constructor(resource="max_iter")
class HalvingRandomSearchCV(_HalvingSearch, model_selection.HalvingRandomSearchCV):
    """Halving search of random candidates, by epochs.

    It is `sklearn.model_selection.HalvingRandomSearchCV`; see `GridSearchCV` for what is
    added. The resource is the number of epochs, and estimators of skest that stay in the
    race go on from where they were, with their optimizers. A schedule of the learning
    rate, as estimators have by default, begins anew then, as does early stopping: scores
    are others than those of as many epochs at once. So does the training where it can't go
    on, as by "sdca".

    Parameters
    ----------
    estimator, param_distributions, n_candidates, factor, min_resources, \
aggressive_elimination, cv, scoring, refit, error_score, return_train_score, random_state, \
verbose
        As in scikit-learn.
    resource : str, default="max_iter"
        In a pipeline "<step>__max_iter". Others, as "n_samples", begin anew in every
        iteration.
    max_resources : int or "auto", default="auto"
        "auto" is the number that the estimator has as this parameter, or chooses for so
        many rows.
    n_jobs, ensemble, time_limit
        As in `GridSearchCV`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skest import LinearClassifier
    >>> from skest.model_selection import HalvingRandomSearchCV
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LinearClassifier(random_state=0, max_iter=9)
    >>> rates = {"learning_rate": [0.001, 0.01, 0.1]}
    >>> search = HalvingRandomSearchCV(model, rates, n_candidates=3, cv=3).fit(X, y)
    >>> search.n_candidates_, search.n_resources_
    ([3, 1], [1, 3])
    """


def cross_validate(estimator: Any, X: Any, y: Any = None, **options: Any) -> Any:
    """Score an estimator by cross-validation, and say how far it is.

    Parameters
    ----------
    estimator : estimator
        Of skest, or another.
    X, y : table and labels
        As for `sklearn.model_selection.cross_validate`.
    **options
        Those of `sklearn.model_selection.cross_validate`. With `verbose` it prints every
        few seconds how many fits are done, in the place of the estimators' lines.

    Returns
    -------
    dict of str to ndarray
        The same as that of scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skest import LinearClassifier
    >>> from skest.model_selection import cross_validate
    >>> X, y = load_iris(return_X_y=True)
    >>> found = cross_validate(LinearClassifier(random_state=0), X, y, cv=3)
    >>> bool(found["test_score"].mean() > 0.9)
    True
    """
    with _telling(options):
        return model_selection.cross_validate(estimator, X, y, **options)


def cross_val_predict(estimator: Any, X: Any, y: Any = None, **options: Any) -> Any:
    """Predict every row by an estimator that was not fitted on it, as scikit-learn does.

    Parameters
    ----------
    estimator : estimator
        Of skest, or another.
    X, y : table and labels
        As for `sklearn.model_selection.cross_val_predict`.
    **options
        As for `cross_validate`.

    Returns
    -------
    ndarray of shape (n_samples,) or (n_samples, n_classes)
        The same as that of scikit-learn.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from skest import LinearClassifier
    >>> from skest.model_selection import cross_val_predict
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LinearClassifier(random_state=0)
    >>> cross_val_predict(model, X, y, cv=3, method="predict_proba").shape
    (150, 3)
    """
    with _telling(options):
        return model_selection.cross_val_predict(estimator, X, y, **options)


@contextmanager
def _telling(options: dict[str, Any]) -> Iterator[None]:
    """Say how far it is instead of joblib."""
    verbose = options.pop("verbose", 0)
    with each_once(), Tasks(options.get("n_jobs"), verbose=verbose).active():
        yield
