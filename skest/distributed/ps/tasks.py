# SPDX-License-Identifier: Apache-2.0
"""The tasks that train with a parameter server: who is there, and how far."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from skest.distributed.ps.connection import Peer


class Member:
    """What a server knows of one task.

    Attributes
    ----------
    clock : int
        Steps that it took, on the scale of the others.
    pushes : int
        Updates that it made here.
    refused : int
        Updates that were not made, as they were about variables that are gone.
    staleness : Counter
        How many of them came after how many others that their gradients did not know.
    has_left : bool
        Whether it said that it does no more.
    seen : float
        When it was last heard of.
    is_waiting : bool
        Whether it waits here for others.
    """

    def __init__(self, clock: int, now: float) -> None:
        self.clock = clock
        self.seen = now
        self.pushes = self.refused = 0
        self.bytes_in = self.bytes_out = 0
        self.staleness: Counter[int] = Counter()
        self.has_left = self.is_waiting = False


class Members:
    """All tasks that ever had a session with a server.

    Parameters
    ----------
    lease : float
        Seconds after which a task that was not heard of is taken for lost: nobody waits
        for it any more. It may come back.
    max_staleness : int or None
        How many steps a task may be ahead of the slowest; None is any number.
    now : callable, default=time.monotonic
        The time, in seconds.

    References
    ----------
    Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server", NeurIPS 2013.
    """

    def __init__(
        self,
        lease: float,
        max_staleness: int | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lease, self.max_staleness = lease, max_staleness
        self._now = now
        self._all: dict[Peer, Member] = {}
        self._changed = threading.Condition()
        self._is_over = False

    def join(self, peer: Peer) -> None:
        """Note that a task is there, or is there again."""
        with self._changed:
            clocks = [m.clock for m in self._present() if m is not self._all.get(peer)]
            start = min(clocks, default=0)
            member = self._all.setdefault(peer, Member(start, self._now()))
            if member.has_left or not self._is_present(member):
                member.clock = max(member.clock, start)
            member.has_left, member.seen = False, self._now()
            self._changed.notify_all()

    def heard(self, peer: Peer, bytes_in: int, bytes_out: int) -> None:
        """Note that a task asked for something, and how much was sent so far."""
        with self._changed:
            member = self._all.get(peer)
            if member is None:
                return
            if not self._is_present(member):  # its lease had ended, it begins again
                clocks = [m.clock for m in self._present()]
                member.clock = max(member.clock, min(clocks, default=member.clock))
            member.seen = self._now()
            member.bytes_in += bytes_in
            member.bytes_out += bytes_out

    def pushed(self, peer: Peer, staleness: int) -> None:
        """Note that a task took a step."""
        with self._changed:
            member = self._all[peer]
            member.clock += 1
            member.pushes += 1
            member.staleness[staleness] += 1
            self._changed.notify_all()

    def refused(self, peer: Peer) -> None:
        """Note that an update of a task was not made."""
        with self._changed:
            self._all[peer].refused += 1

    def left(self, peer: Peer) -> None:
        """Note that a task takes no more steps."""
        with self._changed:
            if peer in self._all:
                self._all[peer].has_left = True
            self._changed.notify_all()

    def wait_for_others(self, peer: Peer, seconds: float = math.inf) -> None:
        """Wait until the task is not too far ahead of those that are there.

        After so many seconds it may still be.
        """
        with self._changed:
            member = self._all[peer]
            member.is_waiting, end = True, self._now() + seconds
            try:
                while self.must_wait(peer) and (left := end - self._now()) > 0:
                    # Leases end without a notice.
                    self._changed.wait(min(1.0, self.lease / 4, left))
            finally:
                member.is_waiting, member.seen = False, self._now()

    def dismiss(self) -> None:
        """Let nobody wait any more: the server ends."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def must_wait(self, peer: Peer, n_ahead: int = 0) -> bool:
        """Tell whether a task is too far ahead, when it has taken `n_ahead` more steps."""
        if self.max_staleness is None or self._is_over:
            return False
        with self._changed:
            clock = self._all[peer].clock + n_ahead
            return clock - self._slowest() > self.max_staleness

    def active(self, but: Peer) -> list[str]:
        """Return the names of the others that are there and did not leave."""
        with self._changed:
            return [
                str(peer)
                for peer, member in self._all.items()
                if peer != but and not member.has_left and self._is_present(member)
            ]

    def to_json(self) -> list[dict[str, Any]]:
        """Return what is known of every task."""
        with self._changed:
            now = self._now()
            return [
                {
                    "task_type": peer.task_type,
                    "task_index": peer.task_index,
                    "pushes": member.pushes,
                    "refused": member.refused,
                    "staleness": sorted(member.staleness.items()),
                    "bytes_in": member.bytes_in,
                    "bytes_out": member.bytes_out,
                    "has_left": member.has_left,
                    "silent_for": 0.0 if member.is_waiting else now - member.seen,
                }
                for peer, member in self._all.items()
            ]

    @property
    def last_heard(self) -> float:
        """When any of them was last heard of; minus infinity if there are none."""
        with self._changed:
            if any(member.is_waiting for member in self._all.values()):
                return self._now()
            times = (member.seen for member in self._all.values())
            return max(times, default=float("-inf"))

    def _is_present(self, member: Member) -> bool:
        return member.is_waiting or self._now() - member.seen <= self.lease

    def _present(self) -> list[Member]:
        """Return those whose steps count."""
        return [
            member
            for member in self._all.values()
            if not member.has_left and self._is_present(member)
        ]

    def _slowest(self) -> int:
        return min((member.clock for member in self._present()), default=0)
