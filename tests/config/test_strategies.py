# SPDX-License-Identifier: Apache-2.0
import dataclasses
import pickle

import pytest

from skest import RunConfig
from skest.distributed import AsyncParameterServer, DataParallel, LocalSGD, SharedMemory


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


@pytest.mark.parametrize(
    ("kind", "name", "value", "message"),
    [
        (AsyncParameterServer, "num_workers", 0, ""),
        (AsyncParameterServer, "num_ps", 1.0, ""),
        (AsyncParameterServer, "pipeline", 2, "be 0 or 1; got 2"),
        (AsyncParameterServer, "pipeline", True, ""),
        (AsyncParameterServer, "max_staleness", -1, ""),
        (AsyncParameterServer, "lease", 86401, "86400 seconds"),
        (AsyncParameterServer, "timeout", "1", ""),
        (AsyncParameterServer, "timeout", 1e14, "a day; got"),
        (AsyncParameterServer, "use_locking", 1, "be True or False; got 1"),
        (SharedMemory, "lease", 0, ""),
        (SharedMemory, "num_workers", 0, ""),
        (LocalSGD, "sync_every", 0, ""),
    ],
)
def test_wrong_values_are_refused_by_name(kind, name, value, message):
    match = f"'{name}' of {kind.__name__} must .*{message}"
    with pytest.raises((TypeError, ValueError), match=match):
        kind(**{name: value})
