# SPDX-License-Identifier: Apache-2.0
"""Warm starts of the core: what is taken over, from where, and what is refused."""

import copy
import logging
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from skest import (
    Estimator,
    EvalSpec,
    RunConfig,
    TrainSpec,
    VocabInfo,
    WarmStartSettings,
    train_and_evaluate,
)
from skest.checkpoints.checkpoint import Checkpoint
from skest.checkpoints.warm_start import warm_start
from skest.exceptions import CheckpointMismatchError, NotFittedError
from tests._models import model_fn, table_fn

FROZEN = {"lr": 1e-12}  # a step with it changes nothing that counts


@pytest.fixture
def trained():
    return Estimator(model_fn, config=RunConfig(random_seed=0)).train(table_fn())


def train(source, **options):
    """Return an Estimator after one step that hardly moves the variables."""
    options = {"params": FROZEN, "config": RunConfig(random_seed=1), **options}
    return Estimator(model_fn, warm_start_from=source, **options).train(
        table_fn(), steps=1
    )


def assert_started_from(new, old):
    assert new.checkpoint.variables.keys() == old.checkpoint.variables.keys()
    for name, value in old.checkpoint.variables.items():
        torch.testing.assert_close(new.checkpoint.variables[name], value)


# Sources


def test_from_an_estimator_in_memory_and_its_checkpoint(trained):
    for source in (trained, trained.checkpoint, WarmStartSettings(trained)):
        new = train(source)
        assert_started_from(new, trained)
        assert new.checkpoint.global_step == 1
        assert new.warm_start_report.warm_started == ["weight", "bias"]


def test_from_directories(tmp_path, trained):
    old = Estimator(model_fn, tmp_path / "model").train(table_fn(), steps=2)
    old.train(table_fn(), steps=1)
    old.export(tmp_path / "export", format="checkpoint")
    version = old.export(tmp_path / "export", format="checkpoint")
    first = tmp_path / "model" / "ckpt-2"
    for source in (
        *(tmp_path / "model", str(tmp_path / "model"), old.latest_checkpoint()),
        *(version, tmp_path / "export", old),
    ):
        assert_started_from(train(source), old)
    assert train(first).warm_start_report.source == str(first)
    assert train(tmp_path / "export").warm_start_report.source == str(version)


