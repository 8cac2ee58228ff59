# SPDX-License-Identifier: Apache-2.0
"""Few rows, held out in turn: a network for each fold, and one for all.

Every fold has columns and a network of its own, trained on the other folds and kept as it
was when it did best on this one. The mean of such networks predicts better than a single
one that has seen all rows; it is the "k-fold bagging" of AutoGluon (arXiv 2003.06505).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from skest.adapters.features import WEIGHT_KEY, Rows
from skest.adapters.fit import bound_model_fn, core_as_fitted
from skest.adapters.held_out import Course, end_of_cycle, train_on_all
from skest.adapters.repeated_rows import Units
from skest.adapters.targets.base import Scored, TargetScale
from skest.canned.dnn import mean_logits
from skest.core.console import voice
from skest.core.random import seed_sequence
from skest.core.resources import IntraOpThreads
from skest.engine.evaluation import as_arrays
from skest.engine.model import pure_model_fn
from skest.estimators.estimator import Estimator
from skest.heads.base import Head
from skest.inputs.array_dataset import ArrayDataset
from skest.spec import EstimatorSpec

# Key of the mean of the logits, beside the raw features.
_LOGITS_KEY = "__logits__"


def fit_by_folds(
    model: Any, rows: Rows, units: Units, n_folds: int, course: Course
) -> None:
    """Train a network for each fold, and one on all rows, as far as was best there."""
    model._start(rows)
    fold = fold_of_rows(
        np.zeros(len(units.first), np.intp) if units.strata is None else units.strata,
        n_folds,
        int(seed_sequence(course.seed).generate_state(1)[0]),
    )[units.of_rows]
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


def predictions(
    model: Any,
    features: Any,
    keys: Sequence[Any] | None = None,
    core_of: Callable[[Any], Estimator] = attrgetter("estimator_"),
) -> dict[Any, np.ndarray]:
    """Return the predictions of a fitted estimator, and of those of its folds with it.

    Parameters
    ----------
    model : SkestEstimator
        Fitted.
    features : TableColumns
        Raw, and checked.
    keys : sequence or None
        Predictions of the head that are wanted; None is all.
    core_of : callable
        Gives the core that computes for an estimator.
    """
    if not model.fold_estimators_:
        size = model._predict_batch_size
        return core_of(model).predict_table(features, keys, batch_size=size)
    # Several threads that wait for each other take milliseconds for a row.
    with IntraOpThreads.limited_to(1, wanted="auto"):
        logits = _mean_logits(model, features, core_of)
        return as_arrays(model._target.head(None).predictions(logits, keys), keys)


def balance(model: Any, rows: Rows) -> None:
    """Let the predictions for the rows of a fit have the mean of their labels.

    A generalised linear model with the canonical link has it by itself; a network whose
    training ends early hasn't, and totals of its rare counts were 10 % off (Wüthrich, "Bias
    regularization in neural network models for general insurance pricing", 2020).
    """
    found = predictions(model, rows.features, model._target.validation_keys)
    shift = model._target.balance(Scored(found, rows.labels, rows.weight))
    for member in (model, *model.fold_estimators_):
        member._scale = shift.after(member._scale)
        model_fn = bound_model_fn(member, weighted=rows.weight is not None)
        core = Estimator(model_fn, config=member.estimator_.config)
        core._store = member.estimator_._store
        member.estimator_ = core


def _mean_logits(
    model: Any, features: Any, core_of: Callable[[Any], Estimator]
) -> Tensor:
    """Return the logits that stand for the mean of the predictions of all."""
    keys, size = model._target.validation_keys, model._predict_batch_size
    each = []
    for member in (model, *model.fold_estimators_):
        found = core_of(member).predict_table(features, keys, batch_size=size)
        # Of several heads, as their logits lie in the network.
        each.append(np.concatenate([found[key] for key in keys], axis=-1))
    return mean_logits(model._target.head(None), torch.from_numpy(np.stack(each)))


def evaluation(model: Any, rows: Rows) -> dict[str, float]:
    """Return the metrics of a fitted estimator; with its folds, those of their mean."""
    core, weighted = model.estimator_, rows.weight is not None
    features = rows.with_normalised_weight()
    if model.fold_estimators_:
        logits = _mean_logits(model, rows.features, attrgetter("estimator_"))
        features = features | {_LOGITS_KEY: logits.numpy()}
        head = model._target.head(WEIGHT_KEY if weighted else None)
        # Nothing is left to compute but the metrics, and nothing to write.
        config = core.config.replace(model_dir=None, device="cpu")
        evaluator = Estimator(partial(_given_logits, head=head), config=config)
        evaluator.checkpoint = replace(core.checkpoint, variables={}, optimizer={})
    else:
        # Another core, for the head has a weight column only if there are weights.
        evaluator = core_as_fitted(model, core.config, core.checkpoint, weighted)
    size = model._predict_batch_size
    dataset = ArrayDataset(features, rows.labels, batch_size=size)
    return evaluator.evaluate(lambda: dataset)


@pure_model_fn
def _given_logits(
    features: Any, labels: Any, mode: str, *, head: Head
) -> EstimatorSpec:
    """Return a model whose logits are among the features."""
    spec = head.create_estimator_spec(
        features, mode, _GivenLogits(), labels, encode=lambda _: {}
    )
    own: Any = spec.encode

    def encode(features: Any) -> dict[str, Any]:
        # A `loss_fn` that takes features is not to see the logits among them.
        others = {k: column for k, column in features.items() if k != _LOGITS_KEY}
        return {**own(others), _LOGITS_KEY: torch.as_tensor(features[_LOGITS_KEY])}

    return replace(spec, encode=encode)


class _GivenLogits(nn.Module):
    def forward(self, features: dict[str, Tensor]) -> Tensor:
        return features[_LOGITS_KEY]
