# SPDX-License-Identifier: Apache-2.0
import json
import logging
import math

import pytest

from skest import Estimator, EvalSpec
from skest.checkpoints.store import read_eval_results, write_eval_result
from tests._models import model_fn, table_fn


def test_evaluate_records_its_results(tmp_path):
    estimator = Estimator(model_fn, tmp_path)
    assert read_eval_results(estimator.eval_dir()) == {}
    estimator.train(table_fn())
    estimator.evaluate(table_fn(), steps=1)
    first = estimator.evaluate(table_fn())  # replaces the one of the same step
    named = estimator.evaluate(table_fn(), steps=1, name="test")
    second = estimator.train(table_fn()).evaluate(table_fn())
    assert read_eval_results(str(estimator.eval_dir())) == {5: first, 10: second}
    assert read_eval_results(estimator.eval_dir("test")) == {5: named}
    written = json.loads((estimator.eval_dir() / "5.json").read_text())
    assert written.items() >= first.items()


def test_what_is_no_number_is_read_back(tmp_path):
    for step, loss in ((20, math.nan), (10, math.inf)):
        write_eval_result(tmp_path, {"global_step": step, "loss": loss})
    results = read_eval_results(tmp_path)
    assert list(results) == [10, 20]
    assert results[10]["loss"] == math.inf
    assert math.isnan(results[20]["loss"])


def test_a_directory_that_cannot_be_written_is_no_error(tmp_path, caplog):
    estimator = Estimator(model_fn, tmp_path).train(table_fn())
    estimator.eval_dir().write_text("a file is in the way")
    with caplog.at_level(logging.WARNING, "skest"):
        assert estimator.evaluate(table_fn())["global_step"] == 5
    assert "The result is not recorded" in caplog.text


def test_a_name_that_leads_elsewhere(tmp_path):
    for name in ["../x", "a/b", "..", ".", "/x"]:
        estimator = Estimator(model_fn, tmp_path / "model").train(table_fn(), steps=1)
        with pytest.raises(ValueError, match="'name' of an evaluation must be .* of a"):
            estimator.evaluate(table_fn(), name=name)
        with pytest.raises(ValueError, match="'name' of EvalSpec must be the .* a dir"):
            EvalSpec(table_fn(), name=name)
        assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_damaged_file_is_named(tmp_path):
    for content in ["{", "[]", '{"loss": 1}', '{"global_step": 1}']:
        write_eval_result(tmp_path, {"global_step": 1})
        (tmp_path / "2.json").write_text(content)
        with pytest.raises(ValueError, match="/2.json' is not the result .*Delete it"):
            read_eval_results(tmp_path)
