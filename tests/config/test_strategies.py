# SPDX-License-Identifier: Apache-2.0
import dataclasses
import pickle

import pytest

from skest import RunConfig
from skest.distributed import AsyncParameterServer, DataParallel, LocalSGD, SharedMemory


def test_defaults():
    assert dataclasses.asdict(AsyncParameterServer()) == {
        "num_workers": 2,
        "num_ps": 1,
        "pipeline": 0,
        "max_staleness": None,
        "lease": 60.0,
        "use_locking": True,
        "timeout": 30.0,
    }
    assert SharedMemory().num_workers == 2
    assert LocalSGD().sync_every == 8


def test_strategies_are_values_for_a_run_config():
    for strategy in [
        AsyncParameterServer(3, 2, pipeline=1),
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


def test_wrong_values_are_refused_by_name():
    for make, args, error, message in [
        (
            AsyncParameterServer,
            {"num_workers": 0},
            ValueError,
            "'num_workers' of Async",
        ),
        (AsyncParameterServer, {"num_ps": 1.0}, TypeError, "'num_ps' of AsyncParam"),
        (
            AsyncParameterServer,
            {"pipeline": 2},
            ValueError,
            "'pipeline' .* 0 or 1; got 2",
        ),
        (AsyncParameterServer, {"pipeline": True}, TypeError, "'pipeline' of Async"),
        (AsyncParameterServer, {"max_staleness": -1}, ValueError, "'max_staleness' of"),
        (AsyncParameterServer, {"lease": 0}, ValueError, "'lease' of Async"),
        (AsyncParameterServer, {"timeout": "1"}, TypeError, "'timeout' of Async"),
        (
            AsyncParameterServer,
            {"timeout": 1e14},
            ValueError,
            "'timeout' .* a day; got",
        ),
        (
            AsyncParameterServer,
            {"lease": 86401},
            ValueError,
            "'lease' .* 86400 seconds",
        ),
        (AsyncParameterServer, {"use_locking": 1}, TypeError, "'use_locking' of Async"),
        (SharedMemory, {"lease": 0}, ValueError, "'lease' of SharedMemory"),
        (SharedMemory, {"lease": 86401}, ValueError, "'lease' of .* a day; got 86401"),
        (SharedMemory, {"num_workers": 0}, ValueError, "'num_workers' of SharedMemory"),
        (LocalSGD, {"sync_every": 0}, ValueError, "'sync_every' of LocalSGD"),
    ]:
        with pytest.raises(error, match=message):
            make(**args)
