# SPDX-License-Identifier: Apache-2.0
"""Workers and servers that come, go and are lost; servers are threads here."""

import contextlib
import functools
import threading

import pytest
import torch
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest.checkpoints.store import DirectoryStore
from skest.distributed.ps.checkpoint import ServedTensor
from skest.distributed.ps.connection import RefusedError
from skest.distributed.ps.optimizers import Shard
from skest.distributed.ps.worker import AsyncReplica
from skest.exceptions import PeerLostError
from skest.inputs import InputContext
from skest.optimizers import make_optimizer
from tests._models import At
from tests.distributed._servers import LocalServers
from tests.distributed._training import replica
from tests.distributed.test_exactness import input_fn, squared_error

N_STEPS = 12


def plain_model(features, labels, mode):
    """Draws no random numbers in steps."""
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    made = make_optimizer("adagrad", network.named_parameters(), 0.05)
    return EstimatorSpec(mode, network=network, loss=squared_error, optimizer=made)


@pytest.fixture
def train(monkeypatch):
    """Return ``train(addresses, roles, ...)``, which trains with workers in threads."""
    local = threading.local()
    monkeypatch.setattr("skest.estimators.estimator.Replica", lambda: local.replica)
    # In one process only one training at a time may draw from torch's generator; none
    # of these does.
    lock = contextlib.nullcontext()
    monkeypatch.setattr("skest.core.random._GLOBAL_GENERATOR_LOCK", lock)

    def run(
        addresses,
        roles=("chief",),
        hooks=(),
        directory=None,
        model_fn=plain_model,
        max_steps=N_STEPS,
        **options,
    ):
        estimators, errors = [], []

        def work(estimator, number, role):
            context = InputContext(len(roles), number)
            local.replica = replica(
                addresses, role, number, input_context=context, **options
            )
            try:
                estimator.train(input_fn, hooks=list(hooks), max_steps=max_steps)
            except BaseException as error:
                errors.append(error)

        threads = []
        for number, role in enumerate(roles):
            config = RunConfig(
                random_seed=number, model_dir=directory, save_checkpoints_steps=3
            )
            estimators.append(Estimator(model_fn, config=config))
            args = [estimators[-1], number, role]
            threads.append(threading.Thread(target=work, args=args))
            threads[-1].start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        if errors:
            raise errors[0]
        return estimators

    return run


@pytest.fixture
def lasting(monkeypatch):
    """Let chiefs leave the servers at work, as if they had died."""
    for ending in ("finish", "leave"):
        monkeypatch.setattr(AsyncReplica, ending, lambda replica, run: None)


def test_workers_end_together_and_the_chief_has_the_last_checkpoint(train):
    roles = ["chief", "worker", "worker"]
    with LocalServers(2) as servers:
        chief, *others = train(servers.addresses, roles, max_steps=36)
        found = chief.checkpoint
        assert 36 <= found.global_step == servers.servers[0].step
        tasks = servers.servers[0].members.to_json()
        assert sum(task["pushes"] for task in tasks) == found.global_step
        assert all(task["has_left"] for task in tasks)
        for server in servers.servers:
            server.wait()
    assert all(other.latest_checkpoint() is None for other in others)
    assert all(torch.isfinite(v).all() for v in found.variables.values())


def test_a_lost_server_ends_all_and_the_last_checkpoint_is_where_they_go_on(
    train, tmp_path
):
    with LocalServers(2) as servers:
        lost, left = servers.servers
        hooks = [At(5, lambda run: lost.close())]
        expected = f"checkpoint of step 3 in '{tmp_path}': start all tasks"
        with pytest.raises(PeerLostError, match=expected) as raised:
            train(servers.addresses, hooks=hooks, directory=tmp_path)
        assert f"with ps at {lost.address} broke" in str(raised.value)
        with pytest.raises(PeerLostError, match="of step 3"):
            left.wait()
    with LocalServers(3) as servers:
        (chief,) = train(servers.addresses, directory=tmp_path)
    assert chief.checkpoint.global_step == N_STEPS
    with LocalServers(1) as servers:
        (whole,) = train(servers.addresses)
    for name, value in chief.checkpoint.variables.items():
        assert torch.equal(value, whole.checkpoint.variables[name])


