# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from benchmarks import quality, quality_page


def results(**losses):
    """Losses of each model, a seed each, on a table."""
    return {
        model.replace("_", " "): {
            i: {"loss": x, "seconds": 1.0} for i, x in enumerate(own)
        }
        for model, own in losses.items()
    }


def test_models_are_compared_seed_by_seed():
    found = results(one=[1.0, 3.0, 9.0], other=[2.0, 4.0])
    assert quality_page.differs(found["one"], found["other"]) == (-1.0, 0.0)
    assert quality_page.mean_ratio({"t": found}, "one", "other") == pytest.approx(4 / 6)


def test_what_was_not_reached_is_said():
    tables = {
        "good": results(skest=[1.0, 1.1], boosting=[1.0, 1.2], linear=[2.0, 2.0]),
        "bad": results(skest=[2.0, 2.1], boosting=[1.0, 1.0], linear=[1.0, 1.0]),
    }
    lines = quality_page.aims(tables, "skest")
    nowhere = next(line for line in lines if "nowhere worse" in line)
    assert nowhere.endswith("| bad (linear) | **not reached** |")
    assert any("half | 1 of 2 | reached" in line for line in lines)


def test_an_interrupted_run_goes_on(tmp_path, monkeypatch, capsys):
    fits = []
    monkeypatch.setattr(
        quality,
        "fitted",
        lambda model, task, split, seed: (
            fits.append(seed) or {"loss": 1.0, "seconds": 1.0, "accuracy": 0.5}
        ),
    )
    out = tmp_path / "quality"
    options = ["--tables", "iris", "--models", "linear", "--out", str(out), "--seeds"]
    quality.main([*options, "1"])
    quality.main([*options, "2", "--write"])
    assert fits == [0, 1]
    lines = (out / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 1]
    assert "| iris | **1 ± 0** |" in (tmp_path / "quality.md").read_text()
