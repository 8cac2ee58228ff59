# SPDX-License-Identifier: Apache-2.0
"""`fit_many`: many estimators fitted on one table, each as if it were alone."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
from joblib import effective_n_jobs
from numpy.typing import NDArray
from sklearn import config_context, get_config
from sklearn.base import clone
from sklearn.utils.parallel import Parallel, delayed

from skest.core.checks import check_integer, each_once
from skest.core.console import Listener, Named, heard_by, listener
from skest.core.resources import IntraOpThreads
from skest.core.sklearn_compat import safe_indexing
from skest.engine.crew import Crew

_MOST_MEMBERS = 256
_PARTS_OF_A_PROCESS = 4


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
    max_members: int | None = None,
) -> list[Any]:
    """Fit many estimators on a table, or on parts of it.

    Each is fitted as by its own ``fit``, with the same result: bit for bit where products
    of matrices, one by one and in a batch, round alike. But those whose training steps
    are the same operations take them together, whatever their rates, penalties, seeds
    and rows.

    Parameters
    ----------
    estimators : sequence of estimators
        They stay as they are; clones are fitted. Those that cannot be trained with
        others are fitted alone, and a line of the log says why.
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
    n_jobs : int, default=None
        Processes to share the work among, as in scikit-learn: None is one, unless there is
        a `joblib.parallel_config`; -1 is one for each core. (Threads would not help: small
        networks spend too much of their time in Python, where only one thread can be.)
    max_members : int, default=None
        Most estimators in training at a time. None goes by the free memory.

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
    estimators = list(estimators)
    rows = rows if rows is None else list(rows)
    if on_error not in ("raise", "return"):
        raise ValueError(f"'on_error' must be 'raise' or 'return'; got {on_error!r}.")
    if rows is not None and len(rows) != len(estimators):
        raise ValueError(
            f"'rows' must have an entry for each of the {len(estimators)} estimators; "
            f"got {len(rows)}."
        )
    if max_members is not None:
        check_integer(max_members, "max_members", "fit_many", minimum=1)
    n_jobs = max(1, min(effective_n_jobs(n_jobs), len(estimators)))
    rows = [None] * len(estimators) if rows is None else _checked_rows(rows, X)
    deadline = time.monotonic() + (np.inf if time_limit is None else time_limit)
    at_once = max(1, (max_members or _most_members(X)) // n_jobs)
    clones = [clone(estimator) for estimator in estimators]
    heard = listener()
    listeners: list[Listener] = [
        heard or Named(f"Model {i} of {len(clones)}: ")
        for i in range(1, 1 + len(clones))
    ]
    fit = partial(_fit_here, at_once=at_once, deadline=deadline, on_error=on_error)
    if n_jobs == 1:
        return fit(clones, listeners, _Table(X, y, sample_weight, rows))
    if heard is not None:  # here, and not in other processes
        listeners = [Listener()] * len(clones)
    # Neighbours are alike as a rule, and some parts take longer than others.
    n_members = -(-len(clones) // (_PARTS_OF_A_PROCESS * n_jobs))
    parts = [slice(i, i + n_members) for i in range(0, len(clones), n_members)]
    results = Parallel(n_jobs, return_as="generator")(
        delayed(fit)(
            clones[part], listeners[part], _Table(X, y, sample_weight, rows[part])
        )
        for part in parts
    )
    fitted: list[Any] = []
    try:
        for result in results:
            fitted += result
            if heard is not None:
                heard.fitted(len(result))
    except KeyboardInterrupt as error:
        if on_error == "raise":
            raise
        fitted += [error] * (len(clones) - len(fitted))
    return fitted


def _fit_here(
    clones: Sequence[Any],
    listeners: Sequence[Listener],
    table: "_Table",
    *,
    at_once: int,
    deadline: float,
    on_error: str,
) -> list[Any]:
    """Fit estimators in this process."""
    crew = Crew(at_once, deadline)
    fitted: list[Any] = [None] * len(clones)
    config = get_config()  # which every thread has for itself

    def fit(position: int) -> None:
        try:
            crew.check()
            with (
                config_context(**config),
                heard_by(listeners[position]),
                table.part(position) as part,
            ):
                fitted[position] = clones[position].fit(**part)
        except BaseException as error:
            fitted[position] = error
            if on_error == "raise" and not isinstance(error, TimeoutError):
                crew.stopped_by = crew.stopped_by or error
        if not isinstance(fitted[position], TimeoutError | KeyboardInterrupt):
            listeners[position].fitted(1)

    # In a thread of its own, for Ctrl-C comes to this one.
    with (
        each_once(),
        IntraOpThreads.limited_to(1, wanted=1),
        ThreadPoolExecutor(1) as pool,
    ):
        fits = [partial(fit, position) for position in range(len(clones))]
        work = pool.submit(copy_context().run, crew.run, fits)
        try:
            wait([work])
        except KeyboardInterrupt as error:
            crew.stopped_by = crew.stopped_by or error
            wait([work])
    if on_error == "raise" and crew.stopped_by is not None:
        raise crew.stopped_by
    if any(result is None for result in fitted):
        raise RuntimeError(
            "fit_many has not come to its end, because no more threads can be started. "
            f"Lower 'max_members', which is {at_once}."
        )
    return fitted


def _checked_rows(rows: Sequence[Any], X: Any) -> list[Any]:
    """Return row numbers as arrays; rows that are not there are refused."""
    columns = X.values() if isinstance(X, Mapping) else [X]
    n_rows = min(c.shape[0] if hasattr(c, "shape") else len(c) for c in columns)
    found: list[Any] = []
    for i, own in enumerate(rows):
        if own is not None:
            own = np.asarray(own)
            if own.ndim != 1 or own.dtype.kind not in "iu" or not own.size:
                raise ValueError(
                    f"'rows' must have, for each estimator, the numbers of some rows; got "
                    f"rows[{i}] of type {own.dtype} and shape {own.shape}. Of a mask give "
                    "np.flatnonzero(mask)."
                )
            if own.min() < -n_rows or own.max() >= n_rows:
                wrong = own[(own < -n_rows) | (own >= n_rows)][0]
                raise ValueError(
                    f"rows[{i}] has row {wrong}, but the table has {n_rows:,} rows, "
                    f"numbered from 0 to {n_rows - 1}."
                )
        found.append(own)
    return found


class _Table:
    """The rows that estimators are fitted on; those that are equal are taken once.

    Parameters
    ----------
    X, y, sample_weight, rows
        See `fit_many`.
    """

    def __init__(self, X: Any, y: Any, sample_weight: Any, rows: Sequence[Any]) -> None:
        self._data = {"X": X, "y": y}
        if sample_weight is not None:
            self._data["sample_weight"] = sample_weight
        self._rows = rows
        self._keys = [None if r is None else _digest(r) for r in rows]
        self._n_left = Counter(self._keys)
        self._parts: dict[Any, dict[str, Any]] = {}

    @contextmanager
    def part(self, position: int) -> Iterator[dict[str, Any]]:
        """Return the rows of an estimator, which are kept while others need them."""
        rows, key = self._rows[position], self._keys[position]
        if key not in self._parts:
            taken = self._data
            if rows is not None:
                taken = {k: _indexed(data, rows) for k, data in taken.items()}
            self._parts[key] = taken
        try:
            yield self._parts[key]
        finally:
            self._n_left[key] -= 1
            if not self._n_left[key]:
                del self._parts[key]


def _most_members(X: Any) -> int:
    """Return how many trainings the free memory has a place for."""
    columns = X.values() if isinstance(X, Mapping) else [X]
    n_bytes = sum(map(_n_bytes, columns))
    return max(1, min(_MOST_MEMBERS, int(_free_memory() / 2 / (4 * n_bytes + 2**22))))


def _n_bytes(data: Any) -> int:
    if hasattr(data, "memory_usage"):
        return int(np.sum(data.memory_usage(deep=False)))
    n_bytes = getattr(data, "nbytes", None)
    return int(np.asarray(data).nbytes if n_bytes is None else n_bytes)


def _free_memory() -> float:
    try:
        with open("/proc/meminfo") as file:
            lines = dict(line.split(":", 1) for line in file)
        return 1024 * float(lines["MemAvailable"].split()[0])
    except (OSError, KeyError):
        return 2.0**32


def _digest(rows: NDArray[Any]) -> bytes:
    return blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=16).digest()


def _indexed(data: Any, rows: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: safe_indexing(values, rows) for key, values in data.items()}
    return safe_indexing(data, rows)
