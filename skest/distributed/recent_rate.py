# SPDX-License-Identifier: Apache-2.0
"""`RecentRate`: how often something has happened in the last seconds."""

import math

__all__ = ["RecentRate"]


class RecentRate:
    """Events per second, of which those of the last seconds count most.

    The weight of an event falls to 1/e in `seconds`. Nothing but one number is kept.

    Parameters
    ----------
    start : float, seconds
        When counting begins.
    seconds : float, default=5.0
        How far back it looks, about.

    Examples
    --------
    >>> from skest.distributed.recent_rate import RecentRate
    >>> rate = RecentRate(start=0.0)
    >>> for tenth in range(1, 101):
    ...     rate.count(now=tenth / 10)
    >>> round(rate.per_second(now=10.0)), round(rate.per_second(now=60.0))
    (10, 0)
    """

    def __init__(self, start: float, seconds: float = 5.0) -> None:
        self._start = self._last = start
        self._seconds = seconds
        self._weight = 0.0  # of all events, at `_last`

    def count(self, now: float) -> None:
        """Note that it happens now."""
        self._weight = self._weight_at(now) + 1.0
        self._last = now

    def per_second(self, now: float) -> float:
        """Return the rate; 0 before there was time to count."""
        # The weight that one event a second would have by now.
        unit = self._seconds * -math.expm1((self._start - now) / self._seconds)
        return self._weight_at(now) / unit if unit > 0 else 0.0

    def _weight_at(self, now: float) -> float:
        return self._weight * math.exp((self._last - now) / self._seconds)
