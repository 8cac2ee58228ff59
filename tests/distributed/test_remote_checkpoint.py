# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a training with parameter servers, which these write themselves."""

import json

import pytest
import torch
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest.checkpoints.format import STATE, ShardedCheckpoint
from skest.distributed.ps.checkpoint import write_part
from skest.distributed.ps.client import PSClient
from skest.distributed.ps.server import ParameterServer
from skest.distributed.testing import LocalServers
from skest.exceptions import NanLossDuringTrainingError, PeerLostError
from skest.optimizers import make_optimizers
from tests.distributed._training import replica
from tests.distributed.test_async_replica import assert_same, ids_fn, squared_error
from tests.distributed.test_failures import LoseServer, forget


class Tied(nn.Module):
    """A table, a dense variable of two names, and a buffer."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(40, 3, sparse=True)
        self.out = nn.Linear(3, 1)
        self.same = self.out
        self.also = self.table
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, features):
        self.steps += 1
        return self.out(self.table(features["ids"]))


def tied_model(features, labels, mode):
    network = Tied()
    network.table.weight.is_row_table = True
    named = dict(network.named_parameters())
    return EstimatorSpec(
        mode,
        network=network,
        loss=squared_error,
        optimizer=make_optimizers([("table*", "adam"), ("*", "adagrad")], named, 0.05),
    )


@pytest.fixture
def train(monkeypatch):
    """Return ``train(model_dir, addresses, ...)``; without addresses it is local."""

    def run(model_dir, addresses=None, steps=4, hooks=(), save_every=100):
        config = RunConfig(
            random_seed=3, model_dir=model_dir, save_checkpoints_steps=save_every
        )
        estimator = Estimator(tied_model, config=config)
        with monkeypatch.context() as patch:
            if addresses:
                make = replica(addresses)
                patch.setattr("skest.estimators.estimator.Replica", lambda: make)
            return estimator.train(ids_fn, steps=steps, hooks=hooks).checkpoint

    return run


def newest_state(model_dir):
    newest = max(model_dir.glob("ckpt-*"), key=lambda path: int(path.name[5:]))
    return json.loads((newest / STATE).read_bytes())


@pytest.mark.parametrize("num_ps", [0, 1, 3])
def test_others_go_on_from_it(train, tmp_path, num_ps):
    """Two servers write it; others, of another number or none, read it."""
    expected = [train(tmp_path / "local"), train(tmp_path / "local")]
    ours = tmp_path / "ours"
    with LocalServers(2, model_dir=ours) as servers:
        assert_same(train(ours, servers.addresses), expected[0])
    state = newest_state(ours)
    assert state["shards"]["n_ps"] == 2
    assert state["shards"]["variables"]["tables"].keys() == {
        *("table.weight", "also.weight")
    }
    if num_ps == 0:
        assert_same(train(ours), expected[1])
        return
    with LocalServers(num_ps, model_dir=ours) as servers:
        assert_same(train(ours, servers.addresses), expected[1])


@pytest.mark.parametrize("seeing", [(), (0,), (1,)])
def test_the_chief_writes_for_servers_that_do_not_see_the_directory(
    train, tmp_path, monkeypatch, seeing
):
    ours = tmp_path / "ours"
    fetched = []
    fetch = PSClient.fetch
    monkeypatch.setattr(
        PSClient, "fetch", lambda *args: fetched.append(args[1]) or fetch(*args)
    )
    with LocalServers(2) as servers:
        for ps in seeing:
            servers.servers[ps]._model_dir = ours
        found = train(ours, servers.addresses)
    assert set(fetched) == {0, 1} - {*seeing}
    assert newest_state(ours)["shards"]["n_ps"] == 2
    assert_same(found, train(tmp_path / "local"))


def test_a_checkpoint_in_memory_is_gathered(train):
    with LocalServers(2) as servers:
        found = train(None, servers.addresses)
    assert not isinstance(found, ShardedCheckpoint)
    assert_same(found, train(None))


@pytest.mark.parametrize("seeing", [(), (0, 1), (1,)])
def test_servers_go_back_to_it(train, tmp_path, monkeypatch, seeing):
    sent = []
    initialize = PSClient.initialize
    monkeypatch.setattr(
        PSClient,
        "initialize",
        lambda *args: sent.append(args[0]) or initialize(*args),
    )
    ours = tmp_path / "ours"
    with LocalServers(2) as servers:
        for ps in seeing:
            servers.servers[ps]._model_dir = ours
        train(ours, servers.addresses)
    with LocalServers(2) as servers:
        for ps in seeing:
            servers.servers[ps]._model_dir = ours
        lose = LoseServer(servers, at_step=6)
        sent.clear()
        found = train(ours, servers.addresses, hooks=[lose])
        assert [server.generation for server in servers.servers] == [2, 2]
    assert lose.steps == [5, 6, 5, 6, 7, 8]
    # Not even in the beginning, if all servers read it themselves.
    assert len(sent) == (0 if len(seeing) == 2 else 2)
    train(tmp_path / "local")
    expected = train(tmp_path / "local")
    assert found.variables.keys() == expected.variables.keys()
    assert found.optimizer.keys() == expected.optimizer.keys()


@pytest.mark.parametrize("at", ["the middle", "the end"])
def test_a_server_lost_while_it_writes_is_restored(train, tmp_path, monkeypatch, at):
    ours = tmp_path / "ours"
    write = ParameterServer.write
    lost = []

    def failing(self, control, part):
        if self.ps == 1 and self.step == 4 and not lost:
            lost.append(self)
            forget(self)
        return write(self, control, part)

    monkeypatch.setattr(ParameterServer, "write", failing)
    steps = LoseServer(None, at_step=None)
    with LocalServers(2, model_dir=ours) as servers:
        if at == "the end":
            expected = "step 0 is kept, steps 1 to 4 are lost. Train again"
            with pytest.raises(PeerLostError, match=expected):
                train(ours, servers.addresses, save_every=100)
        else:
            found = train(ours, servers.addresses, 6, hooks=[steps], save_every=4)
            assert found.global_step == 6
        assert [server.generation for server in servers.servers] == [2, 2]
    assert lost
    names = {path.name for path in ours.glob("*ckpt-*")}
    if at == "the end":
        assert names == {"ckpt-0"}
    else:
        assert steps.steps == [1, 2, 3, 4, 1, 2, 3, 4, 5, 6]
        # All that happens every few steps happens as soon as training has gone back.
        assert names == {"ckpt-0-1", "ckpt-1", "ckpt-5", "ckpt-6"}


def test_a_server_that_cannot_write_ends_the_training(train, tmp_path, monkeypatch):
    ours = tmp_path / "ours"

    def full(model_dir, name, shard):
        if shard.index == 1 and (ours / "ckpt-0").exists():
            raise OSError(28, "No space left on device")
        return write_part(model_dir, name, shard)

    monkeypatch.setattr("skest.distributed.ps.server.write_part", full)
    with (
        LocalServers(2, model_dir=ours) as servers,
        pytest.raises(OSError, match="step 4 was not saved .* could not write: .*28"),
    ):
        train(ours, servers.addresses)
    assert [path.name for path in ours.glob("*ckpt-*")] == ["ckpt-0"]


def test_variables_that_are_nan_are_not_saved(train, tmp_path, monkeypatch):
    ours = tmp_path / "ours"
    write = ParameterServer.write

    def poisoned(self, control, part):
        if self.step == 4:
            values = part.tensors["variable:table.weight"][:]
            values[0] = torch.nan
            spoilt = {**part.tensors, "variable:table.weight": values}
            part = part._replace(tensors=spoilt)
        return write(self, control, part)

    monkeypatch.setattr(ParameterServer, "write", poisoned)
    with (
        LocalServers(2, model_dir=ours) as servers,
        pytest.raises(NanLossDuringTrainingError, match="'table.weight'"),
    ):
        train(ours, servers.addresses)
    assert [path.name for path in ours.glob("*ckpt-*")] == ["ckpt-0"]
