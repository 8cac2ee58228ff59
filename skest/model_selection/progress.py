# SPDX-License-Identifier: Apache-2.0
"""`SearchProgress`: what a search says while it runs."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from skest.adapters.epochs import duration
from skest.core.console import Listener

#: In a result: the task was not done, because of Ctrl-C or the time limit.
UNFINISHED = "unfinished"
_FIRST = 2.0  # seconds until the first line
_SHARE = 0.1  # of the time so far, until the next


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
