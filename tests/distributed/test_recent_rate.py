# SPDX-License-Identifier: Apache-2.0
import pytest

from skest.distributed.recent_rate import RecentRate


@pytest.mark.parametrize("per_second", [1, 10, 100])
@pytest.mark.parametrize("duration", [5, 100])
def test_a_steady_rate_is_found(per_second, duration):
    rate = RecentRate(start=50.0)
    for i in range(duration * per_second):
        rate.count(now=50 + (i + 0.5) / per_second)
    assert rate.per_second(now=50 + duration) == pytest.approx(per_second, rel=0.02)


def test_what_is_long_ago_does_not_count():
    rate = RecentRate(start=0.0, seconds=2.0)
    for i in range(1000):
        rate.count(now=i / 100)
    assert rate.per_second(now=10.0) == pytest.approx(100, rel=0.01)
    assert rate.per_second(now=30.0) < 0.01


def test_nothing_has_happened_at_the_beginning():
    rate = RecentRate(start=3.0)
    assert rate.per_second(now=3.0) == 0.0
    assert rate.per_second(now=4.0) == 0.0
