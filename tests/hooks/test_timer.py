# SPDX-License-Identifier: Apache-2.0

import pytest

from skest.hooks import Timer
from tests._models import FakeClock


def due_at(timer, steps, clock=None, secs_per_step=0.0):
    due = []
    for step in steps:
        if clock is not None:
            clock.now += secs_per_step
        if timer.is_due(step):
            timer.mark(step)
            due.append(step)
    return due


@pytest.mark.parametrize(
    ("every", "steps", "due"),
    [
        (1, range(1, 5), [1, 2, 3, 4]),
        (3, range(1, 10), [1, 4, 7]),
        (3, range(5, 12), [5, 8, 11]),  # the first time asked, wherever that is
        (10, [1, 2, 25, 26, 35], [1, 25, 35]),  # steps may be left out
        (10, [1, 11, 12, 4, 5, 14, 15], [1, 11, 4, 14]),  # servers may be restored
    ],
)
def test_every_steps(every, steps, due):
    assert due_at(Timer(every_steps=every), steps) == due


def test_every_secs():
    clock = FakeClock(now=1000.0)
    timer = Timer(every_secs=1.0, clock=clock)
    assert due_at(timer, range(1, 9), clock, secs_per_step=0.5) == [1, 3, 5, 7]


def test_the_speed_between_two_events():
    clock = FakeClock(now=1000.0)
    timer = Timer(every_steps=10, clock=clock)
    assert timer.steps_per_sec is None
    for now, step, speed in (
        (1000.0, 0, None),
        (1002.0, 10, 5.0),
        (1003.0, 30, 20.0),
        (1003.0, 40, None),  # the clock has not moved
        (1004.0, 10, None),  # training went back
        (1005.0, 20, 10.0),
    ):
        clock.now = now
        timer.mark(step)
        assert timer.steps_per_sec == speed


@pytest.mark.parametrize("interval", [{"every_steps": 1}, {"every_secs": 1e-9}])
def test_one_step_is_due_once(interval):
    clock = FakeClock()
    timer = Timer(**interval, clock=clock)
    timer.mark(3)
    clock.now += 10
    assert not timer.is_due(3)
    assert timer.is_due(4)


def test_mark_tells_what_has_passed():
    clock = FakeClock(now=5.0)
    timer = Timer(every_steps=2, clock=clock)
    assert timer.mark(10) == (0, 0.0)
    clock.now = 7.5
    assert timer.mark(14) == (4, 2.5)


@pytest.mark.parametrize(
    ("interval", "message"),
    [
        ({}, "Exactly one of 'every_steps' and 'every_secs'.*None and None"),
        ({"every_steps": 1, "every_secs": 1.0}, "Exactly one of .*got 1 and 1.0"),
        ({"every_steps": 0}, "'every_steps' must be positive; got 0"),
        ({"every_secs": -1.0}, "'every_secs' must be positive; got -1.0"),
    ],
)
def test_exactly_one_positive_interval(interval, message):
    with pytest.raises(ValueError, match=message):
        Timer(**interval)
