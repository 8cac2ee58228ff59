# SPDX-License-Identifier: Apache-2.0

import json
import math
import warnings

import pytest
import torch

from benchmarks import distributed, gpu, report
from benchmarks.measure import Settings, measured, threads
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


@pytest.mark.skipif(not report.FOLDER.exists(), reason="tests run outside a checkout")
def test_the_page_is_what_the_committed_results_give():
    results = report.load(report.FOLDER)
    assert {result["name"] for result in results} == set(SUITES)
    page = report.FOLDER.with_suffix(".md").read_text(encoding="utf-8")
    assert page == report.page(results, report.FOLDER.name)
    assert results


@pytest.mark.skipif(
    not distributed.FOLDER.exists(), reason="there are no committed results"
)
def test_the_page_is_what_the_committed_numbers_give():
    written = json.loads((distributed.FOLDER / "numbers.json").read_text())
    page = distributed.FOLDER.with_suffix(".md").read_text(encoding="utf-8")
    assert page == distributed.page(written["rates"], written["costs"])