def test_a_directory_without_a_checkpoint(tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("empty", "nowhere"):
        new = Estimator(model_fn, tmp_path / "new", warm_start_from=tmp_path / name)
        with pytest.raises(ValueError, match=f"no checkpoint to warm-start .*{name}'"):
            new.train(table_fn())
        assert new.checkpoint is None


def test_an_estimator_without_a_checkpoint():
    with pytest.raises(NotFittedError, match="to warm-start from has no checkpoint"):
        train(Estimator(model_fn))


# When


def test_a_checkpoint_of_its_own_comes_first(tmp_path, trained):
    new = train(trained, model_dir=tmp_path)
    before = new.checkpoint
    again = Estimator(model_fn, tmp_path, params=FROZEN, warm_start_from="nowhere")
    again.train(table_fn(), steps=1)
    assert again.checkpoint.global_step == 2
    assert again.warm_start_report is None
    torch.testing.assert_close(again.checkpoint.variables, before.variables)


def test_train_and_evaluate_starts_warm_once(tmp_path, trained):
    def run(source):
        estimator = Estimator(model_fn, tmp_path, params=FROZEN, warm_start_from=source)
        results = train_and_evaluate(
            estimator, TrainSpec(table_fn(), max_steps=3), EvalSpec(table_fn())
        )
        return estimator, results

    estimator, (metrics, _) = run(trained)
    assert metrics["loss"] == pytest.approx(trained.evaluate(table_fn())["loss"])
    assert estimator.warm_start_report is not None
    again, results = run("nowhere")
    assert results[0] == metrics
    assert again.warm_start_report is None


# What


def test_a_pattern_matches_whole_names(trained):
    report = train(WarmStartSettings(trained, ".*ia.*")).warm_start_report
    assert report.warm_started == ["bias"]
    assert report.not_warm_started == {"weight": "not selected"}
    with pytest.raises(ValueError, match="'ias' matches no variable"):
        train(WarmStartSettings(trained, "ias"))


# Vocabularies


def test_every_axis_has_its_own_initializer():
    rows = VocabInfo(["a", "b"], 2, 0, ["b"], backup_initializer=nn.init.ones_)
    columns = VocabInfo([*"xyz"], 3, 0, [*"xy"], -1, nn.init.zeros_, 1)
    network = nn.ParameterDict({"table": nn.Parameter(torch.full((2, 3), 9.0))})
    old = Checkpoint(0, {"table": torch.tensor([[3.0, 4.0]])})
    settings = WarmStartSettings(old, None, {"table": [rows, columns]})
    report = warm_start(network, [], settings)
    assert network["table"].tolist() == [[1, 1, 1], [3, 4, 0]]
    assert report.variables[0][2:] == (1, 1, "not in the source, columns: 2 of 3")


def test_rows_that_are_lost_are_counted():
    rows = VocabInfo(["c", "d"], 2, 0, ["a", "b", "c"])
    network = nn.ParameterDict({"table": nn.Parameter(torch.zeros(2, 1))})
    old = Checkpoint(0, {"table": torch.tensor([[1.0], [2.0], [3.0]])})
    report = warm_start(network, [], WarmStartSettings(old, None, {"table": [rows]}))
    assert network["table"].tolist() == [[3], [0]]
    assert report.variables[0].reason == (
        "not in the source, 2 of the source have no place"
    )


# Refusals


def test_one_list_of_all_that_does_not_fit():
    network = nn.ModuleDict({"a": nn.Linear(2, 3), "b": nn.Linear(3, 1)})
    old = Checkpoint.capture(nn.ModuleDict({"a": nn.Linear(4, 3)}), 0)
    before = copy.deepcopy(network.state_dict())
    settings = WarmStartSettings(
        old,
        ["a", "b", "c"],
        {"d": VocabInfo("a", 1, 0, "a"), "a.bias": VocabInfo(["a"], 1, 0, ["a"])},
        {"e": "f"},
    )
    with pytest.raises(CheckpointMismatchError) as error:
        warm_start(network, [], settings)
    for line in (
        "The warm start from the checkpoint of step 0 is not possible:",
        "'vars_to_warm_start': 'c' matches no variable",
        "'var_name_to_vocab_info': there is no variable 'd'",
        "'var_name_to_prev_var_name': there is no variable 'e'",
        "a.weight: (3, 4) in the source, (3, 2) in the network",
        "a.bias: 'new_vocab' has 1 entries",
        "b.weight: missing in the source",
        "The source has: a.weight (3, 4), a.bias (3,).",
    ):
        assert line in str(error.value)
    torch.testing.assert_close(network.state_dict(), before, rtol=0, atol=0)


def test_wrong_settings():
    for arguments, error, match in [
        ({"vars_to_warm_start": "("}, ValueError, r"'\(', which is no regular expr"),
        ({"vars_to_warm_start": 3}, TypeError, "'vars_to_warm_start' must be"),
        ({"var_name_to_vocab_info": []}, TypeError, "by names of variables, .* list"),
        ({"var_name_to_vocab_info": {"a": 1}}, TypeError, "a VocabInfo .* list .*'a'"),
    ]:
        with pytest.raises(error, match=match):
            WarmStartSettings("somewhere", **arguments)


# Optimizers


@pytest.mark.parametrize("optimizer", ["ftrl", "adam"])
def test_warm_weights_survive_the_first_step(optimizer, trained):
    new = train(trained, params={"optimizer": optimizer, "lr": 1e-4})
    for name, value in trained.checkpoint.variables.items():
        torch.testing.assert_close(
            new.checkpoint.variables[name], value, rtol=0, atol=2e-3
        )


# Report and pickle


@pytest.mark.parametrize(
    ("new", "old", "warning"),
    [
        ([1, 2], ["1", "2"], "as text 2 is: give both the same type"),
        ([1, 2], "file", "as text 1 is: give both the same type"),
        (["x", "y"], "file", "no entry of 'new_vocab' is in 'old_vocab'."),
        (["a", "b"], ["b", "c"], None),
        (["a", "b"], [], None),
    ],
)
def test_vocabularies_that_share_nothing_are_doubtful(
    tmp_path, caplog, new, old, warning
):
    (tmp_path / "file").write_text("7\n1\n")
    old = tmp_path / old if old == "file" else old
    network = nn.ModuleDict({"a": nn.Embedding(3, 1), "b": nn.Linear(1, 1)})
    source = Checkpoint.capture(copy.deepcopy(network), 0)
    settings = WarmStartSettings(source, ".*", {"a.weight": VocabInfo(new, 2, 1, old)})
    with caplog.at_level(logging.WARNING, "skest"):
        warm_start(network, [], settings)
    if warning is None:
        assert not caplog.records
        return
    (record,) = caplog.records
    assert "'a.weight' took over no entry along axis 0" in record.getMessage()
    assert warning in record.getMessage()


def test_a_warm_start_of_nothing_is_a_warning(caplog):
    network = nn.ParameterDict({"table": nn.Parameter(torch.zeros(2, 2))})
    old = Checkpoint(0, {"table": torch.ones(2, 2)})
    with caplog.at_level(logging.WARNING, "skest"):
        warm_start(network, [], WarmStartSettings(old, None))
    assert "took nothing over; training starts anew" in caplog.text
    assert "not selected" in caplog.text


def test_a_pickle_has_no_source_that_has_done_its_work(trained):
    new = Estimator(model_fn, params=FROZEN, warm_start_from=trained)
    waiting = pickle.loads(pickle.dumps(new))
    assert_started_from(waiting.train(table_fn(), steps=1), trained)
    done = pickle.loads(pickle.dumps(waiting))
    assert done._warm_start_from is None
    assert str(done.warm_start_report) == str(waiting.warm_start_report)
    np.testing.assert_array_equal(
        done.get_variable_value("weight"), waiting.get_variable_value("weight")
    )


def test_files_tuples_arrays_and_ranges(tmp_path):
    path = tmp_path / "old.txt"
    path.write_text("ant\r\nbee\n")
    assert VocabInfo(("bee",), 1, 0, path).sources(1, 2).tolist() == [1]
    assert VocabInfo(np.array(["bee"]), 1, 0, str(path)).sources(1, 2).tolist() == [1]
    assert VocabInfo(range(3), -1, 0, np.array([2, 0])).sources(3, 2).tolist() == [
        *(1, -1, 0)
    ]


words = st.lists(st.sampled_from("abcdefghij"), unique=True)


@given(old=words, new=words, n_oov=st.integers(0, 3), old_oov=st.integers(0, 3))
def test_every_row_keeps_what_it_stands_for(old, new, n_oov, old_oov):
    info = VocabInfo(new, len(new), n_oov, old, len(old))
    sources = info.sources(len(new) + n_oov, len(old) + old_oov)
    for word, source in zip(new, sources, strict=False):
        assert (source == -1) == (word not in old)
        assert source == -1 or old[source] == word
    oov = sources[len(new) :]
    same = [len(old) + i for i in range(n_oov)]
    assert oov.tolist() == (same if n_oov == old_oov else [-1] * n_oov)


def test_what_does_not_fit():
    for info, match in [
        (VocabInfo("ab", -1, 0, "nowhere.txt"), "file 'ab' of 'new_vocab' cannot be"),
        (VocabInfo(["a"], 2, 0, ["a"]), "'new_vocab' has 1 entries, 'new_vocab_size'"),
        (VocabInfo(["a"], 1, 0, ["a"], 2), "'old_vocab' has 1 entries, 'old_vocab_s"),
        (VocabInfo(["a", "a"], 2, 0, ["a"]), "'new_vocab' has an entry more than once"),
        (VocabInfo(["a"], 1, 0, ["a", "a"]), "'old_vocab' has an entry more than once"),
        (VocabInfo(["a"], 1, 1, ["a"]), "has 1 entries and 1 buckets.* variable 1 alo"),
        (VocabInfo(["a"], 1, 0, ["a", "b"], axis=1), "2 entries, .* 1 along axis 1"),
    ]:
        with pytest.raises(ValueError, match=match):
            info.sources(1, 1)


def test_wrong_arguments():
    for options, error, match in [
        ({"new_vocab": 3}, TypeError, "'new_vocab' of a VocabInfo must be the path"),
        ({"old_vocab": {"a"}}, TypeError, "'old_vocab' .* sequence of entries; .* set"),
        ({"old_vocab_size": -2}, ValueError, "'old_vocab_size' of a VocabInfo"),
        ({"axis": -1}, ValueError, "'axis' of a VocabInfo"),
        ({"backup_initializer": "ones"}, TypeError, "function of a tensor or None"),
    ]:
        arguments = {
            **{"new_vocab": ["a"], "new_vocab_size": 1},
            **{"num_oov_buckets": 0, "old_vocab": ["a"]},
        }
        with pytest.raises(error, match=match):
            VocabInfo(**{**arguments, **options})
