# SPDX-License-Identifier: Apache-2.0
"""`Together`: the fits of a search, cross-validation or ensemble of scikit-learn, at once.

scikit-learn hands its fits to joblib as tasks. This backend of joblib waits until all are
there, trains the estimators of skest among them with `fit_many`, and then runs the tasks,
which find their estimators fitted: splits, scores, errors and times stay scikit-learn's.
"""

import copy
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, NamedTuple

import joblib
import numpy as np
from joblib.parallel import ParallelBackendBase, get_active_backend
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils.parallel import Parallel

from skest.adapters.base import SkestEstimator
from skest.core.console import Listener, heard_by, raising_on_interrupt
from skest.core.sklearn_compat import safe_indexing
from skest.model_selection.fit_many import fit_many
from skest.model_selection.progress import UNFINISHED, SearchProgress

_logger = logging.getLogger("skest")

_ALL = 100_000  # tasks that may wait; joblib computes with no numbers above 1e6
_FIRST = 8  # candidates, one if time is limited; as many again, and so on
_MOST_CELLS = 2**25  # of tables that are put together: 256 MiB
_FIT = {"estimator", "X", "y", "fit_params"}


class Task:
    """A call of scikit-learn that fits an estimator, and may score it or predict.

    Parameters
    ----------
    batch : callable
        What joblib submits.
    callback : callable
        To be told that the call has ended.
    """

    def __init__(self, batch: Any, callback: Callable[..., Any]) -> None:
        ((self._call, args, kwargs),) = batch.items
        self._bound = inspect.signature(self._call).bind(*args, **kwargs)
        self.given: dict[str, Any] = self._bound.arguments
        self.callback = callback
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What the candidate sets."""
        return self.given.get("parameters") or {}

    def prepare(self) -> str:
        """Set the parameters; return why `fit_many` is not to fit it, or nothing."""
        if not set(self.given) >= _FIT:
            return "they are no fits"
        self.estimator = clone(self.given["estimator"])
        self.estimator.set_params(**clone(dict(self.parameters), safe=False))
        self.final, self.name = self.estimator, ""
        if isinstance(self.estimator, Pipeline):
            self.name, self.final = self.estimator.steps[-1]
            if self.estimator.transform_input is not None:
                return "a pipeline has 'transform_input'"
        if not isinstance(self.final, SkestEstimator):
            return f"{type(self.final).__name__} is no estimator of skest"
        seen_by = (self.given.get("caller"), self.given["estimator"], self.final)
        if any(hasattr(owner, "_skl_callbacks") for owner in seen_by):
            return "callbacks see a fit as a part of the search"
        prefix = self.name and f"{self.name}__"
        fit_params = self.given["fit_params"] or {}
        fit_params = {k: v for k, v in fit_params.items() if v is not None}
        self.sample_weight = fit_params.pop(f"{prefix}sample_weight", None)
        return f"fit is given {', '.join(map(repr, fit_params))}" if fit_params else ""

    @property
    def rows(self) -> Any:
        """The rows to fit on, by number; None are all."""
        rows = self.given.get("train")
        if rows is None:
            return None
        rows = np.asarray(rows)
        return np.flatnonzero(rows) if rows.dtype == bool else rows

    def values(self, counts: Callable[[str], bool]) -> Any:
        """Return some of the parameters of the candidate, to compare.

        By identity: a grid gives the same objects to all its candidates.
        """
        # By identity: a grid hands out the same objects, of which some have no hash and
        # no truth value of an equality.
        return frozenset((k, id(v)) for k, v in self.parameters.items() if counts(k))

    @property
    def data(self) -> Any:
        """What tasks share that are fitted on one table; None is that of the call."""
        if not self.name or len(self.estimator.steps) == 1:
            return None
        last = (self.name, f"{self.name}__")
        own = self.values(lambda k: k != last[0] and not k.startswith(last[1]))
        return own, id(self.given.get("train"))

    def run(self, fitted: Any, seconds: float, steps: Sequence[Any] = ()) -> None:
        """Run the call; its estimator was fitted, in so many seconds, or raised an error.

        `steps` are the fitted ones before it in a pipeline.
        """
        failed = isinstance(fitted, Exception)
        estimator = self.estimator
        if failed and self.parameters:
            fitted.add_note(f"Candidate: {dict(self.parameters)}")
        elif not failed and self.name:
            estimator.steps = [*steps, (self.name, fitted)]
        elif not failed:
            estimator = fitted

        def fit(*args: Any, **kwargs: Any) -> Any:
            if failed:
                raise fitted
            return estimator

        self.given["estimator"] = estimator
        # `_fit_and_score` of scikit-learn sets the parameters and fits; both are done.
        estimator.fit, estimator.set_params = fit, lambda **_: estimator
        try:
            self.result = self._call(*self._bound.args, **self._bound.kwargs)
        except Exception as error:
            self.error = error
        finally:
            del estimator.fit, estimator.set_params
        if isinstance(self.result, dict) and "fit_time" in self.result:
            # scikit-learn took the time of a call that fitted nothing.
            self.result["fit_time"] += seconds

    def as_given(self) -> Any:
        """Return the call for joblib, as it was."""
        return self._call, self._bound.args, self._bound.kwargs


class Table(NamedTuple):
    """What estimators are fitted on."""

    X: Any
    y: Any
    sample_weight: Any


class Together(ParallelBackendBase):
    """Runs the tasks of scikit-learn; estimators of skest are trained together.

    Parameters
    ----------
    n_jobs : int or None
        Processes, as in scikit-learn.
    partial : bool, default=False
        Whether Ctrl-C and the time limit leave results that are `UNFINISHED`, or raise.
    time_limit : float or None, default=None
        Seconds from now.
    max_members : int or None, default=None
        See `fit_many`.
    keep : bool, default=False
        Whether results have the fitted "estimator", and "test", the rows held out.
    resource : str, default=""
        Name of ``max_iter``, up to which estimators go on that were trained with less.
    verbose : int or None, default=None
        From 1 on it prints how far it is, and 0 nothing, in the place of the lines of the
        estimators; None leaves those to `fit_many`.
    score : str or None, default=None
        The score to tell of, if there are several.
    """

    def __init__(
        self,
        n_jobs: int | None,
        *,
        partial: bool = False,
        time_limit: float | None = None,
        max_members: int | None = None,
        keep: bool = False,
        resource: str = "",
        verbose: int | None = None,
        score: str | None = None,
    ) -> None:
        super().__init__()
        self._before, default = get_active_backend()
        self._n_jobs = default if n_jobs is None else n_jobs
        self._max_members = max_members
        self._partial, self._keep, self._resource = partial, keep, resource
        self._verbose, self._score = verbose, score
        self._progress = Listener()
        self._limit = time_limit
        self._end = np.inf if time_limit is None else time.monotonic() + time_limit
        self._waiting: list[Task] = []
        self._tables: dict[Any, Any] = {}
        self._steps: dict[Any, Sequence[Any]] = {}
        self._trained: dict[Any, tuple[Any, Task]] = {}
        self._example: Any = None
        #: Why it has stopped, if it has.
        self.stopped: BaseException | None = None

    @contextmanager
    def active(self) -> Iterator["Together"]:
        """Be what scikit-learn hands its fits to."""
        self._config = joblib.parallel_config(backend=self)
        with self._config:
            yield self

    def take_no_more(self) -> None:
        """Leave later calls of joblib to what was active before."""
        self._config.unregister()

    # What joblib calls

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return how many tasks may come before the first is asked for its result."""
        return _ALL

    def submit(self, func: Any, callback: Any = None) -> Task:
        """Take a task."""
        self._waiting.append(Task(func, callback))
        return self._waiting[-1]

    apply_async = submit  # its name before joblib 1.5

    def retrieve_result(self, out: Task, timeout: float | None = None) -> list[Any]:
        """Return the result of a task; the first call runs all that wait."""
        if self._waiting:
            tasks, self._waiting = self._waiting, []
            with joblib.parallel_config(backend=self._before), self._heard(tasks):
                self._run(tasks)
        out.callback(out)
        if out.error is not None:
            raise out.error
        return [out.result]

    # What it does with them

    @contextmanager
    def _heard(self, tasks: list[Task]) -> Iterator[None]:
        """Say how far it is, or nothing."""
        if not self._verbose:
            with nullcontext() if self._verbose is None else heard_by(self._progress):
                yield
            return
        progress = SearchProgress(tasks, self._score, self._end - time.monotonic())
        self._progress = progress
        with heard_by(progress):
            yield
        progress.tell()

    def _run(self, tasks: list[Task]) -> None:
        ours: list[Task] = []
        others: list[Task] = []
        reason = ""
        for task in tasks:
            if self._keep:
                task.given["return_estimator"] = True
            why = task.prepare()
            reason = reason or why
            (others if why else ours).append(task)
        if others:
            text = "scikit-learn does %d of %d fits one by one: %s"
            _logger.info(text, len(others), len(tasks), reason)
        try:
            for chunk in self._chunks(ours):
                others += self._fit_chunk(chunk)
            self._run_others(others)
        except KeyboardInterrupt as error:
            self.stopped = error
        self._tables.clear()
        for task in tasks:
            if task.result is not None:
                self._example = task.result
                if self._keep:
                    task.result["test"] = task.given["test"]
        for task in tasks:
            if task.result is None and task.error is None:
                self._leave(task)

    def _chunks(self, tasks: list[Task]) -> Iterator[list[Task]]:
        """Yield candidates to train together: as many as before, for an end may come."""
        start, first = 0, _FIRST if self._limit is None else 1
        while start < len(tasks) and not self._is_over():
            n_splits = tasks[start].given.get("split_progress", (0, len(tasks)))[1]
            end = start + max(start, first * n_splits)
            yield tasks[start:end]
            start = end

    def _leave(self, task: Task) -> None:
        """Give a task that was not done a result that says so, or the reason."""
        if self._example is None or not self._partial:
            task.error = self.stopped
            return
        none = {
            key: dict.fromkeys(v, np.nan) if isinstance(v, dict) else np.nan
            for key, v in self._example.items()
            if key.endswith("_scores")
        }
        task.result = {**self._example, **none, "fit_error": None, UNFINISHED: True}

    def _fit_chunk(self, tasks: list[Task]) -> list[Task]:
        """Fit estimators; return the tasks that scikit-learn shall see to."""
        failed: list[Task] = []
        by_table: dict[Any, list[Task]] = {}
        for task in tasks:
            if self._table_of(task) is None:
                failed.append(task)  # scikit-learn says what fails
            else:
                by_table.setdefault(task.data, []).append(task)
        whole = by_table.pop(None, [])
        if whole:
            self._fit(whole, self._table_of(whole[0]), [task.rows for task in whole])
        tables = [self._tables[key] for key in by_table]
        one = _one_table(tables)
        if one is not None:
            ends = np.cumsum([len(table.X) for table in tables])
            rows = {
                key: np.arange(end - len(table.X), end)
                for key, table, end in zip(by_table, tables, ends, strict=True)
            }
            members = [task for task in tasks if task.data in rows]  # in their order
            self._fit(members, one, [rows[task.data] for task in members])
        else:
            for table, own in zip(tables, by_table.values(), strict=True):
                self._fit(own, table, [None] * len(own))
        return failed

    def _table_of(self, task: Task) -> Any:
        """Return what an estimator is fitted on, None if a step before it fails."""
        key = task.data
        if key not in self._tables:
            table: Any = Table(task.given["X"], task.given["y"], task.sample_weight)
            if key is not None:
                table = Table(*(_part(value, task.rows) for value in table))
                before = task.estimator[:-1]
                try:
                    X = before.fit_transform(table.X, table.y)
                    table = table._replace(X=X)
                except Exception:
                    table = None
            self._tables[key] = table
            self._steps[key] = () if key is None or table is None else before.steps
        return self._tables[key]

    def _fit(self, tasks: list[Task], table: "Table", rows: list[Any]) -> None:
        for task, own in zip(tasks, rows, strict=True) if self._resource else ():
            self._go_on(task, [_part(v, own) for v in table if v is not None])
        left = [i for i, task in enumerate(tasks) if task.result is None]
        if not left or self._is_over():
            return
        begin = time.monotonic()
        fitted = fit_many(
            [tasks[i].final for i in left],
            table.X,
            table.y,
            rows=None if rows[0] is None else [rows[i] for i in left],
            sample_weight=table.sample_weight,
            on_error="return",
            time_limit=None if self._limit is None else self._end - begin,
            n_jobs=self._n_jobs,
            max_members=self._max_members,
        )
        seconds = (time.monotonic() - begin) / len(left)
        for i, model in zip(left, fitted, strict=True):
            failed = isinstance(model, Exception)
            if isinstance(model, TimeoutError):
                self.stopped = self._too_late()
                continue
            if not (failed or getattr(model, "__sklearn_is_fitted__", bool)()):
                self.stopped = KeyboardInterrupt()
                continue
            tasks[i].run(model, seconds, self._steps[tasks[i].data])
            if self._resource and not failed:
                self._trained[self._of_resource(tasks[i])] = model, tasks[i]

    def _of_resource(self, task: Task) -> Any:
        """Return what a candidate keeps from call to call, and the number of the split."""
        own = task.values(lambda name: name != self._resource)
        return own, task.given["split_progress"][0]

    def _go_on(self, task: Task, given: Sequence[Any]) -> None:
        """Train an estimator further, if it was trained before and can go on."""
        key = self._of_resource(task)
        if key not in self._trained or self._is_over():
            return
        begin = time.monotonic()
        earlier, last = self._trained[key]
        n_epochs = task.parameters[self._resource] - last.parameters[self._resource]
        model = copy.copy(earlier)
        with suppress(ValueError), raising_on_interrupt():
            model.set_params(warm_start=True, max_iter=n_epochs).fit(*given)
            own = {
                name: getattr(task.final, name) for name in ("warm_start", "max_iter")
            }
            self._trained[key] = model.set_params(**own), task
            task.run(model, time.monotonic() - begin, self._steps[task.data])
            self._progress.fitted(1)

    def _run_others(self, tasks: list[Task]) -> None:
        calls = Parallel(n_jobs=self._n_jobs, return_as="generator")
        if not tasks or self._is_over():
            return
        with raising_on_interrupt():
            results = calls(task.as_given() for task in tasks)
            for task in tasks:
                task.result = next(results)
                self._progress.fitted(1)
                if self._is_over():
                    break

    def _is_over(self) -> bool:
        if self.stopped is None and time.monotonic() > self._end:
            self.stopped = self._too_late()
        return self.stopped is not None

    def _too_late(self) -> TimeoutError:
        return TimeoutError(f"time_limit={self._limit} is over")


def _part(value: Any, rows: Any) -> Any:
    return value if value is None or rows is None else safe_indexing(value, rows)


def _one_table(tables: Sequence[Table]) -> Table | None:
    """Return the rows of small tables in one, None if they are not of one kind."""
    if sum(getattr(table.X, "size", np.inf) for table in tables) > _MOST_CELLS:
        return None
    weighted = bool(tables) and tables[0].sample_weight is not None
    parts = [_joined(values) for values in zip(*tables, strict=True)]
    if not tables or any(part is None for part in parts[: 2 + weighted]):
        return None
    return Table(*parts)


def _joined(values: Sequence[Any]) -> Any:
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        return None
    if isinstance(first, np.ndarray):
        kinds = {(value.dtype, value.shape[1:]) for value in values}
        return np.concatenate(values) if len(kinds) == 1 else None
    # Frames without rows are equal if they have the same columns of the same types.
    if hasattr(first, "iloc") and all(first[:0].equals(value[:0]) for value in values):
        return sys.modules["pandas"].concat(values)
    return None
