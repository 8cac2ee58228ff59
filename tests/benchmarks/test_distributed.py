# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from benchmarks import distributed, locking_cost
from benchmarks.measure import Settings

TINY = Settings("tiny")
WAYS = {way.name: way for way in distributed.WAYS}


def test_cost_of_reads_that_wait():
    slower_and_slower = [90.0, 98.0, 94.0, 82.0]  # 86 to 96
    assert locking_cost.cost_in_percent(slower_and_slower) == pytest.approx(100 / 9.6)
    disturbed = [90.0, 100.0, 100.0, 90.0, 1.0, 100.0, 100.0, 1.0]
    disturbed += [95.0, 100.0, 100.0, 95.0]
    assert locking_cost.cost_in_percent(disturbed) == pytest.approx(10)
    assert locking_cost.cost_in_percent([101.0, 100.0, 100.0, 101.0]) < 0


def result():
    peer = distributed.TENSORFLOW.format(2, "s")
    values = {
        distributed.EAGER: [100.0, 100.0],
        distributed.ASYNC: [90.0, 180.0],
        peer: [100.0, 100.0],
    }
    return {
        "title": "Several processes",
        "text": "Text.\n",
        "unit": "examples/s",
        "more_is_better": True,
        "cases": [{"name": "all equal", "x": None, "values": values, "notes": {}}],
        "run": {
            "command": "python -m benchmarks.distributed",
            "date": "2026-01-01",
            "commit": "abc",
            "machine": "2 cores",
            "versions": {"Python": "3.11"},
            "clock": "wall",
            "busy": False,
            "missing": {},
        },
    }


COSTS = {
    "server": 0.002,
    "server, small": 0.0005,
    "bytes, sparse": 2e6,
    "bytes, dense": 1e8,
    "attach": 0.02,
    "notice": 2.0,
    "locking": 10.0,
}


def test_page():
    text = distributed.page(result(), COSTS)
    assert "| 2 workers, 1 ps, to tf.estimator | ≥ 0.9 | 1.35 |" in text
    assert "| bytes of a step, dense tables to sparse | ≥ 50 | 50 |" in text
    assert "| the end of a killed ps is seen | ≤ 1 s | 2 s |" in text
    assert "| cost of reads that wait for updates | ≤ 5 % | 10 % |" in text
    assert text.count("not measured") == 4
    assert (
        "for 2 ms, one of a small model for 0.5 ms: no more than 500 and 2,000" in text
    )
    assert "`python -m benchmarks.distributed`, 2026-01-01, commit abc" in text


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
