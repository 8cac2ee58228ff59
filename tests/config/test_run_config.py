# SPDX-License-Identifier: Apache-2.0

import copy
import dataclasses
import pickle
from pathlib import Path

import pytest

from skest import KeepBest, RunConfig
from skest.distributed import (
    AsyncParameterServer,
    DataParallel,
    LocalSGD,
    SharedMemory,
    TaskConfig,
)


def test_time_decides_about_checkpoints_unless_steps_do():
    for args, secs in [
        ({}, 600),
        ({"save_checkpoints_steps": 5}, None),
        ({"save_checkpoints_steps": 0}, None),
        ({"save_checkpoints_secs": 2.5}, 2.5),
        ({"save_checkpoints_secs": 0}, 0),
        ({"save_checkpoints_steps": None}, None),
        ({"save_checkpoints_secs": None}, None),
        ({"save_checkpoints_steps": None, "save_checkpoints_secs": None}, None),
    ]:
        assert RunConfig(**args).save_checkpoints_secs == secs


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model_dir", "", "must not be empty"),
        ("execution", "fast", "of RunConfig must be one of 'auto', 'eager', 'graph'"),
        ("save_checkpoints_steps", -1, "must be an integer of at least 0; got -1"),
        (
            "save_checkpoints_secs",
            float("nan"),
            "must be a .* number of at least 0; got nan",
        ),
        ("keep_checkpoint_every_n_hours", 0, "of RunConfig must be .*greater than 0"),
        ("log_step_count_steps", 0, "must be an integer of at least 1"),
        ("num_threads", "many", "of RunConfig must be an integer"),
        ("train_distribute", "ps", r"a strategy .*AsyncParameterServer\(\).*got 'ps'"),
        ("eval_distribute", SharedMemory(), "must be None.* in one process"),
        ("max_worker_delay_secs", -1, "must be a finite number of at least 0"),
        ("session_creation_timeout_secs", 0, "of RunConfig must be .* greater than 0"),
        ("task", {"type": "worker"}, "must be a skest.distributed.TaskConfig; got"),
        ("keep_best", 3, r"must be a skest\.KeepBest"),
    ],
)
def test_wrong_values_are_refused_by_name(name, value, message):
    with pytest.raises((TypeError, ValueError), match=f"'{name}'.*{message}"):
        RunConfig(**{name: value})


def test_replace_checks_names_and_values():
    with pytest.raises(ValueError, match=r"RunConfig has no field 'seed'.*random_seed"):
        RunConfig().replace(seed=1)
    with pytest.raises(ValueError, match="'num_threads' of RunConfig must be"):
        RunConfig().replace(num_threads=0)


def test_the_environment_is_read_when_the_object_is_made(monkeypatch):
    before = RunConfig()
    monkeypatch.setenv("SKEST_CONFIG", '{"task": {"type": "evaluator", "index": 2}}')
    config = RunConfig(random_seed=1)
    monkeypatch.delenv("SKEST_CONFIG")
    for same in (config, config.replace(random_seed=2), copy.deepcopy(config)):
        assert (same.task_type, same.task_id, same.is_chief) == ("evaluator", 2, False)
    assert pickle.loads(pickle.dumps(config)).task == TaskConfig("evaluator", 2)
    assert before.task == RunConfig().task == TaskConfig()


def test_model_dir_of_the_environment_can_be_replaced(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"model_dir": "theirs"}')
    config = RunConfig()
    assert config.model_dir == "theirs"
    assert config.replace(model_dir="mine").model_dir == "mine"
    assert RunConfig(model_dir=Path("theirs")).model_dir == Path("theirs")
    with pytest.raises(ValueError, match="'model_dir' is 'mine' here but 'theirs' in"):
        RunConfig(model_dir="mine")


# KeepBest


def test_wrong_arguments_of_keep_best():
    for arguments, error, match in [
        ({"number": 0}, ValueError, "'number' of KeepBest"),
        ({"metric": ""}, ValueError, "'metric' of KeepBest must not be empty"),
        ({"metric": 3}, TypeError, "must be the name of a metric; got 3"),
        ({"eval_name": 3}, TypeError, "'eval_name' of KeepBest must be a string"),
    ]:
        with pytest.raises(error, match=match):
            KeepBest(**arguments)


def test_strategies_are_values_for_a_run_config():
    for strategy in [
        AsyncParameterServer(3, 2, lease=1.0),
        SharedMemory(1),
        DataParallel(),
        LocalSGD(1),
    ]:
        config = RunConfig(train_distribute=strategy)
        assert pickle.loads(pickle.dumps(config)) == config
        assert config.replace(random_seed=1).train_distribute == strategy
        assert hash(strategy) == hash(dataclasses.replace(strategy))
        with pytest.raises(dataclasses.FrozenInstanceError):
            strategy.num_workers = 3


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        (AsyncParameterServer, "num_ps", 1.0, ""),
        (AsyncParameterServer, "lease", 86401, "86400 seconds"),
        (AsyncParameterServer, "timeout", 1e14, "a day; got"),
        (AsyncParameterServer, "use_locking", 1, "be True or False; got 1"),
        (SharedMemory, "lease", 0, ""),
        (SharedMemory, "num_workers", 0, ""),
        (LocalSGD, "sync_every", 0, ""),
    ],
)
def test_wrong_values_of_strategies_are_refused_by_name(kind, name, value, message):
    match = f"'{name}' of {kind.__name__} must .*{message}"
    with pytest.raises((TypeError, ValueError), match=match):
        kind(**{name: value})
