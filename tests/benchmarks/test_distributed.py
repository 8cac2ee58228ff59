# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from benchmarks import distributed, locking_cost
from benchmarks.measure import Settings

TINY = Settings("tiny")


def test_cost_of_reads_that_wait():
    slower_and_slower = [90.0, 98.0, 94.0, 82.0]  # 86 to 96
    assert locking_cost.cost_in_percent(slower_and_slower) == pytest.approx(100 / 9.6)
    disturbed = [90.0, 100.0, 100.0, 90.0, 1.0, 100.0, 100.0, 1.0]
    disturbed += [95.0, 100.0, 100.0, 95.0]
    assert locking_cost.cost_in_percent(disturbed) == pytest.approx(10)
    assert locking_cost.cost_in_percent([101.0, 100.0, 100.0, 101.0]) < 0


COSTS = {
    "server": 0.002,
    "server, small": 0.0005,
    "bytes, sparse": 2e6,
    "bytes, dense": 1e8,
    "attach": 0.02,
    "notice": 2.0,
    "locking": 10.0,
}


def test_main(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(distributed, "Settings", lambda *given, **more: TINY)
    monkeypatch.setattr(distributed, "measured_costs", lambda settings: COSTS)
    monkeypatch.setattr(distributed, "train", lambda *given: {"rate": 1.0})
    out = tmp_path / "distributed"
    arguments = [
        "--only",
        distributed.LOCAL,
        "--no-peers",
        "--write",
        "--out",
        str(out),
    ]
    distributed.main(arguments)
    written = json.loads((out / "numbers.json").read_text())
    assert written["costs"] == COSTS
    page = out.with_suffix(".md").read_text()
    assert page in capsys.readouterr().out
    assert page == distributed.page(written["rates"], written["costs"])


@pytest.mark.skipif(
    not distributed.FOLDER.exists(), reason="there are no committed results"
)
def test_the_page_is_what_the_committed_numbers_give():
    written = json.loads((distributed.FOLDER / "numbers.json").read_text())
    page = distributed.FOLDER.with_suffix(".md").read_text(encoding="utf-8")
    assert page == distributed.page(written["rates"], written["costs"])
