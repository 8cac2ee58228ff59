# SPDX-License-Identifier: Apache-2.0
"""`Tasks`: the fits that scikit-learn hands to joblib, which may end early or go on.

A search of scikit-learn gives all its fits to joblib in one call, and only a backend of
joblib sees them one by one. `SearchProgress` says how far they are.
"""

import copy
import inspect
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any

import joblib
import numpy as np
from joblib.parallel import ParallelBackendBase, get_active_backend
from sklearn.pipeline import Pipeline
from sklearn.utils.parallel import Parallel, delayed

from skest.adapters.base import SkestEstimator
from skest.adapters.epochs import duration
from skest.core.console import (
    Listener,
    OutOfTime,
    heard_by,
    listener,
    raising_on_interrupt,
)

#: In a result: the task was not done, because of Ctrl-C or the time limit.
UNFINISHED = "unfinished"
_FIRST = 2.0  # seconds until the first line
_SHARE = 0.1  # of the time so far, until the next


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
        # One call: `compute_batch_size` of joblib's base is 1.
        ((self.call, args, kwargs),) = batch.items
        # By name, because the calls are private functions of scikit-learn, whose
        # arguments move.
        self._bound = inspect.signature(self.call).bind(*args, **kwargs)
        self.given: dict[str, Any] = self._bound.arguments
        self.callback = callback
        self.result: Any = None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """What the candidate sets."""
        return self.given.get("parameters") or {}

    def bound(self) -> Callable[[], Any]:
        """Return the call with its arguments."""
        return partial(self.call, *self._bound.args, **self._bound.kwargs)


