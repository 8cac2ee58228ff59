# SPDX-License-Identifier: Apache-2.0
"""`fit_many`: fit a list of estimators on rows of one table."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from skest.core.interrupts import raising_on_interrupt
from skest.core.sklearn_compat import safe_indexing


def fit_many(
    estimators: Sequence[Any],
    X: Any,
    y: Any,
    *,
    rows: Sequence[Any] | None = None,
    sample_weight: Any = None,
    on_error: str = "raise",
    time_limit: float | None = None,
    n_threads: int | None = None,
    max_members: int | None = None,
) -> list[Any]:
    """Fit a list of estimators, each as if it were fitted alone.

    Parameters
    ----------
    estimators : sequence of estimators
        They stay as they are; clones are fitted.
    X, y : table and labels
        As for ``fit`` of the estimators.
    rows : sequence of array of int, default=None
        For each estimator the rows that it is fitted on; None takes all.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of all rows.
    on_error : {"raise", "return"}, default="raise"
        Whether an error ends the call, or stands in the list in place of the estimator.
        "return" also puts a KeyboardInterrupt in the place of what Ctrl-C prevents.
    time_limit : float, default=None
        Seconds. A TimeoutError stands in the place of what isn't done by then.
    n_threads : int, default=None
        How many threads train; None leaves it to the function.
    max_members : int, default=None
        How many train in one stack at most; None goes by the free memory.

    Returns
    -------
    list of estimators
        Fitted, in the order of `estimators`.

    Examples
    --------
    >>> import numpy as np
    >>> from skest import LinearClassifier
    >>> from skest.model_selection import fit_many
    >>> X = np.arange(8.0).reshape(-1, 1)
    >>> models = [LinearClassifier(max_iter=n, random_state=0) for n in (1, 2)]
    >>> [model.n_iter_ for model in fit_many(models, X, X[:, 0] > 3)]
    [1, 2]
    """
    if on_error not in ("raise", "return"):
        raise ValueError(f"'on_error' must be 'raise' or 'return'; got {on_error!r}.")
    end = np.inf if time_limit is None else time.monotonic() + time_limit
    parts = [None] * len(estimators) if rows is None else rows
    fitted: list[Any] = []
    stop: BaseException | None = None
    with raising_on_interrupt():
        for estimator, part in zip(estimators, parts, strict=True):
            if stop is None and time.monotonic() > end:
                stop = TimeoutError(f"time_limit={time_limit} is over.")
            try:
                if stop is None:
                    given = [X, y, *([] if sample_weight is None else [sample_weight])]
                    if part is not None:
                        given = [
                            safe_indexing(value, np.asarray(part)) for value in given
                        ]
                    fitted.append(clone(estimator).fit(*given))
            except KeyboardInterrupt as error:
                if on_error == "raise":
                    raise
                stop = error
            except Exception as error:
                if on_error == "raise":
                    raise
                fitted.append(error)
            if stop is not None:
                fitted.append(stop)
    return fitted
