# SPDX-License-Identifier: Apache-2.0
import multiprocessing
import time

import pytest

from benchmarks.turns import seconds_in_turns


def spend(seconds):
    def work():
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass

    return work


@pytest.fixture
def no_process_left():
    """Fail if a test leaves processes; those of joblib, of earlier tests, may live on."""
    before = {child.pid for child in multiprocessing.active_children()}
    yield
    assert {child.pid for child in multiprocessing.active_children()} <= before


def test_seconds_are_those_of_the_processor_in_a_call(no_process_left):
    found = seconds_in_turns({"short": spend(0.02), "long": spend(0.2)}, 0.1)
    assert [*found] == ["short", "long"]
    assert 0.02 <= found["short"] < found["long"]
    assert found["long"] >= 0.2


def test_an_error_ends_the_measurement(capfd, no_process_left):
    def broken():
        raise OSError("broken")

    with pytest.raises(RuntimeError, match="'broken' ended with the error above"):
        seconds_in_turns({"long": spend(60), "broken": broken}, 0.0)
    assert "OSError: broken" in capfd.readouterr().err
