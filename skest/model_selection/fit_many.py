# SPDX-License-Identifier: Apache-2.0
"""`fit_many`: many estimators fitted on parts of one table, in several processes."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_consistent_length
from sklearn.utils.parallel import delayed
from sklearn.utils.validation import _num_samples

from skest.core.checks import check_positive, each_once
from skest.core.console import Named, raising_on_interrupt
from skest.core.sklearn_compat import safe_indexing
from skest.model_selection.tasks import each_result, in_time


def fit_many(
    estimators: Sequence[Any],
    X: Any,
    y: Any,
    *,
    rows: Sequence[Any] | None = None,
    sample_weight: Any = None,
    on_error: str = "raise",
    time_limit: float | None = None,
    n_jobs: int | None = None,
) -> list[Any]:
    """Fit many estimators on a table, or on parts of it.

    Parameters
    ----------
    estimators : sequence of estimators
        They stay as they are; clones are fitted.
    X : array-like of shape (n_samples, n_features), DataFrame or dict of arrays
        Training data of all.
    y : array-like of shape (n_samples,) or (n_samples, n_outputs), or dict of arrays
        Target values.
    rows : sequence of array-like of int, default=None
        For each estimator the rows to fit it on. None takes all.
    sample_weight : array-like of shape (n_samples,), default=None
        Weights of all rows.
    on_error : {"raise", "return"}, default="raise"
        What becomes of an error: it is raised, or returned in the place of the estimator,
        and the others are fitted. So does Ctrl-C with what is not fitted by then.
    time_limit : float, seconds, default=None
        What is not fitted by then has a TimeoutError in its place, whatever `on_error` is.
        A training ends with its epoch.
    n_jobs : int, default=None
        Processes, as in scikit-learn: None is one, unless there is a
        `joblib.parallel_config`; -1 is one for each core.

    Returns
    -------
    list
        Fitted clones, in the order of `estimators`.

    Raises
    ------
    ValueError
        If an argument is none of the above, or the table has no such rows.

    Notes
    -----
    Lines about epochs, of estimators that have `verbose`, begin with the number of the
    estimator.

    Examples
    --------
    >>> import numpy as np
    >>> from skest import DNNRegressor
    >>> from skest.model_selection import fit_many
    >>> X = np.linspace(-1, 1, 100).reshape(-1, 1)
    >>> rates = [0.1, 0.01, 0.001]
    >>> candidates = [
    ...     DNNRegressor((8,), learning_rate=rate, max_iter=5, random_state=0)
    ...     for rate in rates
    ... ]
    >>> fitted = fit_many(candidates, X, X[:, 0] ** 2)
    >>> [model.learning_rate for model in fitted] == rates
    True
    """
    if hasattr(estimators, "fit"):
        raise TypeError(
            "'estimators' must be a sequence of estimators; got one, a "
            f"{type(estimators).__name__}. Put it into a list, or call its fit."
        )
    # Here, for errors of constructors, and once: workers get what is to be fitted.
    clones = [clone(estimator) for estimator in estimators]
    if on_error not in ("raise", "return"):
        raise ValueError(f"'on_error' must be 'raise' or 'return'; got {on_error!r}.")
    if time_limit is not None:
        check_positive(time_limit, "time_limit", "fit_many")
    data = {"X": X, "y": y}
    if sample_weight is not None:
        data["sample_weight"] = sample_weight
    own_rows = [None] * len(clones) if rows is None else _checked_rows(rows, data)
    if len(own_rows) != len(clones):
        raise ValueError(
            f"'rows' must have an entry for each of the {len(clones)} estimators; "
            f"got {len(own_rows)}."
        )
    # The clock that all processes share; each looks at it by itself.
    end = np.inf if time_limit is None else time.time() + time_limit
    # Each fit by itself, and in processes: to take steps of several networks together
    # gained a tenth at best, and threads took longer than one.
    calls = [
        delayed(in_time)(
            partial(_fit, model, data, own, on_error),
            Named(f"Model {i} of {len(clones)}: ", end),
        )
        for i, (model, own) in enumerate(zip(clones, own_rows, strict=True), 1)
    ]
    fitted: list[Any] = []
    try:
        with each_once(), raising_on_interrupt():
            for result in each_result(calls, n_jobs):
                if result is None:
                    result = TimeoutError("time_limit was over before this was fitted.")
                fitted.append(result)  # one by one, for Ctrl-C leaves what is done
    except KeyboardInterrupt as error:
        if on_error == "raise":
            raise
        fitted += [error] * (len(clones) - len(fitted))
    return fitted


def _fit(estimator: Any, data: Mapping[str, Any], rows: Any, on_error: str) -> Any:
    """Fit an estimator on some rows; return it, or an error."""
    try:
        if rows is not None:
            data = {name: _indexed(values, rows) for name, values in data.items()}
        return estimator.fit(**data)
    # Returned, so that the other processes go on.
    except Exception as error:
        if on_error == "raise":
            raise
        return error


def _indexed(data: Any, rows: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: safe_indexing(values, rows) for key, values in data.items()}
    return safe_indexing(data, rows)


def _checked_rows(rows: Sequence[Any], data: Mapping[str, Any]) -> list[Any]:
    """Return row numbers as arrays; rows that are not there are refused."""
    parts = [v.values() if isinstance(v, Mapping) else [v] for v in data.values()]
    check_consistent_length(*(column for part in parts for column in part))
    # Of the first column, or of the table itself.
    n_rows = _num_samples(next(iter(parts[0])))
    found: list[Any] = []
    for i, own in enumerate(rows):
        if own is not None:
            own = np.asarray(own)
            if own.ndim != 1 or own.dtype.kind not in "iu" or not own.size:
                raise ValueError(
                    "'rows' must be an array of numbers of rows for each estimator; got "
                    f"rows[{i}] of type {own.dtype} and shape {own.shape}. Of a mask give "
                    "np.flatnonzero(mask)."
                )
            if own.min() < 0 or own.max() >= n_rows:
                wrong = own[(own < 0) | (own >= n_rows)][0]
                raise ValueError(
                    f"rows[{i}] has row {wrong}, but the table has {n_rows:,} rows, "
                    f"numbered from 0 to {n_rows - 1}."
                )
        found.append(own)
    return found
