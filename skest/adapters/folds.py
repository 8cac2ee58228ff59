# SPDX-License-Identifier: Apache-2.0
"""The best epoch of a training on few rows, by trainings that each leave out a part."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_epoch", "fold_of_rows"]


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
    order = order[np.argsort(strata[order], kind="stable")]
    fold = np.empty(len(strata), dtype=np.intp)
    fold[order] = np.arange(len(strata)) % n_folds
    return fold


def best_epoch(scores: NDArray[np.floating], ends: Sequence[int]) -> int:
    """Return how many epochs to train, by the scores of folds after each epoch.

    Those with the best mean score, or the fewest after which a cycle of the schedule ends
    and the mean score is within one standard error of the best.

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
    error = scores[:, best].std(ddof=1) / len(scores) ** 0.5
    good = [e for e in ends if e <= best and mean[e - 1] >= mean[best] - error]
    return min(good, default=best + 1)
