# SPDX-License-Identifier: Apache-2.0
"""Waiting for processes that train, and ending those that stand still."""

import time
from collections.abc import Callable, Mapping, Sequence

from skest.distributed.supervisor import Supervisor

__all__ = ["Silence", "wait_for_workers"]

_SECONDS_TO_BEGIN = 60.0  # to import, and to read and encode the first batch


def wait_for_workers(
    supervisor: Supervisor,
    names: Sequence[str],
    silent_for: Callable[[], Mapping[str, float]],
    lease: float,
) -> None:
    """Wait until workers have ended; one that stands still is killed.

    The supervisor starts it again, as one that died.

    Parameters
    ----------
    supervisor : Supervisor
        Sees to the workers.
    names : sequence of str
        Their names.
    silent_for : callable
        Returns how many seconds ago each worker that has begun was heard of.
    lease : float, seconds
        How long a worker may be silent. One that has just been started has a minute to
        begin, or `lease` if that is longer.

    Raises
    ------
    TaskFailedError
        If a worker died, or was killed, more often than it may be restarted.
    BaseException
        What a worker raised.
    """
    while not supervisor.wait(min(1.0, lease / 4), names):
        silence = silent_for()
        for name in names:
            age = supervisor.age(name)
            if age is None:
                continue
            silent = silence.get(name, age)
            limit = lease if silent < age else max(lease, _SECONDS_TO_BEGIN)
            if min(silent, age) > limit:
                supervisor.kill(name, f"stands still for {limit:g} s")


class Silence:
    """Tells for how long counters have not moved.

    Parameters
    ----------
    now : callable, default=time.monotonic
        The time, in seconds.

    Examples
    --------
    >>> from skest.distributed.waiting import Silence
    >>> clock = iter([0.0, 5.0, 7.0])
    >>> silence = Silence(lambda: next(clock))
    >>> for steps in [1, 1, 2]:
    ...     print(silence.of({1: steps}))
    {1: 0.0}
    {1: 5.0}
    {1: 0.0}
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._moved: dict[int, tuple[int, float]] = {}

    def of(self, counters: Mapping[int, int]) -> dict[int, float]:
        """Return for how many seconds each counter, by its number, has been as it is."""
        now = self._now()
        for name, value in counters.items():
            if self._moved.get(name, (None,))[0] != value:
                self._moved[name] = (value, now)
        return {name: now - self._moved[name][1] for name in counters}
