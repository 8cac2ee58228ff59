# SPDX-License-Identifier: Apache-2.0
"""`SkestEstimator`: the way of a ``fit`` that all scikit-learn estimators share.

``X, y`` are validated, a head is chosen from ``y``, feature columns learn what was left
open, and then a core `Estimator` trains and predicts. Subclasses say which networks
there are (`_model_fn`, `_column_parameters`) and what ``y`` means (`_new_target`).
"""

import inspect
import os
import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
from sklearn.base import clone
from sklearn.callback import CallbackSupportMixin, with_callbacks
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from skest.adapters.epochs import EpochHook, Progress
from skest.adapters.features import Rows
from skest.adapters.fit import (
    core_as_fitted,
    drop_embeddings,
    keep_embeddings,
    train_core,
)
from skest.adapters.folds import balance, evaluation, fit_by_folds, predictions
from skest.adapters.held_out import Course, LiveScore, fit_with_part_held_out
from skest.adapters.parameters import FORMER_ARGUMENTS
from skest.adapters.reader import RowReader
from skest.adapters.summary import chosen_table, summary_html, summary_text
from skest.adapters.targets.base import TargetScale
from skest.adapters.warm_source import (
    source_scale,
    whole_source,
    with_source_statistics,
)
from skest.checkpoints.warm_start import WarmStartReport
from skest.core.checks import FormerArguments, each_once, former_arguments, warn
from skest.core.console import said_if_long, speaking, voice
from skest.core.plain_state import from_plain, to_plain
from skest.core.sklearn_compat import CachedParameterNames
from skest.estimators.estimator import Estimator
from skest.feature_columns.sources import forms_of
from skest.feature_columns.table import TableColumns
from skest.inputs.array_dataset import ArrayDataset
from skest.spec import EstimatorSpec

ModelFunction: TypeAlias = Callable[..., EstimatorSpec]

_PREDICT_BATCH_SIZE = 4096
_MOST_LOGITS = 2**24  # of a batch to predict: 64 MiB in float32
# Of partial_fit. With 20 rows in the first call instead of 60, the loss after 8,000 of
# bike is .68 instead of .55, of diamonds .19 instead of .16.
_FEWEST_FIRST_ROWS = 60
# What a saved estimator keeps of its `estimator_`.
_CORE = "_core"


def _own_copy(value: Any) -> Any:
    """Return a parameter that stays what it was in `fit` if the user's list grows."""
    return copy(value) if isinstance(value, list | dict) else value


