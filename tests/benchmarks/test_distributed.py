# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from benchmarks import distributed
from benchmarks.measure import Settings

TINY = Settings("tiny")


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
