# SPDX-License-Identifier: Apache-2.0
import json
import math
import re
import warnings

import pytest
import torch

from benchmarks import gpu, report
from benchmarks.measure import (
    Absent,
    Case,
    Reported,
    Settings,
    Suite,
    Timed,
    measured,
    threads,
)
from benchmarks.suites import census
from benchmarks.suites.order import SUITES
from benchmarks.tables import Split, mixed

TINY = Settings("tiny")


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings(), threads(1):
        warnings.filterwarnings("ignore", "Sparse invariant checks")
        warnings.filterwarnings("ignore", "Got `batch_size`")
        yield


@pytest.fixture
def small_census(monkeypatch):
    table = mixed(300)
    y = (table["number_0"] > 0).to_numpy().astype(int)
    split = Split(table, y, table, y, ["number_0"], ["string_10"])
    monkeypatch.setattr(census.tables, "census", lambda: split)


def values_of(result):
    for case in result["cases"]:
        yield from case["values"].items()


@pytest.mark.parametrize(
    "name",
    [
        "dense",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in sorted(SUITES.keys() - {"dense", "memory", "start"})
        ),
    ],
)
def test_every_suite_runs(name, small_census, monkeypatch):
    monkeypatch.setattr(census, "TARGET", 1.0)
    result = json.loads(json.dumps(measured(SUITES[name], TINY)))
    names = set()
    for contender, values in values_of(result):
        names.add(contender.split(",")[0])
        assert len(values) == 1
        assert 0 < values[0] < math.inf
    assert "skest" in names
    assert len(names) > 1


@pytest.mark.parametrize("suite", gpu.SUITES, ids=lambda suite: suite.name)
def test_work_of_the_gpu_on_the_cpu(suite):
    for case in suite.cases(TINY, device="cpu"):
        for name, contender in case.contenders.items():
            if "inductor" not in name and "compile" not in name:  # they take seconds
                assert contender.measure(TINY) > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu(capsys):
    assert gpu.main([]) == 2
    assert capsys.readouterr().err == "There is no CUDA device here.\n"


def test_contenders_take_turns_and_warm_up():
    calls = []

    def own(name, seconds):
        calls.append(name)
        return {"wall": seconds}

    contenders = {
        "first": Timed(lambda: calls.append("first")),
        "absent": Absent("no such model"),
        "elsewhere": Reported(lambda: own("elsewhere", 0.5), note="alone"),
    }
    case = Case("case", contenders, lambda seconds: 10 / seconds, n_rounds=2)
    suite = Suite("s", "S", "", "rows/s", True, lambda settings: [case])
    (result,) = measured(suite, TINY)["cases"]
    assert calls == ["first", "first", "elsewhere", "first", "elsewhere"]
    assert result["values"]["elsewhere"] == [20.0, 20.0]
    assert list(result["values"]) == ["first", "elsewhere"]
    assert result["notes"] == {"absent": "no such model", "elsewhere": "alone"}


def make_result(more_is_better=True, busy=False):
    case = {
        "name": "batch 32",
        "x": None,
        "values": {"by hand": [10.0, 20.0, 40.0], "skest": [20.0, 30.0, 50.0]},
        "notes": {"skest": "4 epochs", "other": "no such model"},
    }
    return {
        "name": "dense",
        "title": "Title",
        "text": "Text.",
        "unit": "examples/s",
        "more_is_better": more_is_better,
        "x_label": "",
        "cases": [case],
        "run": {
            "command": "python -m benchmarks.run",
            "date": "2026-01-01",
            "commit": "abc",
            "machine": "2 cores",
            "versions": {"Python": "3.11"},
            "clock": "processor",
            "busy": busy,
            "missing": {"Keras 3": "no network"},
        },
    }


def test_page_and_plots(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    for is_busy in (True, False):
        path = folder / f"dense{is_busy}.json"
        path.write_text(json.dumps(make_result(busy=is_busy)))
    page = report.write(folder).read_text()
    assert page.count("## Title") == page.count(report.BESIDE) == 1
    assert "commit abc, processor time: 2 cores; Python 3.11; without Keras 3" in page
    for link in re.findall(r"\]\((.*)\)", page):
        assert (tmp_path / link).stat().st_size > 1000
    before = (folder / "dense.svg").read_bytes()
    report.write(folder)
    assert (folder / "dense.svg").read_bytes() == before


@pytest.mark.skipif(not report.FOLDER.exists(), reason="tests run outside a checkout")
def test_the_page_is_what_the_committed_results_give():
    results = report.load(report.FOLDER)
    assert {result["name"] for result in results} == set(SUITES)
    page = report.FOLDER.with_suffix(".md").read_text(encoding="utf-8")
    assert page == report.page(results, report.FOLDER.name)
    assert results