class SkestEstimator(
    CachedParameterNames, CallbackSupportMixin, RowReader, FormerArguments
):
    """What the estimators of skest have in common; not for direct use."""

    _former_arguments: ClassVar[Mapping[str, str]] = FORMER_ARGUMENTS

    estimator_: Estimator
    fold_estimators_: Sequence[Any] = ()
    validation_scores_: list[float] | None
    best_validation_score_: float | None
    _scale: TargetScale | None
    # Trained in the end on what was held out, too: anew, or going on.
    _is_refit = _went_on = _has_seen_all = False
    _is_interrupted = False  # by Ctrl-C, in the last training

    # What subclasses define

    @abstractmethod
    def _model_fn(self, head: Any) -> ModelFunction:
        """Return the model function of this estimator."""

    def _bound(self, model_fn: ModelFunction, **given: Any) -> ModelFunction:
        """Return a canned model function with the parameters that it names.

        They are as they were given, or chosen for "auto"; `given` go before.
        """
        # The names are the same on purpose: a parameter is written once, in its group.
        declared = {parameter.name for parameter in fields(self)}
        named = [n for n in inspect.signature(model_fn).parameters if n in declared]
        own = {name: _own_copy(self._chosen(name)) for name in named}
        return partial(model_fn, **own | {"dtype": self._torch_dtype} | given)

    # Training

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        X_val: Any = None,
        y_val: Any = None,
        sample_weight_val: Any = None,
        groups: Any = None,
    ) -> Self:
        """Fit the model.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features), DataFrame or dict of arrays
            Training data. A sparse matrix, also as one entry of a dict, is taken by
            columns that are inferred.
        y : array-like of shape (n_samples,) or (n_samples, n_outputs)
            Target values.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows; a weight of 2 counts like two equal rows.
        X_val, y_val : as `X` and `y`, default=None
            Rows for early stopping, instead of a fraction of the training data.
        sample_weight_val : array-like of shape (n_samples_val,), default=None
            Weights for the validation score.
        groups : array-like of shape (n_samples,), default=None
            Such as the patient of each row. Of the rows to be held out, those of one group
            go together, so that training is judged by groups it has not seen. It takes six
            trainings as constructed, where there are fewer than 1,000 groups. Without
            rows to hold out it changes nothing.

        Returns
        -------
        object
            This estimator. If fitting fails, an earlier fitted state stays as it was.
        """
        # Work on a copy, so that a failure leaves nothing half done.
        trial = self._copy()
        trial._fit(X, y, sample_weight, (X_val, y_val, sample_weight_val), groups)
        self._become(trial)
        return self

    def _copy(self) -> Any:
        """Return a shallow copy; that of `copy` would go through the form for pickle."""
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    __copy__ = _copy

    def _become(self, trial: "SkestEstimator") -> None:
        """Take over the state of a copy that was fitted."""
        self.__dict__ = trial.__dict__  # at once: another thread may be predicting

    @with_callbacks
    def _fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        validation: Sequence[Any],
        groups: Any,
    ) -> None:
        self._validate_params()
        seed = self._seed()
        resume = self.warm_start and self.__sklearn_is_fitted__()
        if resume:
            self._check_resumed()
        rows = self._check_rows(X, y, sample_weight, groups=groups, reset=not resume)
        # Once, in the first fit: who goes on has been told.
        if not resume:
            self._warn_of_unread()
        # Only with the recipe: another training ends where its rows held out say so.
        takes_all = self._has_schedule and self.early_stopping == "auto" and not resume
        takes_all = takes_all and all(v is None for v in validation)
        source = self if resume else whole_source(self)
        self._choose(rows.n_rows, takes_all=takes_all, source=source)
        say = voice(self.verbose)
        if say and self.auto_params_:
            chosen = chosen_table(f"Chosen for {rows.n_rows:,} rows", self._reasons())
            for line in chosen.text().splitlines():
                say(line)
        budget, given = int(self._chosen("max_iter")), (X, y, sample_weight)
        course = Course(budget, seed, given, self.max_steps)
        holds_out = self._chosen("early_stopping") and validation[0] is None
        units = self._units(rows) if holds_out else None
        # Few rows are all held out in turn; of many, one part is enough.
        n_folds = 1
        if takes_all and units is not None:
            n_folds = min(self._n_folds(len(units.first)), len(units.first))
        if units is not None and n_folds > 1:
            fit_by_folds(self, rows, units, n_folds, course)
        else:
            train, held_out = self._split_validation(rows, validation, seed, units)
            can_go_on = course.budget > 1 and self.max_steps != 1
            if takes_all and held_out is not None and can_go_on:
                fit_with_part_held_out(self, train, held_out, rows, course)
            else:
                self._fit_rows(train, held_out, course, resume=resume)
        if self._scale is not None and self._target.is_to_balance:
            balance(self, rows)

    def _fit_rows(
        self,
        rows: Rows,
        held_out: Rows | None,
        course: Course,
        *,
        resume: bool = False,
        again: bool = False,
        calibration: TargetScale | None = None,
    ) -> None:
        """Train on some of the rows.

        `again` in one fit, the columns are those that were chosen for it.
        """
        what = f"Feature columns learn from {rows.n_rows:,} rows"
        with said_if_long(what, self.verbose):
            if not resume:
                self._start(rows, again=again)
                if calibration is not None:
                    self._scale = calibration.after(self._scale)
            rows = self._as_training_rows(rows, course.seed, anew=again)
        self._train(rows, held_out, course, resume=resume)

    def _partial_fit(
        self, X: Any, y: Any, sample_weight: Any, classes: Any = None
    ) -> Self:
        trial = self._copy()
        trial._fit_an_epoch(X, y, sample_weight, classes)
        self._become(trial)
        return self

    @with_callbacks
    def _fit_an_epoch(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> None:
        self._validate_params()
        resume = self.__sklearn_is_fitted__()
        if resume:
            self._check_resumed()
        rows = self._check_rows(X, y, sample_weight, classes, reset=not resume)
        if not resume:
            self._warn_of_few_rows(rows.n_rows)
            self._choose(rows.n_rows, is_whole=False, source=whole_source(self))
        course = Course(None, self._seed(), (X, y, sample_weight), self.max_steps)
        self._fit_rows(rows, None, course, resume=resume)

    def _warn_of_few_rows(self, n_rows: int) -> None:
        infers = self._column_parameters and self._all_inferred()
        if infers and n_rows < _FEWEST_FIRST_ROWS:
            warn(
                f"partial_fit begins with {n_rows} row(s), of which feature columns learn "
                f"scales and levels for all that follow. Begin with {_FEWEST_FIRST_ROWS} "
                "or more, or with fit; or give columns that were fitted on a sample."
            )

    def _check_resumed(self) -> None:
        """Refuse changes of parameters that an earlier fit cannot go on with."""

    def _check_partial_fit(self) -> None:
        """Refuse parameters that need all rows at once."""
        if self.early_stopping is True:
            raise ValueError(
                "Training by parts (partial_fit, train) does not support "
                "early_stopping=True, which needs rows of all parts. Leave it out."
            )

    def _start(self, rows: Rows, *, again: bool = False) -> None:
        """Learn the feature columns and forget an earlier training.

        `again` in one fit, the columns are those that were chosen for it.
        """
        self._fit_columns(rows, again)
        self._forget(rows)

    def _fit_columns(self, rows: Rows, again: bool) -> None:
        with each_once():  # a column may be inferred for two kinds of layers
            for parameter, kind in self._column_parameters.items():
                if again:
                    columns = clone(getattr(self, f"{parameter}_"), safe=False)
                else:
                    columns = self._given_columns(parameter, kind, rows)
                if columns is not None:
                    # Without class weights: of rare levels, those with a rare class would
                    # be frequent, and the vocabulary tell the label.
                    columns = columns._fit(
                        rows.features,
                        rows.labels,
                        rows.sample_weight,
                        # All the few values of one may be among the rows held out.
                        some_may_be_empty=again,
                    )
                    # A network to start from was trained on numbers in its own scale.
                    if self.warm_start_from is not None:
                        columns = with_source_statistics(self, parameter, columns)
                    columns = columns._with_limits(rows.features)
                setattr(self, f"{parameter}_", columns)

    def _as_training_rows(
        self, rows: Rows, seed: int | None, *, anew: bool = True
    ) -> Rows:
        """Return rows to train on, with what columns have learned of labels.

        `anew`, so that each of several trainings meets other numbers; of rows that come
        later, a few at a time, their own labels would say too little.
        """
        labels = rows.labels if anew else None
        beside: dict[Any, Any] = {}
        for parameter in self._column_parameters:
            columns = getattr(self, f"{parameter}_")
            if columns is not None:
                # What a network is trained on is never cut off.
                columns = columns._with_wider_limits(rows.features)
                setattr(self, f"{parameter}_", columns)
                beside |= columns.training_features(
                    rows.features, labels, rows.sample_weight, seed
                )
        return rows._replace(features=rows.features | beside) if beside else rows

    def _forget(self, rows: Rows) -> None:
        """Begin a training, with the scale of its labels."""
        self._has_seen_all = False
        # For an export, which is told of raw columns and has no rows any more.
        names = vars(self).get("feature_names_in_") if self._reads_array else None
        self._input_forms = forms_of(rows.features, names)
        known = None if self.warm_start_from is None else source_scale(self)
        self._scale = self._scale_of(rows, known)
        self.warm_start_report_: WarmStartReport | None = None
        self.loss_curve_: list[float] = []
        self.validation_scores_ = None
        self.best_validation_score_ = None

    def _scale_of(self, rows: Rows, known: TargetScale | None) -> TargetScale | None:
        """Return a known scale of labels, or that of the rows.

        Predictions stay within the range of all labels where the recipe trains, as those
        of RealMLP (arXiv 2407.04491).
        """
        if known is None:
            begins_there = self._begins_at_constant and self.warm_start_from is None
            of = self._target.best_constant if begins_there else self._target.scale
            scale = of(rows.labels, rows.weight)
            if scale is not None and self._dtype_name == "float32":
                scale.warn_of_lost_digits()
        else:
            scale = self._target.widened(known, rows.labels)
        return scale if scale is None or self._has_schedule else scale.unbounded()

    @property
    def _begins_at_constant(self) -> bool:
        """Whether training begins at the best answer that is one for all rows."""
        return False

    def _train(
        self, rows: Rows, held_out: Rows | None, course: Course, *, resume: bool
    ) -> None:
        """Train the network on rows that its columns have learned from."""
        self._is_refit = self._went_on = False
        # The network speaks in the first scale; only the range may grow.
        if resume:
            self._scale = self._scale_of(rows, self._scale)
        budget, seed = course.budget, course.seed
        n_epochs = course.until or budget or 1
        draw_weight = None
        if self.sampling == "weighted":
            # Weights that say how often a row is drawn must not weigh its loss as well.
            draw_weight, rows = rows.weight, rows._replace(weight=None)
        weighted = rows.weight is not None
        batch_size = self._batch_size(rows.n_rows)
        # With as many as were used, the same training can be had again.
        if "batch_size" in self.auto_params_ and budget is not None and not resume:
            self.auto_params_ = {**self.auto_params_, "batch_size": batch_size}
        dataset = ArrayDataset(
            self._training_features(rows),
            rows.labels,
            batch_size=batch_size,
            shuffle=True,
            sampling_weight=draw_weight,
            num_epochs=n_epochs,
            seed=seed,
            first_epoch=self.n_iter_ if resume else 0,
        )
        # The schedule spans the budget also where training ends `until` an epoch
        # before: every epoch has the rate at which it was found to be the best.
        n_steps = None if budget is None else budget * dataset.steps_per_epoch
        # Else the rate would still be high where `max_steps` ends the training.
        if n_steps is not None and course.max_steps is not None:
            n_steps = min(n_steps, course.max_steps)
        self._schedule(
            n_steps,
            self.n_steps_ if resume else 0,
            course.n_cycles,
            fullness=min(1.0, batch_size / self._chosen("batch_size")),
        )
        epochs = EpochHook(
            dataset.rows_per_epoch,
            dataset.batch_size,
            tol=self.tol * self._target.tol_factor(rows.labels, rows.weight),
            n_iter_no_change=self._chosen("n_iter_no_change"),
            ends=self._ends(budget or 1),
            score=None
            if held_out is None
            else LiveScore(
                self._target,
                self._scale,
                held_out,
                self._predict_batch_size,
                weighted,
                course.history,
                # Folds decide together, on any epoch; one part on an end of a cycle.
                self._ends(budget or 1) if course.until is None else None,
            ),
            report=voice(self.verbose),
            n_epochs=n_epochs,
            n_to_follow=course.to_follow,
            # What has seen these rows predicts them better than any epoch will.
            counts_start=not self._has_seen_all,
        )
        if held_out is None:
            self._has_seen_all = True
        with speaking(self.verbose):
            train_core(
                self,
                lambda: dataset,
                epochs,
                course.given,
                seed=seed,
                weighted=weighted,
                resume=resume,
                steps_per_epoch=dataset.steps_per_epoch,
                n_epochs=n_epochs,
                steps=course.max_steps,
            )

    def _training_features(self, rows: Rows) -> TableColumns:
        """Return the features, and what training takes beside them."""
        return rows.with_normalised_weight()

    def _finish(self, estimator: Estimator, epochs: Progress, resume: bool) -> None:
        """Keep what training has learned."""
        self.loss_curve_ = [*self.loss_curve_, *epochs.loss_curve]
        if epochs.scores:
            self.validation_scores_ = [*(self.validation_scores_ or []), *epochs.scores]
        self.best_validation_score_ = epochs.best_score if epochs.scores else None
        self.loss_ = self.loss_curve_[-1] if self.loss_curve_ else float("nan")
        n_before: int = self.n_iter_ if resume else 0
        self.n_iter_: int = n_before + epochs.n_iter
        # Of the state that is kept, which may be that of an epoch before the last.
        checkpoint = estimator.checkpoint
        self.n_steps_ = 0 if checkpoint is None else checkpoint.global_step
        self.model_dir_ = estimator.model_dir
        self.estimator_ = estimator
        self.fold_estimators_ = ()
        # Of use before the first step only: nothing else shall keep the source.
        params = self.get_params(deep=False) | {"warm_start_from": None}
        self._params_in_fit = {name: _own_copy(v) for name, v in params.items()}
        keep_embeddings(self)

    def __getstate__(self) -> dict[str, Any]:
        # Vectors are in the checkpoint already, and a file should not hold them twice.
        slim = self._copy()
        drop_embeddings(slim)
        state = super(SkestEstimator, slim).__getstate__()
        core = state.pop("estimator_", None)
        if core is not None:
            state[_CORE] = {"config": core.config, "checkpoint": core.checkpoint}
        return to_plain(state)

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = from_plain(state)
        core = state.pop(_CORE, None)
        super().__setstate__(state)
        if core is not None:
            # Made anew, so that nothing but data is saved, not even names of functions.
            self.estimator_ = core_as_fitted(self, **core, weighted=False)
            keep_embeddings(self)

    def _seed(self) -> int:
        """Return the seed of this fit, without `random_state` one that nobody knows."""
        if self.random_state is None:
            seed = None if self.config is None else self.config.random_seed
            # A number: what a network draws beside its variables is drawn again later.
            return secrets.randbits(31) if seed is None else seed
        # A RandomState gives another seed to each fit, as scikit-learn's estimators
        # take it.
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    @property
    def _predict_batch_size(self) -> int:
        # Of very many classes a row alone has megabytes of logits.
        return max(1, min(_PREDICT_BATCH_SIZE, _MOST_LOGITS // self._n_logits))

    # Prediction

    def _predict(self, X: Any, keys: Sequence[Any]) -> dict[Any, np.ndarray]:
        """Return some of the head's predictions for all rows."""
        check_is_fitted(self)
        return predictions(self, self._check_features(X, reset=False), keys)

    def predict(self, X: Any) -> Any:
        """Return the prediction for each row, in the form that `y` had in `fit`.

        Parameters
        ----------
        X : array-like, DataFrame or dict of arrays
            Data as in `fit`.

        Returns
        -------
        ndarray of shape (n_samples,) or (n_samples, n_outputs)
            Of a classifier the most probable classes, elements of `classes_`; at a tie
            the first one.
        """
        check_is_fitted(self)
        return self._target.answer(self._predict(X, self._target.answer_keys))

    @former_arguments(
        input_fn="give X and y: an input function is for skest.Estimator, and for 'train'"
    )
    def evaluate(self, X: Any, y: Any, sample_weight: Any = None) -> dict[str, float]:
        """Return all metrics of the head.

        Parameters
        ----------
        X : array-like, DataFrame or dict of arrays
            Data as in `fit`.
        y : array-like
            True values.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows.

        Returns
        -------
        dict of str to float
            For example "accuracy", "auc" and "average_loss" of a binary classifier.
        """
        check_is_fitted(self)
        return evaluation(self, self._check_evaluation_rows(X, y, sample_weight))

    def summary(self) -> str:
        """Return what a person may want to know of the fitted estimator, as text.

        What was chosen for parameters that are "auto", and why; the feature columns with
        what they have learned; layers, parameters and memory. A notebook shows the same
        below the diagram of the estimator.

        Returns
        -------
        str
            To be printed.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.

        Examples
        --------
        >>> from skest import LinearRegressor
        >>> model = LinearRegressor(max_iter=1, tol=1).fit([[0.0], [1.0]], [0.0, 1.0])
        >>> print(model.summary().splitlines()[0])
        LinearRegressor: predicts 1 number
        """
        check_is_fitted(self)
        return summary_text(self)

    def onnx_graph(self) -> Any:
        """Return the fitted model as one ONNX graph, from raw columns to predictions.

        Returns
        -------
        onnx.ModelProto
            Its inputs are the raw columns that the model reads, by name; "" stands for a
            missing string, NaN for a missing number, -1 for a missing integer category.
            Its outputs are the predictions of the head, and "labels" what `predict`
            says of classes. Metadata describe both as JSON, see
            `skest.export.OnnxGraph`. ONNX Runtime runs it without Python.

        Raises
        ------
        ExportError
            If a part of the model cannot be written as ONNX; it is named.
        ImportError
            If onnx is not installed.
        """
        from skest.adapters.export import fitted_onnx  # fit needs none of it

        return fitted_onnx(self).model

    def export(
        self,
        export_dir_base: str | os.PathLike[str],
        *,
        example: Any = None,
        assets: Mapping[str, str | os.PathLike[str]] | None = None,
        verify: bool = True,
        atol: float = 1e-5,
    ) -> Path:
        """Write the fitted model as a new version that runs without Python.

        A version is a directory ``<export_dir_base>/<unix seconds>``, which appears when
        it is complete and tested. It holds ``model.onnx`` (raw values in, predictions
        out), ``warmup.json``, ``assets/``, ``manifest.json`` and, for more than 64 MiB of
        weights, ``weights.bin``. `skest.export.load` runs it.

        Parameters
        ----------
        export_dir_base : str or path
            Directory of the versions; it is made if need be.
        example : DataFrame, dict of columns or list of dicts, default=None
            Rows to test the graph with. They are written into the version, for others to
            test it. Made-up rows by default.
        assets : dict of str to path, default=None
            Files to copy into ``assets/``, by their names there.
        verify : bool, default=True
            Run what was written, and compare it with this estimator.
        atol : float, default=1e-5
            How far its numbers may differ, as a part of them where they are above 1; at
            most 0.01.

        Returns
        -------
        Path
            The directory of the version.

        Raises
        ------
        NotFittedError
            If the estimator is not fitted.
        ExportError
            If a part of the model cannot be written, or what was written does not
            predict what the estimator does. No version appears then.
        ImportError
            If onnx or onnxruntime is missing.
        """
        from skest.adapters.export import export_fitted  # fit needs none of it

        return export_fitted(
            *(self, export_dir_base, example),
            assets=assets or {},
            verify=verify,
            atol=atol,
        )

    def _as_fitted(self) -> Any:
        """Return a copy with the parameters of `fit`, whatever set_params did since."""
        fitted = self._copy()
        fitted.__dict__.update(self._params_in_fit)
        return fitted

    # What scikit-learn asks

    def _html_repr(self) -> str:
        diagram: str = super()._html_repr()
        fitted = self.__sklearn_is_fitted__()
        return diagram + summary_html(self) if fitted else diagram

    def __sklearn_clone__(self) -> Any:
        cloned = super().__sklearn_clone__()
        # A value and no part: an estimator to start from stays fitted.
        cloned.warm_start_from = self.warm_start_from
        return cloned

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "estimator_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # Inferred columns fill gaps; those given say themselves what they take.
        tags.input_tags.allow_nan = self._all_inferred()
        tags.input_tags.sparse = self._takes_sparse()
        return tags


def has_partial_fit(estimator: SkestEstimator) -> bool:
    """Tell whether training can go on with other rows; if not, raise the reason."""
    estimator._check_partial_fit()
    return True
