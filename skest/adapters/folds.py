# SPDX-License-Identifier: Apache-2.0
"""Few rows, held out in turn: a network for each fold, and one for all.

Every fold has columns and a network of its own, trained on the other folds and kept as it
was when it did best on this one. The mean of such networks predicts better than a single
one that has seen all rows; it is the "k-fold bagging" of AutoGluon (arXiv 2003.06505).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skest.adapters.features import Rows
from skest.adapters.fit import core_as_fitted
from skest.adapters.held_out import Course, end_of_cycle, train_on_all
from skest.adapters.target_scale import TargetScale
from skest.adapters.targets.base import Scored
from skest.core.console import voice
from skest.core.random import seed_sequence


def fit_by_folds(model: Any, rows: Rows, n_folds: int, course: Course) -> None:
    """Train a network for each fold, and one on all rows, as far as was best there."""
    model._start(rows)
    strata = model._strata(rows.labels)
    fold = fold_of_rows(
        np.zeros(rows.n_rows, np.intp) if strata is None else strata,
        n_folds,
        int(seed_sequence(course.seed).generate_state(1)[0]),
    )
    say = voice(model.verbose)
    trials: list[Any] = []
    curves: list[list[float]] = []
    histories: list[list[Any]] = []
    until = course.budget  # no mean is taken behind the shortest curve
    for k in range(n_folds):
        if say:
            say(f"Fold {k + 1} of {n_folds} is held out")
        trial = model._copy()
        if model.config is not None:
            # The training on all rows alone leaves checkpoints and summaries.
            trial.config = model.config.replace(model_dir=None)
        train, held_out = (rows.take(np.flatnonzero(p)) for p in (fold != k, fold == k))
        histories.append([])
        of_fold = course._replace(
            given=None,
            until=until,
            to_follow=(n_folds - k) * until,
            history=histories[-1],
        )
        trial._fit_rows(train, held_out, of_fold, again=True)
        scores = trial.validation_scores_
        # What the fold has learned is better than nothing: it becomes the model.
        if trial._is_interrupted or not scores:
            trial.config = model.config
            model._become(trial)
            model.fold_estimators_ = [_to_predict_with(done, None) for done in trials]
            return
        until = min(until, len(scores))
        curves.append(scores)
        trials.append(trial)
    by_fold = np.array([curve[:until] for curve in curves])
    epoch = best_epoch(by_fold, trial._ends(course.budget))
    calibration = _calibration_by_folds(
        model, rows, fold, [history[epoch - 1] for history in histories]
    )
    whole = course._replace(until=epoch)
    best = float(by_fold[:, epoch - 1].mean())
    train_on_all(model, rows, whole, calibration, by_fold.mean(axis=0).tolist(), best)
    model.fold_estimators_ = [_to_predict_with(trial, calibration) for trial in trials]


def _to_predict_with(trial: Any, calibration: TargetScale | None) -> Any:
    """Return the estimator of a fold, calibrated and without what training needs."""
    if calibration is not None:
        trial._scale = calibration.after(trial._scale)
    core = trial.estimator_
    checkpoint = replace(core.checkpoint, optimizer={}, scalars={})
    trial.estimator_ = core_as_fitted(trial, core.config, checkpoint, weighted=False)
    # What scikit-learn takes back from the model when its fit has ended: here it would
    # stay, and a fitted pipeline be saved with its callbacks.
    for name in ("_skl_callbacks", "_parent_callback_ctx"):
        vars(trial).pop(name, None)
    return trial


def _calibration_by_folds(
    model: Any, rows: Rows, fold: NDArray[np.integer], predictions: Sequence[Any]
) -> TargetScale | None:
    """Return the calibration that the predictions for all rows held out ask for."""
    # Fold by fold, as the predictions come.
    rows = rows.take(np.argsort(fold, kind="stable"))
    joined = {k: np.concatenate([p[k] for p in predictions]) for k in predictions[0]}
    return model._target.calibration(Scored(joined, rows.labels, rows.weight))


def fold_of_rows(
    strata: NDArray[np.integer], n_folds: int, seed: int
) -> NDArray[np.integer]:
    """Return in which fold each row is held out, drawn with the strata dealt out evenly.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.adapters.folds import fold_of_rows
    >>> strata = np.repeat([0, 1], [4, 2])
    >>> fold = fold_of_rows(strata, 2, seed=0)
    >>> [np.bincount(strata[fold == k]).tolist() for k in (0, 1)]
    [[2, 1], [2, 1]]
    """
    order = np.random.default_rng(seed).permutation(len(strata))
    # A stable sort keeps the order drawn within a stratum; dealt out like cards, no two
    # folds differ by more than one of its rows.
    order = order[np.argsort(strata[order], kind="stable")]
    fold = np.empty(len(strata), dtype=np.intp)
    fold[order] = np.arange(len(strata)) % n_folds
    return fold


def best_epoch(scores: NDArray[np.floating], ends: Sequence[int]) -> int:
    """Return how many epochs to train, by the scores of folds after each epoch.

    The fewest after which a cycle of the schedule ends and the mean score is within one
    standard error of the best; or else those to the end of the cycle with the best.

    Parameters
    ----------
    scores : ndarray of shape (n_folds, n_epochs)
        Higher is better.
    ends : sequence of int
        Epochs with which the cycles end.

    Notes
    -----
    The rule of one standard error is from Breiman et al., "Classification and Regression
    Trees" (1984, section 3.4.3): of models that few rows cannot tell apart, the simplest.

    Examples
    --------
    >>> import numpy as np
    >>> from skest.adapters.folds import best_epoch
    >>> scores = np.array([[0.1, 0.60, 0.62, 0.65], [0.1, 0.71, 0.75, 0.75]])
    >>> best_epoch(scores, ends=[1, 2, 4]), best_epoch(scores, ends=[1])
    (2, 4)
    """
    mean = scores.mean(axis=0)
    best = int(mean.argmax())
    # The standard error of the mean over the folds.
    error = scores[:, best].std(ddof=1) / len(scores) ** 0.5
    good = [e for e in ends if e <= best and mean[e - 1] >= mean[best] - error]
    return min(good, default=end_of_cycle(best + 1, ends, len(mean)))
