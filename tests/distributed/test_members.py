# SPDX-License-Identifier: Apache-2.0
import threading

import pytest

from skest.distributed.ps.connection import Peer
from skest.distributed.ps.tasks import Members

CHIEF, FAST, SLOW = Peer("chief", 0), Peer("worker", 0), Peer("worker", 1)


class Clock:
    time = 100.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


def test_who_is_silent_for_longer_than_the_lease_is_lost(clock):
    members = Members(lease=10, now=clock)
    for peer in (CHIEF, FAST, SLOW):
        members.join(peer)
    clock.time += 9
    members.heard(FAST, 5, 7)
    assert members.active(but=CHIEF) == ["worker 0", "worker 1"]
    clock.time += 9
    assert members.active(but=CHIEF) == ["worker 0"]
    members.left(FAST)
    assert members.active(but=CHIEF) == []
    members.heard(SLOW, 0, 0)
    assert members.active(but=CHIEF) == ["worker 1"]


def test_what_is_known_of_a_task(clock):
    members = Members(lease=10, now=clock)
    members.join(FAST)
    members.heard(FAST, 5, 7)
    clock.time += 2
    for staleness in (0, 1, 1, 0):
        members.pushed(FAST, staleness)
    members.refused(FAST)
    assert members.to_json() == [
        {
            "task_type": "worker",
            "task_index": 0,
            "pushes": 4,
            "refused": 1,
            "staleness": [(0, 2), (1, 2)],
            "bytes_in": 5,
            "bytes_out": 7,
            "has_left": False,
            "silent_for": 2.0,
        }
    ]


def in_thread(work):
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


@pytest.mark.parametrize("release", ["push", "leave"])
def test_who_is_too_far_ahead_waits_for_the_slowest(release):
    members = Members(lease=60, max_staleness=1)
    for peer in (FAST, SLOW):
        members.join(peer)
    members.wait_for_others(FAST)
    members.pushed(FAST, 0)
    members.wait_for_others(FAST)
    members.pushed(FAST, 0)  # one step more than the bound, as it was allowed to begin
    thread = in_thread(lambda: members.wait_for_others(FAST))
    thread.join(0.1)
    assert thread.is_alive()
    if release == "push":
        members.pushed(SLOW, 0)
    else:
        members.left(SLOW)
    thread.join(60)
    assert not thread.is_alive()


def test_nobody_waits_for_longer_than_it_wants():
    members = Members(lease=60, max_staleness=0)
    for peer in (FAST, SLOW):
        members.join(peer)
    members.pushed(FAST, 0)
    members.wait_for_others(FAST, seconds=0.01)
    assert members.must_wait(FAST)
    members.pushed(SLOW, 0)
    assert not members.must_wait(FAST)


def test_who_comes_late_begins_where_the_slowest_is(clock):
    members = Members(lease=10, max_staleness=1, now=clock)
    members.join(FAST)
    for _ in range(50):
        members.pushed(FAST, 0)
    members.join(SLOW)
    members.wait_for_others(FAST)  # returns at once


def test_who_comes_back_does_not_hold_the_others_up(clock):
    members = Members(lease=10, max_staleness=1, now=clock)
    members.join(FAST)
    members.join(SLOW)
    clock.time += 11
    members.heard(FAST, 0, 0)
    for _ in range(50):
        members.pushed(FAST, 0)
    members.heard(SLOW, 0, 0)
    members.wait_for_others(FAST)
    members.pushed(SLOW, 0)