class Tasks(ParallelBackendBase):
    """Runs the tasks of scikit-learn in the backend of joblib that was active before.

    Parameters
    ----------
    n_jobs : int or None
        Processes, as in scikit-learn.
    partial : bool, default=False
        Whether Ctrl-C and the time limit leave results that are `UNFINISHED`, or raise.
    time_limit : float or None, default=None
        Seconds from now.
    keep : bool, default=False
        Whether results have the fitted "estimator", and "test", the rows held out.
    resource : str, default=""
        Name of ``max_iter``, up to which estimators go on that were trained with less.
    verbose : int, default=0
        From 1 on it prints how far it is, in the place of the lines of the estimators.
    score : str or None, default=None
        The score to tell of, if there are several.
    """

    def __init__(
        self,
        n_jobs: int | None,
        *,
        partial: bool = False,
        time_limit: float | None = None,
        keep: bool = False,
        resource: str = "",
        verbose: int = 0,
        score: str | None = None,
    ) -> None:
        super().__init__()
        self._before, default = get_active_backend()
        self._n_jobs = default if n_jobs is None else n_jobs
        self._partial, self._keep, self._resource = partial, keep, resource
        self._verbose, self._score = verbose, score
        self._limit = time_limit
        # Within the task of another search, whose time may be over first.
        self._outer = listener() or Listener()
        # The clock that all processes share; each looks at it by itself.
        own = np.inf if time_limit is None else time.time() + time_limit
        self._end = min(own, self._outer.end)
        self._waiting: list[Task] = []
        # By candidate and split: the estimator, and the epochs that it has.
        self._trained: dict[Any, tuple[Any, int]] = {}
        self._example: Any = None
        #: Why it has stopped, if it has.
        self.stopped: BaseException | None = None

    def __reduce__(self) -> Any:
        # The search, which has this, goes with its tasks to other processes.
        return Tasks, (None,)

    @contextmanager
    def active(self) -> Iterator["Tasks"]:
        """Be what scikit-learn hands its fits to."""
        self._config = joblib.parallel_config(backend=self)
        with self._config:
            yield self

    def take_no_more(self) -> None:
        """Leave later calls of joblib to what was active before."""
        self._config.unregister()

    # What joblib calls

    def configure(
        self, n_jobs: int = 1, parallel: Any = None, **options: Any
    ) -> int | None:
        """Take all tasks at once: `pre_dispatch` is for the backend that runs them."""
        self._pre_dispatch, parallel.pre_dispatch = parallel.pre_dispatch or 1, "all"
        return super().configure(n_jobs, parallel, **options)

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return more than 1, or joblib would run the tasks by itself."""
        return 2

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
            for task in tasks:
                if task.result is None:
                    self._leave(task)
        out.callback(out)
        return [out.result]

    # What it does with them

    def _run(self, tasks: list[Task]) -> None:
        progress: Listener = Listener(self._end)
        if self._verbose:
            progress = SearchProgress(tasks, self._score, self._end)
        # Nobody would see the lines of other processes.
        is_here = joblib.effective_n_jobs(self._n_jobs) == 1
        heard = progress if is_here else Listener(self._end)
        in_their_time = takewhile(lambda task: time.time() <= self._end, tasks)
        calls = (delayed(in_time)(self._call(task), heard) for task in in_their_time)
        results = each_result(calls, self._n_jobs, pre_dispatch=self._pre_dispatch)
        try:
            with raising_on_interrupt():
                # To the end, also if the time is over: joblib ends processes that are
                # not waited for, and others take long to start.
                for task, result in zip(tasks, results, strict=False):
                    if result is not None:
                        self._finish(task, result)
                        progress.fitted(1)
        except KeyboardInterrupt as error:
            self.stopped = error
            with warnings.catch_warnings():
                # That tasks are left is said by the search.
                warnings.filterwarnings("ignore", ".*the input task iterator")
                results.close()
        if self.stopped is None and any(task.result is None for task in tasks):
            self._outer.check()
            self.stopped = TimeoutError(f"time_limit={self._limit} is over")
        if isinstance(progress, SearchProgress):
            progress.tell()

    def _call(self, task: Task) -> Callable[[], Any]:
        """Return the call of a task; an estimator that was trained before goes on."""
        if self._keep or self._resource:
            # The ensemble, or the next round, needs what was fitted.
            task.given["return_estimator"] = True
        if not self._resource or self._candidate(task) not in self._trained:
            return task.bound()
        trained, n_epochs = self._trained[self._candidate(task)]
        estimator = task.given["estimator"] = _copied(trained)
        n_more = task.parameters[self._resource] - n_epochs
        return partial(_go_on, task.bound(), estimator, self._resource, n_more)

    def _candidate(self, task: Task) -> Any:
        """Return what a candidate keeps from call to call, and the number of the split."""
        # By identity: a grid hands out the same objects, of which some have no hash and
        # no truth value of an equality.
        own = [(k, id(v)) for k, v in task.parameters.items() if k != self._resource]
        return frozenset(own), task.given["split_progress"][0]

    def _finish(self, task: Task, result: Any) -> None:
        # Any result shows what keys those of tasks left out must have.
        self._example = task.result = result
        if self._keep:
            test = np.asarray(task.given["test"])
            result["test"] = np.flatnonzero(test) if test.dtype == bool else test
        if not isinstance(result, dict):
            return
        if result["fit_error"] and task.parameters:
            result["fit_error"] += f"Candidate: {dict(task.parameters)}\n"
        elif self._resource and _can_go_on(result["estimator"]):
            n_epochs = task.parameters[self._resource]
            self._trained[self._candidate(task)] = result["estimator"], n_epochs

    def nothing_done(self) -> BaseException:
        """Return what to raise if it has stopped too early."""
        if isinstance(self.stopped, TimeoutError):
            return TimeoutError(
                f"{self.stopped}, and not one candidate is done on all splits. Give it "
                "more seconds (processes of n_jobs take several to start), or let "
                "trainings be shorter, by 'max_iter' or fewer splits."
            )
        return self.stopped or KeyboardInterrupt()

    def _leave(self, task: Task) -> None:
        """Give a task that was not done a result that says so, or raise the reason."""
        if self._example is None or not self._partial:
            raise self.nothing_done()
        # Scores of NaN, as those of fits that failed.
        none = {
            key: dict.fromkeys(v, np.nan) if isinstance(v, dict) else np.nan
            for key, v in self._example.items()
            if key.endswith("_scores")
        }
        task.result = {**self._example, **none, "fit_error": None, UNFINISHED: True}


def each_result(
    calls: Iterable[Any], n_jobs: int | None, **options: Any
) -> Generator[Any, None, None]:
    """Run calls as joblib is configured; yield each result as soon as it can be had."""
    backend, _ = get_active_backend()
    # "multiprocessing" has only all of them.
    kind = "generator" if backend.supports_return_generator else "list"
    yield from Parallel(n_jobs, return_as=kind, **options)(calls)


def in_time(call: Callable[[], Any], heard: Listener) -> Any:
    """Run a call; return its result, or None if the time is over."""
    with heard_by(heard), raising_on_interrupt():
        try:
            heard.check()
            return call()
        except OutOfTime:  # no backend of joblib carries it from another process
            return None


def _can_go_on(estimator: Any) -> bool:
    """Tell whether `max_iter` is how many more epochs to train with `warm_start`.

    Others, such as HistGradientBoosting, take it for the number of all iterations.
    """
    last = _last_step(estimator)
    # Each training would have `max_steps` of its own.
    return isinstance(last, SkestEstimator) and last.max_steps is None


def _last_step(estimator: Any) -> Any:
    return estimator.steps[-1][1] if isinstance(estimator, Pipeline) else estimator


def _copied(estimator: Any) -> Any:
    """Return an estimator that can go on, while this one stays as it is."""
    copied = copy.copy(estimator)
    if isinstance(copied, Pipeline):
        *before, (name, last) = copied.steps
        copied.steps = [*before, (name, copy.copy(last))]
    return copied


def _go_on(call: Callable[[], Any], estimator: Any, resource: str, n_more: int) -> Any:
    """Run a call whose estimator is fitted already, and is for so many more epochs."""
    # With the name of the step in a pipeline, if there is one.
    switch = resource.removesuffix("max_iter") + "warm_start"
    fit = estimator.fit

    def go_on(*args: Any, **kwargs: Any) -> Any:
        # The candidate may have put a new one in the place of what was trained.
        if not _last_step(estimator).__sklearn_is_fitted__():
            return fit(*args, **kwargs)
        own = {name: estimator.get_params()[name] for name in (switch, resource)}
        try:
            estimator.set_params(**{switch: True, resource: n_more})
            fit(*args, **kwargs)
        except ValueError:  # it can't, as by "sdca": it begins anew
            estimator.set_params(**{**own, switch: False})
            fit(*args, **kwargs)
        finally:
            estimator.set_params(**own)
        return estimator

    # What `_fit_and_score` of scikit-learn calls, and measures.
    estimator.fit = go_on
    try:
        return call()
    finally:
        del estimator.fit


class SearchProgress(Listener):
    """Prints a line now and then: what is done, the best score, and the time left.

    The lines of the trainings are its clock, and are not printed: those of many tell
    nobody anything.

    Parameters
    ----------
    tasks : sequence of Task
        What is to be fitted.
    name : str or None
        The score to tell of, if there are several.
    end : float
        Of the time limit, see `Listener`.
    """

    def __init__(
        self, tasks: Sequence[Any], name: str | None, end: float = np.inf
    ) -> None:
        super().__init__(end)
        self._by_candidate: dict[Any, list[Any]] = defaultdict(list)
        for task in tasks:
            self._by_candidate[task.given.get("candidate_progress")].append(task)
        self._n_fits, self._n_fitted = len(tasks), 0
        self._name = name
        self._began = self._told = time.monotonic()

    def line(self, text: str) -> None:
        """Say something, if it is time to."""
        now = time.monotonic()
        # Ever more seldom, so that a night's search fills no screen.
        if now - self._told > max(_FIRST, _SHARE * (now - self._began)):
            self.tell()

    def fitted(self, n_estimators: int) -> None:
        """Count them."""
        self._n_fitted += n_estimators
        self.line("")

    def tell(self) -> None:
        """Say how far it is."""
        self._told = now = time.monotonic()
        scores = [self._score(tasks) for tasks in self._by_candidate.values()]
        done = [score for score in scores if score is not None]
        title, parts = "Cross-validation", [f"{self._n_fitted} of {self._n_fits} fits"]
        # Without a search there is no candidate.
        if None not in self._by_candidate:
            title = "Search"
            parts.insert(0, f"{len(done)} of {len(scores)} candidates done")
            if np.isfinite(done).any():
                parts.append(f"best score {np.nanmax(done):.4g}")
        spent, n_left = now - self._began, self._n_fits - self._n_fitted
        if self._n_fitted and n_left:
            left = spent / self._n_fitted * n_left
            # The time limit may come first.
            left = min(left, max(0.0, self.end - time.time()))
            parts.append(f"about {duration(left)} left")
        else:
            parts.append(f"{duration(spent)} so far")
        print(f"{title}: {', '.join(parts)}", flush=True)

    def _score(self, tasks: Sequence[Any]) -> float | None:
        """Return the mean score of a candidate, None if it is not done."""
        found = []
        for task in tasks:
            given = isinstance(task.result, Mapping)
            if task.result is None or (given and UNFINISHED in task.result):
                return None
            score = task.result.get("test_scores", np.nan) if given else np.nan
            # With several scorers.
            if isinstance(score, Mapping):
                score = score.get(self._name or next(iter(score)), np.nan)
            found.append(score)
        return float(np.mean(found))
