# SPDX-License-Identifier: Apache-2.0
"""`Together`: the fits of a search, cross-validation or ensemble of scikit-learn, at once.

scikit-learn hands its fits to joblib as tasks. This backend of joblib waits until all are
there, trains the estimators of skest among them with `fit_many`, and then runs the tasks,
which find their estimators fitted: splits, scores, errors and times stay scikit-learn's.
"""

import copy
import inspect
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import joblib
import numpy as np
from joblib.parallel import ParallelBackendBase, get_active_backend
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils.parallel import Parallel

from skest.adapters.base import SkestEstimator
from skest.core.interrupts import raising_on_interrupt
from skest.core.sklearn_compat import safe_indexing
from skest.model_selection.fit_many import fit_many

_logger = logging.getLogger("skest")

#: In a result: the task was not done, because of Ctrl-C or the time limit.
UNFINISHED = "unfinished"
_ALL = 100_000  # tasks that may wait; joblib computes with no numbers above 1e6
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
        estimator.fit, estimator.set_params = fit, lambda **_: estimator
        try:
            self.result = self._call(*self._bound.args, **self._bound.kwargs)
        except Exception as error:
            self.error = error
        finally:
            del estimator.fit, estimator.set_params
        if isinstance(self.result, dict) and "fit_time" in self.result:
            self.result["fit_time"] += seconds

    def as_given(self) -> Any:
        """Return the call for joblib, as it was."""
        return self._call, self._bound.args, self._bound.kwargs


class Together(ParallelBackendBase):
    """Runs the tasks of scikit-learn; estimators of skest are trained together.

    Parameters
    ----------
    n_jobs : int or None
        Threads that train, and processes for what is not of skest, as in scikit-learn.
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
    ) -> None:
        super().__init__()
        self._before, default = get_active_backend()
        self._n_jobs = default if n_jobs is None else n_jobs
        self._max_members = max_members
        self._partial, self._keep, self._resource = partial, keep, resource
        self._limit = time_limit
        self._end = np.inf if time_limit is None else time.monotonic() + time_limit
        self._waiting: list[Task] = []
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
            with joblib.parallel_config(backend=self._before):
                self._run(tasks)
        out.callback(out)
        if out.error is not None:
            raise out.error
        return [out.result]

    # What it does with them

    def _run(self, tasks: list[Task]) -> None:
        if self._keep:
            for task in tasks:
                task.given["return_estimator"] = True
        groups: dict[Any, list[Task]] = {}
        others: list[Task] = []
        reason = ""
        for task in tasks:
            if why := task.prepare():
                reason = reason or why
                others.append(task)
            else:
                groups.setdefault(task.data, []).append(task)
        if others:
            text = "scikit-learn does %d of %d fits one by one: %s"
            _logger.info(text, len(others), len(tasks), reason)
        try:
            for data, members in groups.items():
                if not self._is_over():
                    others += self._run_together(data, members)
            self._run_others(others)
        except KeyboardInterrupt as error:
            self.stopped = error
        for task in tasks:
            if task.result is not None:
                self._example = task.result
                if self._keep:
                    task.result["test"] = task.given["test"]
        for task in tasks:
            if task.result is None and task.error is None:
                self._leave(task)

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

    def _run_together(self, data: Any, tasks: list[Task]) -> list[Task]:
        """Fit estimators on one table; return tasks that scikit-learn shall see to."""
        first = tasks[0]
        X, y, weight = first.given["X"], first.given["y"], first.sample_weight
        rows, steps = [task.rows for task in tasks], ()
        if data is not None:
            before = first.estimator[:-1]
            X, y, weight = (_part(value, first.rows) for value in (X, y, weight))
            try:
                X = before.fit_transform(X, y)
            except Exception:
                return tasks  # scikit-learn says what fails
            rows, steps = [None] * len(tasks), before.steps
        for task, own in zip(tasks, rows, strict=True) if self._resource else ():
            given = [_part(value, own) for value in (X, y, weight) if value is not None]
            self._go_on(task, given, steps)
        left = [i for i, task in enumerate(tasks) if task.result is None]
        if not left or self._is_over():
            return []
        begin = time.monotonic()
        fitted = fit_many(
            [tasks[i].final for i in left],
            X,
            y,
            rows=None if rows[0] is None else [rows[i] for i in left],
            sample_weight=weight,
            on_error="return",
            time_limit=None if self._limit is None else self._end - begin,
            n_threads=self._n_jobs and joblib.effective_n_jobs(self._n_jobs),
            max_members=self._max_members,
        )
        seconds = (time.monotonic() - begin) / len(left)
        for i, model in zip(left, fitted, strict=True):
            if isinstance(model, TimeoutError):
                self.stopped = self._too_late()
                continue
            if isinstance(model, KeyboardInterrupt):
                self.stopped = model
                continue
            tasks[i].run(model, seconds, steps)
            if self._resource and not isinstance(model, Exception):
                self._trained[self._of_resource(tasks[i])] = model, tasks[i]
        return []

    def _of_resource(self, task: Task) -> Any:
        """Return what a candidate keeps from call to call, and the number of the split."""
        own = task.values(lambda name: name != self._resource)
        return own, task.given["split_progress"][0]

    def _go_on(self, task: Task, given: Sequence[Any], steps: Sequence[Any]) -> None:
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
            task.run(model, time.monotonic() - begin, steps)

    def _run_others(self, tasks: list[Task]) -> None:
        calls = Parallel(n_jobs=self._n_jobs, return_as="generator")
        if not tasks or self._is_over():
            return
        with raising_on_interrupt():
            results = calls(task.as_given() for task in tasks)
            for task in tasks:
                task.result = next(results)
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
