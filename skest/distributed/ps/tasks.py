# SPDX-License-Identifier: Apache-2.0
"""The tasks that train with a parameter server: who is there, and how far."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from skest.distributed.ps.connection import Peer


@dataclass
class Member:
    """What a server knows of one task.

    Parameters
    ----------
    clock : int
        Steps that it took, on the scale of the others.
    seen : float
        When it was last heard of.
    staleness : Counter
        How many of its updates came after how many others that their gradients did not
        know.
    has_left : bool
        Whether it said that it does no more.
    """

    clock: int
    seen: float
    staleness: Counter[int] = field(default_factory=Counter)
    has_left: bool = False


class Members:
    """All tasks that ever had a session with a server.

    Parameters
    ----------
    lease : float, seconds
        After so long a task that was not heard of is taken for lost: nobody waits for it
        any more. It may come back.
    max_staleness : int or None
        How many steps a task may be ahead of the slowest; None is any number.

    References
    ----------
    Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter
    Server", NeurIPS 2013.
    """

    def __init__(self, lease: float, max_staleness: int | None = None) -> None:
        self.lease, self.max_staleness = lease, max_staleness
        self._all: dict[Peer, Member] = {}
        self._lock = threading.RLock()

    def heard(self, peer: Peer) -> None:
        """Note that a task is there; one that is new, or back, is as far as the slowest."""
        with self._lock:
            now = time.monotonic()
            known = self._all.get(peer)
            if known is None or known.has_left or not self._is_present(known):
                clock = min((m.clock for m in self._present()), default=0)
                member = self._all.setdefault(peer, Member(clock, now))
                member.clock, member.has_left = max(member.clock, clock), False
            self._all[peer].seen = now

    def pushed(self, peer: Peer, staleness: int) -> None:
        """Note that a task took a step."""
        with self._lock:
            member = self._all[peer]
            member.clock += 1
            member.staleness[staleness] += 1

    def left(self, peer: Peer) -> None:
        """Note that a task takes no more steps."""
        with self._lock:
            if peer in self._all:
                self._all[peer].has_left = True

    def must_wait(self, peer: Peer, n_ahead: int = 0) -> bool:
        """Tell whether a task is too far ahead, when it has taken `n_ahead` more steps."""
        if self.max_staleness is None:
            return False
        with self._lock:
            slowest = min((m.clock for m in self._present()), default=0)
            return self._all[peer].clock + n_ahead - slowest > self.max_staleness

    def active(self, but: Peer) -> list[str]:
        """Return the names of the others that are there and did not leave."""
        with self._lock:
            return [
                str(peer)
                for peer, member in self._all.items()
                if peer != but and not member.has_left and self._is_present(member)
            ]

    def to_json(self) -> list[dict[str, Any]]:
        """Return what is known of every task."""
        with self._lock:
            return [
                {
                    **peer._asdict(),
                    "pushes": member.staleness.total(),
                    "staleness": sorted(member.staleness.items()),
                    "has_left": member.has_left,
                }
                for peer, member in self._all.items()
            ]

    @property
    def last_heard(self) -> float:
        """When any of them was last heard of; minus infinity if there are none."""
        with self._lock:
            times = (member.seen for member in self._all.values())
            return max(times, default=float("-inf"))

    def _is_present(self, member: Member) -> bool:
        return time.monotonic() - member.seen <= self.lease

    def _present(self) -> list[Member]:
        """Return those whose steps count."""
        return [
            member
            for member in self._all.values()
            if not member.has_left and self._is_present(member)
        ]