def test_without_a_checkpoint_the_loss_of_a_server_is_that_of_all(train):
    with LocalServers(1) as servers:
        hooks = [At(5, lambda run: servers.servers[0].close())]
        with pytest.raises(PeerLostError, match="there is no checkpoint: start all"):
            train(servers.addresses, hooks=hooks)


def test_a_server_that_is_lost_while_its_rows_are_saved_leaves_the_one_before(
    train, tmp_path, monkeypatch
):
    def dies(self, start, into):
        servers.servers[1].close()
        fetch(self, start, into)

    fetch = ServedTensor._fetch
    with LocalServers(2) as servers:
        patch = functools.partial(monkeypatch.setattr, ServedTensor, "_fetch", dies)
        hooks = [At(4, lambda run: patch())]
        with pytest.raises(PeerLostError, match="checkpoint of step 3"):
            train(servers.addresses, hooks=hooks, directory=tmp_path)
    assert DirectoryStore(tmp_path).latest_step() == 3
    assert {path.name for path in tmp_path.glob("*ckpt*")} >= {"ckpt-0", "ckpt-3"}


@pytest.mark.usefixtures("lasting")
def test_a_chief_that_is_started_again_goes_on_with_the_servers(train, tmp_path):
    """It has the buffers of its checkpoint, and does not initialize anything."""

    def with_counter(features, labels, mode):
        spec = plain_model(features, labels, mode)
        spec.network.register_buffer("n_steps", torch.zeros(1))

        def count(network, args):
            network.n_steps += 1

        spec.network.register_forward_pre_hook(count)
        return spec

    with LocalServers(2) as servers:
        for max_steps in (5, N_STEPS):
            (chief,) = train(
                *(servers.addresses, ["chief"], (), tmp_path, with_counter, max_steps)
            )
            assert (chief.get_variable_value("n_steps") == max_steps).all()
        # A server that began anew, while another has gone on:
        servers.servers[1]._shard = None
        with pytest.raises(PeerLostError, match="was started again, or began while"):
            train(servers.addresses, ["chief"], (), tmp_path, with_counter, 20)
        with pytest.raises(PeerLostError, match="was started again"):
            servers.servers[0].wait()


@pytest.mark.usefixtures("lasting")
def test_a_worker_that_comes_late_has_what_the_chief_drew(train):
    def with_constant(features, labels, mode):
        spec = plain_model(features, labels, mode)
        spec.network.register_buffer("constant", torch.rand(2))
        hook = spec.network.register_forward_pre_hook
        hook(lambda network, args: seen.append(network.constant.clone()))
        return spec

    seen = []
    with LocalServers(1) as servers:
        for role, max_steps in (("chief", 3), ("worker", 6)):
            train(servers.addresses, [role], (), None, with_constant, max_steps)
    assert len(seen) >= 6
    assert all(torch.equal(constant, seen[0]) for constant in seen)


@pytest.mark.usefixtures("lasting")
def test_servers_with_another_model_are_refused(train):
    def other(features, labels, mode):
        spec = plain_model(features, labels, mode)
        spec.network.register_buffer("more", torch.zeros(2))
        return spec

    with LocalServers(1) as servers:
        train(servers.addresses)
        with pytest.raises(ValueError, match="more: constant float32 .* here, none"):
            train(servers.addresses, ["worker"], model_fn=other)


def test_servers_that_get_no_variables_are_waited_for_so_long(train):
    with LocalServers(1) as servers, pytest.raises(TimeoutError, match="no variables"):
        train(servers.addresses, ["worker"], attach_timeout=0.3)
    with pytest.raises(TimeoutError, match="not ready after 0.3 s. There is no answer"):
        train(["127.0.0.1:1"], ["worker"], attach_timeout=0.3)


@pytest.mark.parametrize("failing", [4, N_STEPS])
def test_an_update_that_fails_is_told_also_after_the_last_step(
    train, monkeypatch, failing
):
    """It was answered before, and the next request may be that of who leaves."""
    update, n_updates = Shard.update, []

    def fail(shard, gradients):
        n_updates.append(shard)
        if len(n_updates) == failing:
            raise RuntimeError("no such step")
        update(shard, gradients)

    monkeypatch.setattr(Shard, "update", fail)
    with LocalServers(1) as servers:
        with pytest.raises(RefusedError, match="refuses: RuntimeError: no such step"):
            train(servers.addresses)
