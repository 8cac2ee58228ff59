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
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import config_context, get_config
from sklearn.base import clone

from skest.core.checks import check_integer
from skest.core.resources import IntraOpThreads
from skest.core.sklearn_compat import safe_indexing
from skest.engine.crew import Crew

_MOST_MEMBERS = 256


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
    n_threads : int, default=None
        Threads to share the work among; None is one, as small networks take more time in
        several, which wait for each other's Python.
    max_members : int, default=None
        Most estimators in training at a time. None goes by the free memory.

    Returns
    -------
    list
        Fitted clones, in the order of `estimators`.

    Raises
    ------
    ValueError
        If an argument is none of the above.

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
    estimators = list(estimators)
    if on_error not in ("raise", "return"):
        raise ValueError(f"'on_error' must be 'raise' or 'return'; got {on_error!r}.")
    if rows is not None and len(rows) != len(estimators):
        raise ValueError(
            f"'rows' must have an entry for each of the {len(estimators)} estimators; "
            f"got {len(rows)}."
        )
    for name, value in (("n_threads", n_threads), ("max_members", max_members)):
        if value is not None:
            check_integer(value, name, "fit_many", minimum=1)
    n_threads = min(n_threads or 1, max(1, len(estimators)))
    rows = [None] * len(estimators) if rows is None else rows
    table = _Table(X, y, sample_weight, rows)
    at_once = max(1, (max_members or table.most_members()) // n_threads)
    deadline = time.monotonic() + (np.inf if time_limit is None else time_limit)
    crews = [Crew(at_once, deadline) for _ in range(n_threads)]
    clones = [clone(estimator) for estimator in estimators]
    fitted: list[Any] = [None] * len(clones)
    config = get_config()  # which every thread has for itself

    def fit(position: int, crew: Crew) -> None:
        try:
            crew.check()
            with config_context(**config), table.part(position) as part:
                fitted[position] = clones[position].fit(**part)
        except BaseException as error:
            fitted[position] = error
            if on_error == "raise" and not isinstance(error, TimeoutError):
                stop(error)

    def stop(error: BaseException) -> None:
        for crew in crews:
            crew.stopped_by = crew.stopped_by or error

    with (
        IntraOpThreads.limited_to(1, wanted=1),
        ThreadPoolExecutor(n_threads) as pool,
    ):
        work = []
        for i, crew in enumerate(crews):
            fits = [partial(fit, j, crew) for j in range(i, len(fitted), n_threads)]
            work.append(pool.submit(copy_context().run, crew.run, fits))
        try:
            wait(work)
        except KeyboardInterrupt as error:
            stop(error)
            wait(work)
    if on_error == "raise" and crews[0].stopped_by is not None:
        raise crews[0].stopped_by
    if any(result is None for result in fitted):
        raise RuntimeError(
            "fit_many has not come to its end, because no more threads can be started. "
            f"Lower 'max_members', which is {at_once * n_threads}."
        )
    return fitted


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
        self._rows = [None if r is None else np.asarray(r) for r in rows]
        self._keys = [None if r is None else _digest(r) for r in self._rows]
        self._n_left = Counter(self._keys)
        self._parts: dict[Any, dict[str, Any]] = {}
        self._lock = Lock()

    @contextmanager
    def part(self, position: int) -> Iterator[dict[str, Any]]:
        """Return the rows of an estimator, which are kept while others need them."""
        rows, key = self._rows[position], self._keys[position]
        with self._lock:
            if key not in self._parts:
                taken = self._data
                if rows is not None:
                    taken = {k: _indexed(data, rows) for k, data in taken.items()}
                self._parts[key] = taken
            part = self._parts[key]
        try:
            yield part
        finally:
            with self._lock:
                self._n_left[key] -= 1
                if not self._n_left[key]:
                    del self._parts[key]

    def most_members(self) -> int:
        """Return how many trainings the free memory has a place for."""
        columns = self._data["X"]
        columns = columns.values() if isinstance(columns, Mapping) else [columns]
        n_bytes = sum(_n_bytes(column) for column in columns)
        return max(
            1, min(_MOST_MEMBERS, int(_free_memory() / 2 / (4 * n_bytes + 2**22)))
        )


def _n_bytes(data: Any) -> int:
    if hasattr(data, "memory_usage"):
        return int(np.sum(data.memory_usage(deep=False)))
    return int(getattr(data, "nbytes", 8 * np.size(data)))


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
