# SPDX-License-Identifier: Apache-2.0
"""Counts of answers and the times they took, in the text format of Prometheus."""

import bisect
import itertools
import threading
from collections import Counter

__all__ = ["Metrics"]

_BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """What was answered; several threads may count at once.

    Examples
    --------
    >>> from skest.export.serving.metrics import Metrics
    >>> metrics = Metrics()
    >>> metrics.count(200, 0.002)
    >>> print(metrics.text())
    # TYPE skest_requests_total counter
    skest_requests_total{status="200"} 1
    # TYPE skest_request_seconds histogram
    skest_request_seconds_bucket{le="0.0005"} 0
    ...
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers: Counter[int] = Counter()
        self._times = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0

    def count(self, status: int, seconds: float | None = None) -> None:
        """Count an answer by its status code, and by the seconds that it took if known."""
        with self._lock:
            self._answers[status] += 1
            if seconds is None:
                return
            self._times[bisect.bisect_left(_BOUNDS, seconds)] += 1
            self._seconds += seconds

    def text(self) -> str:
        """Return all counts."""
        with self._lock:
            answers, seconds = sorted(self._answers.items()), self._seconds
            times = list(itertools.accumulate(self._times))
        name = "skest_request_seconds"
        lines = ["# TYPE skest_requests_total counter"]
        lines += [f'skest_requests_total{{status="{s}"}} {n}' for s, n in answers]
        lines.append(f"# TYPE {name} histogram")
        for bound, number in zip((*_BOUNDS, "+Inf"), times, strict=True):
            lines.append(f'{name}_bucket{{le="{bound}"}} {number}')
        lines += [f"{name}_sum {seconds:.6f}", f"{name}_count {times[-1]}", ""]
        return "\n".join(lines)
