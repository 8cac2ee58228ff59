# SPDX-License-Identifier: Apache-2.0
import errno
import json
import logging
import math

import pytest

from skest import Estimator, EvalSpec, _line_files
from skest.eval_results import append_eval_result, read_eval_results
from tests import _forkserver
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
    content = (estimator.eval_dir() / "results.jsonl").read_bytes()

    def filling(file, line):
        file.write(line[:9])
        raise OSError(28, "No space left")

    with monkeypatch.context() as patch:
        patch.setattr(_line_files, "_write_all", filling)
        with caplog.at_level(logging.WARNING, "skest"):
            assert estimator.evaluate(table_fn(), steps=1)["loss"] != before["loss"]
    assert "The result is not recorded" in caplog.text
    assert "No space left" in caplog.text
    assert read_eval_results(estimator.eval_dir()) == {5: before}
    assert (estimator.eval_dir() / "results.jsonl").read_bytes() == content
    names = {path.name for path in estimator.eval_dir().iterdir()}
    events = {name for name in names if "tfevents" in name}  # of the first evaluation
    assert names - events == {"results.jsonl"}


def test_a_line_without_its_end_is_replaced_by_the_next(tmp_path):
    append_eval_result(tmp_path, {"global_step": 1})
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"time": 1.0, "metr')  # the process was killed
    assert list(read_eval_results(tmp_path)) == [1]
    append_eval_result(tmp_path, {"global_step": 2})
    assert list(read_eval_results(tmp_path)) == [1, 2]


def test_a_whole_line_without_its_end_stays(tmp_path, monkeypatch):
    append_eval_result(tmp_path, {"global_step": 1})
    path = tmp_path / "results.jsonl"
    path.write_bytes(b"\n" + path.read_bytes().rstrip())  # as some editors leave it
    content = path.read_bytes()
    with monkeypatch.context() as patch, pytest.raises(OSError, match="full"):
        patch.setattr(_line_files, "_write_all", raising(OSError(28, "full")))
        append_eval_result(tmp_path, {"global_step": 2})
    assert path.read_bytes() == content
    append_eval_result(tmp_path, {"global_step": 2})
    assert list(read_eval_results(tmp_path)) == [1, 2]


def test_empty_lines_are_skipped(tmp_path):
    for step in (1, 2):
        append_eval_result(tmp_path, {"global_step": step})
        with (tmp_path / "results.jsonl").open("ab") as file:
            file.write(b"\n\r\n")
    assert list(read_eval_results(tmp_path)) == [1, 2]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    error = OSError(errno.ENOLCK, "No locks available")
    monkeypatch.setattr(_line_files, "acquire", raising(error))
    for step in (1, 2):
        append_eval_result(tmp_path, {"global_step": step})
    assert list(read_eval_results(tmp_path)) == [1, 2]
    monkeypatch.setattr(_line_files, "acquire", raising(OSError(5, "broken")))
    with pytest.raises(OSError, match="broken"):
        append_eval_result(tmp_path, {"global_step": 3})


def append_many(directory, first):
    for step in range(first, first + 100):
        append_eval_result(directory, {"global_step": step})


def test_evaluations_at_the_same_time_lose_nothing(tmp_path):
    context = _forkserver.context()
    starts = range(0, 400, 100)
    processes = [
        context.Process(target=append_many, args=(tmp_path, start)) for start in starts
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert list(read_eval_results(tmp_path)) == list(range(400))


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "/x"])
def test_a_name_that_leads_elsewhere(tmp_path, name):
    estimator = Estimator(model_fn, tmp_path / "model").train(table_fn(), steps=1)
    with pytest.raises(
        ValueError, match="'name' of an evaluation must be the name of a"
    ):
        estimator.evaluate(table_fn(), name=name)
    with pytest.raises(
        ValueError, match="'name' of EvalSpec must be the name of a dir"
    ):
        EvalSpec(table_fn(), name=name)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"metrics": {"loss": 1}}'])
def test_a_line_of_something_else(tmp_path, line):
    append_eval_result(tmp_path, {"global_step": 1})
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(
        ValueError, match="Line 2 of .*results.jsonl' is not the result"
    ):
        read_eval_results(tmp_path)


def test_no_damage_changes_the_results_without_a_word(tmp_path):
    for step, loss in ((10, 0.5), (20, 0.25)):
        append_eval_result(tmp_path, {"global_step": step, "loss": loss})
    path = tmp_path / "results.jsonl"
    content, results = path.read_bytes(), read_eval_results(tmp_path)

    def check(damaged):
        path.write_bytes(damaged)
        try:
            assert read_eval_results(tmp_path) == results
        except ValueError as error:
            assert str(path) in str(error)

    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << place % 8
        check(flipped)
        if place % 10 == 0:
            check(content[:place].ljust(len(content), b"\0"))
            check(content[:place] + bytes(20) + content[place + 20 :])


@pytest.mark.parametrize("damage", [b"*", b"\0", b"\x8a"])
def test_damage_at_the_end_is_not_taken_for_a_process_that_was_killed(tmp_path, damage):
    append_eval_result(tmp_path, {"global_step": 1})
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes()[:-1] + damage)
    append_eval_result(tmp_path, {"global_step": 2})
    with pytest.raises(ValueError, match="Line 1 of .* or is damaged"):
        read_eval_results(tmp_path)


def test_lines_of_earlier_releases_have_no_checksum(tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text('{"time": 1.0, "metrics": {"global_step": 1, "loss": 0.5}}\n')
    append_eval_result(tmp_path, {"global_step": 2, "loss": 0.25})
    assert [m["loss"] for m in read_eval_results(tmp_path).values()] == [0.5, 0.25]


def test_a_line_that_lost_its_checksum_is_damaged(tmp_path):
    for step in (1, 2):
        append_eval_result(tmp_path, {"global_step": step})
    path = tmp_path / "results.jsonl"
    first, second = path.read_text().splitlines()
    path.write_text(first + "\n" + second.partition(', "crc32"')[0] + "}\n")
    with pytest.raises(ValueError, match="Line 2 of .*results.jsonl' .* or is damaged"):
        read_eval_results(tmp_path)
    path.write_text(first + "\n")  # as if the second evaluation had not been
    assert list(read_eval_results(tmp_path)) == [1]
