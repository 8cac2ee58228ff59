# SPDX-License-Identifier: Apache-2.0
import json
import logging
import math
from pathlib import Path

import pytest

from skest import Estimator
from skest.eval_results import append_eval_result, read_eval_results
from tests._models import model_fn, raising, table_fn


def test_round_trip(tmp_path):
    directory = tmp_path / "model" / "eval"
    assert read_eval_results(directory) == {}
    for step, loss in ((20, 0.5), (10, math.inf), (20, 0.25)):
        append_eval_result(directory, {"global_step": step, "loss": loss})
    results = read_eval_results(str(directory))
    assert list(results) == [10, 20]
    assert results[10] == {"global_step": 10, "loss": math.inf}
    assert results[20]["loss"] == 0.25
    lines = (directory / "results.jsonl").read_text().splitlines()
    assert [json.loads(line)["metrics"]["global_step"] for line in lines] == [
        20,
        10,
        20,
    ]
    assert json.loads(lines[0])["time"] <= json.loads(lines[-1])["time"]


def test_nan_is_read_back(tmp_path):
    append_eval_result(tmp_path, {"global_step": 1, "loss": math.nan})
    assert math.isnan(read_eval_results(tmp_path)[1]["loss"])


def test_evaluate_records_its_results(tmp_path):
    estimator = Estimator(model_fn, tmp_path).train(table_fn())
    first = estimator.evaluate(table_fn())
    named = estimator.evaluate(table_fn(), steps=1, name="test")
    assert read_eval_results(estimator.eval_dir()) == {5: first}
    assert read_eval_results(estimator.eval_dir("test")) == {5: named}


def test_a_failure_of_writing_keeps_the_older_results(tmp_path, monkeypatch, caplog):
    estimator = Estimator(model_fn, tmp_path).train(table_fn())
    before = estimator.evaluate(table_fn())
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", raising(OSError(28, "No space left")))
        with caplog.at_level(logging.WARNING, "skest"):
            assert estimator.evaluate(table_fn(), steps=1)["loss"] != before["loss"]
    assert "The result is not recorded" in caplog.text
    assert "No space left" in caplog.text
    assert read_eval_results(estimator.eval_dir()) == {5: before}
    names = {path.name for path in estimator.eval_dir().iterdir()}
    events = {name for name in names if "tfevents" in name}  # of the first evaluation
    assert names - events == {"results.jsonl"}


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"metrics": {"loss": 1}}'])
def test_a_line_of_something_else(tmp_path, line):
    append_eval_result(tmp_path, {"global_step": 1})
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(
        ValueError, match="Line 2 of .*results.jsonl' is not the result"
    ):
        read_eval_results(tmp_path)
