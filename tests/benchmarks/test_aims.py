# SPDX-License-Identifier: Apache-2.0
import pytest

from benchmarks.aims import AIMS, Aim, found, table
from benchmarks.suites.order import SUITES


def results(more_is_better=True, **values):
    case = {"name": "batch 128", "values": values}
    other = {"name": "batch 1,280", "values": {}}
    return [
        {
            "name": "dense",
            "more_is_better": more_is_better,
            "run": {"busy": False},
            "cases": [case, other],
        }
    ]


@pytest.mark.parametrize(("more_is_better", "ratio"), [(True, 2.0), (False, 0.5)])
def test_what_was_found_is_the_median_of_rounds(more_is_better, ratio):
    run = results(more_is_better, skest=[2, 4, 9], skorch=[1, 2, 3])
    aim = Aim("dense", "batch 128", "skest", "skorch", 1.8)
    assert found(aim, run) == [("batch 128", ratio)]


def test_what_was_missed_is_said():
    values = {"skest, auto": [4.0], "skorch": [1.0], "PyTorch by hand": [2.0]}
    lines = table(results(**values)).splitlines()
    assert (
        "| dense, batch 128 | skest, auto / PyTorch by hand | 1.8 | 2.00 | reached |  |"
        in lines
    )
    assert "| dense, batch 128 | skest, auto / skorch | 8 | 4.00 | missed |  |" in lines


def test_aims_are_of_suites():
    assert {aim.suite for aim in AIMS} <= set(SUITES)
