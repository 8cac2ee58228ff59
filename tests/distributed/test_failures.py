# SPDX-License-Identifier: Apache-2.0
"""Workers and servers that come, go and are lost."""

import contextlib
import dataclasses
import threading
import time

import pytest
import torch
from torch import nn

from skest import Estimator, EstimatorSpec, RunConfig
from skest.checkpoints.store import DirectoryStore
from skest.distributed.ps.client import PSClient
from skest.distributed.ps.connection import RefusedError
from skest.distributed.ps.optimizers import Shard
from skest.distributed.ps.server import ParameterServer
from skest.distributed.ps.worker import AsyncReplica
from skest.distributed.testing import LocalServers
from skest.exceptions import PeerLostError
from skest.hooks import Hook
from skest.inputs import InputContext
from skest.optimizers import make_optimizer
from skest.optimizers.schedules import FunctionLR
from tests.distributed._training import replica
from tests.distributed.test_async_replica import input_fn, squared_error

N_STEPS = 12


def plain_model(features, labels, mode):
    """Draws no random numbers in steps."""
    network = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    made = make_optimizer("adagrad", network.named_parameters(), 0.05)
    return EstimatorSpec(mode, network=network, loss=squared_error, optimizer=made)


def train(
    monkeypatch,
    addresses,
    roles,
    hooks=(),
    directory=None,
    model_fn=plain_model,
    **options,
):
    """Train with several workers in threads; return the Estimator of each."""
    local = threading.local()
    monkeypatch.setattr("skest.estimators.estimator.Replica", lambda: local.replica)
    # In one process only one training at a time may draw from torch's generator; none
    # of these does.
    lock = contextlib.nullcontext()
    monkeypatch.setattr("skest.core.random._GLOBAL_GENERATOR_LOCK", lock)
    estimators, errors = [], []

    def work(estimator, number, role, index):
        local.replica = replica(
            addresses,
            role,
            index,
            input_context=InputContext(len(roles), number),
            **options,
        )
        try:
            steps = {"max_steps": N_STEPS * len(roles)}
            estimator.train(input_fn, hooks=list(hooks), **steps)
        except BaseException as error:
            errors.append(error)

    threads = []
    for number, (role, index) in enumerate(roles):
        config = RunConfig(
            random_seed=number, model_dir=directory, save_checkpoints_steps=3
        )
        estimators.append(Estimator(model_fn, config=config))
        threads.append(
            threading.Thread(target=work, args=[estimators[-1], number, role, index])
        )
        threads[-1].start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]
    return estimators


def test_workers_end_together_and_the_chief_has_the_last_checkpoint(monkeypatch):
    roles = [("chief", 0), ("worker", 0), ("worker", 1)]
    with LocalServers(2) as servers:
        chief, *others = train(monkeypatch, servers.addresses, roles)
        found = chief.checkpoint
        assert found.global_step >= N_STEPS * len(roles)
        assert found.global_step == servers.servers[0].step
        tasks = servers.servers[0].members.to_json()
        assert sum(task["pushes"] for task in tasks) == found.global_step
        assert all(task["has_left"] for task in tasks)
        for server in servers.servers:
            server.wait()
    assert all(other.latest_checkpoint() is None for other in others)
    assert all(torch.isfinite(v).all() for v in found.variables.values())


class LoseServer(Hook):
    """Replaces a server by a fresh one at the same address."""

    def __init__(self, servers, at_step):
        self.servers, self.at_step = servers, at_step
        self.steps = []

    def after_step(self, run, loss):
        self.steps.append(run.global_step)
        if self.at_step is not None and run.global_step >= self.at_step:
            self.at_step = None
            forget(self.servers.servers[1])


def forget(server: ParameterServer):
    """Make a server what a new process would be."""
    with server._lock:
        server._shard, server.generation, server.step = None, 0, 0


@pytest.mark.parametrize(("is_on_disk", "first"), [(True, 4), (False, 1)])
def test_all_servers_go_back_to_the_last_checkpoint(
    monkeypatch, tmp_path, is_on_disk, first
):
    with LocalServers(2) as servers:
        lose = LoseServer(servers, at_step=5)
        directory = tmp_path if is_on_disk else None
        (chief,) = train(
            monkeypatch, servers.addresses, [("chief", 0)], [lose], directory
        )
        assert [server.generation for server in servers.servers] == [2, 2]
    assert lose.steps == [*range(1, 6), *range(first, N_STEPS + 1)]
    assert chief.checkpoint.global_step == N_STEPS


def test_a_worker_goes_on_when_the_chief_has_restored_the_servers(monkeypatch):
    roles = [("chief", 0), ("worker", 0)]
    with LocalServers(2) as servers:
        is_lost = threading.Event()

        class Slow(Hook):
            def after_step(self, run, loss):
                if run.global_step >= 4 and not is_lost.is_set():
                    is_lost.set()
                    forget(servers.servers[0])
                time.sleep(0.04)

        chief, _ = train(monkeypatch, servers.addresses, roles, [Slow()])
        assert chief.checkpoint.global_step >= N_STEPS * 2
        assert servers.servers[0].generation == servers.servers[1].generation == 2


SCHEDULES = {
    "of torch": lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(
        optimizer, 0.9
    ),
    "function": lambda optimizer: FunctionLR(optimizer, lambda step: 0.05 * 0.9**step),
}


@pytest.mark.parametrize(("name", "n_workers"), [("of torch", 0), ("function", 1)])
def test_learning_rates_go_back_with_the_servers(monkeypatch, name, n_workers):
    def scheduled(features, labels, mode):
        spec = plain_model(features, labels, mode)
        (optimizer,) = spec.optimizers
        return dataclasses.replace(spec, lr_scheduler=SCHEDULES[name](optimizer))

    roles = [("chief", 0), *[("worker", 0)] * n_workers]
    with LocalServers(2) as servers:
        is_lost = threading.Event()
        rates = []

        class Look(Hook):
            def after_step(self, run, loss):
                (group,) = run.spec.optimizers[0].param_groups
                rates.append((run.global_step, group["lr"]))
                if run.global_step >= 5 and not is_lost.is_set():
                    is_lost.set()
                    forget(servers.servers[1])
                time.sleep(0.03)

        train(monkeypatch, servers.addresses, roles, [Look()], model_fn=scheduled)
        assert servers.servers[1].generation == 2
    expected = [0.05 * 0.9**step for step, _ in rates]
    assert [rate for _, rate in rates] == pytest.approx(expected, rel=1e-12)


class LoseAtEnd(Hook):
    """Stops the training, and lets a server be lost before the last checkpoint."""

    def __init__(self, server, at_step, *, when):
        self.server, self.at_step, self.when = server, at_step, when

    def after_step(self, run, loss):
        if run.global_step == self.at_step:
            run.request_stop("enough")
            if self.when == "finish":
                forget(self.server)

    def end(self, run):
        if self.when == "save":
            forget(self.server)


@pytest.mark.parametrize("when", ["finish", "save"])
def test_a_training_that_falls_short_at_its_end_says_so(
    monkeypatch, tmp_path, caplog, when
):
    with LocalServers(2) as servers:
        lose = LoseAtEnd(servers.servers[1], 5, when=when)
        options = {"directory": tmp_path, "may_fall_short": True}
        (chief,) = train(
            monkeypatch, servers.addresses, [("chief", 0)], [lose], **options
        )
    assert chief.checkpoint.global_step == DirectoryStore(tmp_path).latest_step() == 3
    (said,) = [text for text in caplog.messages if "kept" in text or "back" in text]
    assert "after the last step of the training: step 3 is kept, steps 4 to 5" in said


@pytest.mark.parametrize("when", ["finish", "save"])
@pytest.mark.parametrize(("is_on_disk", "kept"), [(True, 3), (False, 0)])
def test_steps_lost_at_the_end_are_an_error(
    monkeypatch, tmp_path, when, is_on_disk, kept
):
    """Unless some of the training is kept, and nobody would start it again."""
    expected = f"step {kept} is kept, steps {kept + 1} to 5 are lost. Train again"
    options = {
        "directory": tmp_path if is_on_disk else None,
        "may_fall_short": not is_on_disk,
    }
    with LocalServers(2) as servers:
        lose = LoseAtEnd(servers.servers[0], 5, when=when)
        with pytest.raises(PeerLostError, match=expected):
            train(monkeypatch, servers.addresses, [("chief", 0)], [lose], **options)
    if is_on_disk:
        assert DirectoryStore(tmp_path).latest_step() == kept


def test_a_server_that_comes_back_is_told_that_all_shall_stop(monkeypatch, tmp_path):
    lost, wait_for_workers = [], AsyncReplica._wait_for_workers

    def losing(self, run):
        if not lost:
            lost.append(servers.servers[0])
            forget(lost[0])
            lost[0]._is_stopping = False
            for session in list(lost[0]._sessions):
                session.break_off()
        wait_for_workers(self, run)

    class StopChief(Hook):
        def after_step(self, run, loss):
            is_chief = run.config.random_seed == 0
            if is_chief and run.global_step >= 5:
                run.request_stop("enough")
            elif not is_chief:
                time.sleep(0.2)

    monkeypatch.setattr(AsyncReplica, "_wait_for_workers", losing)
    roles = [("chief", 0), ("worker", 0)]
    with LocalServers(2) as servers:
        options = {"directory": tmp_path, "may_fall_short": True}
        chief, _ = train(
            monkeypatch, servers.addresses, roles, [StopChief()], **options
        )
    assert lost
    assert chief.checkpoint.global_step < N_STEPS * len(roles)  # what nobody stopped


def test_a_worker_waits_only_so_long_for_the_chief(monkeypatch):
    roles = [("worker", 0)]
    with (
        LocalServers() as servers,
        pytest.raises(TimeoutError, match="not initialized"),
    ):
        train(monkeypatch, servers.addresses, roles, attach_timeout=0.2)


def test_a_chief_waits_only_so_long_for_servers(monkeypatch):
    options = {"attach_timeout": 0.5, "timeout": 0.3}
    with pytest.raises(TimeoutError, match="not ready after 0.5 s. There is no answer"):
        train(monkeypatch, ["127.0.0.1:9"], [("chief", 0)], **options)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "what",
    ["push", pytest.param("pull", marks=SLOW), pytest.param("write", marks=SLOW)],
)
def test_requests_that_always_take_too_long_come_to_an_end(monkeypatch, tmp_path, what):
    """Though sessions are opened anew at once."""
    answer = getattr(ParameterServer, what)

    def late(self, *args):
        time.sleep(0.5)
        return answer(self, *args)

    monkeypatch.setattr(ParameterServer, what, late)
    options = {"attach_timeout": 1.0, "timeout": 0.3, "directory": tmp_path}
    expected = "asked has failed for more than 1 s.*Set 'timeout' of Async.*now 0.3 s"
    with (
        LocalServers() as servers,
        pytest.raises(TimeoutError, match=expected),
    ):
        train(monkeypatch, servers.addresses, [("chief", 0)], **options)


def with_constant(features, labels, mode):
    spec = plain_model(features, labels, mode)
    spec.network.register_buffer("constant", torch.rand(2))
    return spec


@pytest.mark.slow
def test_of_two_chiefs_one_goes_on_with_the_variables_of_the_other(monkeypatch):
    commit, barrier = PSClient.commit, threading.Barrier(2)

    def together(self, step):
        barrier.wait(20)
        commit(self, step)

    monkeypatch.setattr(PSClient, "commit", together)
    monkeypatch.setattr("skest.distributed.ps.worker.AsyncReplica.leave", _stay)
    with LocalServers(2) as servers:
        found = train(
            *(monkeypatch, servers.addresses, [("chief", 0)] * 2),
            model_fn=with_constant,
        )
        assert [server.generation for server in servers.servers] == [1, 1]
    first, second = (estimator.checkpoint for estimator in found)
    assert min(first.global_step, second.global_step) >= 2 * N_STEPS
    assert torch.equal(first.variables["constant"], second.variables["constant"])


def with_counter(features, labels, mode, params):
    """Return a network whose buffer counts the steps of its process."""
    spec = plain_model(features, labels, mode)
    spec.network.register_buffer("n_steps", torch.zeros(params["size"]))

    def count(network, args):
        network.n_steps += 1

    spec.network.register_forward_pre_hook(count)
    return spec


@pytest.mark.parametrize("size", [1, 1 << 18])  # the second one is not read with others
def test_a_chief_that_is_started_again_has_the_buffers_of_its_checkpoint(
    monkeypatch, tmp_path, size
):
    with LocalServers(1) as servers, monkeypatch.context() as patch:
        patch.setattr("skest.distributed.ps.worker.AsyncReplica.leave", _stay)
        for max_steps in (5, N_STEPS):
            make = replica(servers.addresses)
            patch.setattr("skest.estimators.estimator.Replica", lambda make=make: make)
            chief = Estimator(with_counter, tmp_path, params={"size": size})
            chief.train(input_fn, max_steps=max_steps)
            assert (chief.get_variable_value("n_steps") == max_steps).all()


def test_servers_with_another_model_are_refused(monkeypatch):
    with LocalServers(2) as servers:
        train(monkeypatch, servers.addresses[:1], [("chief", 0)])
    with LocalServers(1) as servers:
        monkeypatch.setattr("skest.distributed.ps.worker.AsyncReplica.leave", _stay)
        train(monkeypatch, servers.addresses, [("chief", 0)])

        def other(features, labels, mode):
            spec = plain_model(features, labels, mode)
            spec.network.register_buffer("more", torch.zeros(2))
            return spec

        make = replica(servers.addresses, "worker", attach_timeout=5.0)
        monkeypatch.setattr("skest.estimators.estimator.Replica", lambda: make)
        with pytest.raises(ValueError, match="more: constant float32 .* here, none"):
            Estimator(other).train(input_fn, steps=1)


@pytest.mark.parametrize("role", ["chief", "worker"])
@pytest.mark.parametrize("failing", [4, N_STEPS])
def test_an_update_that_fails_is_told_also_after_the_last_step(
    monkeypatch, role, failing
):
    """It was answered before, and the next request may be that of who leaves."""
    update, n_updates = Shard.update, []

    def fail(shard, gradients):
        n_updates.append(shard)
        if len(n_updates) == failing:
            raise RuntimeError("no such step")
        update(shard, gradients)

    with LocalServers(1) as servers:
        last = N_STEPS
        if role == "worker":
            last = 2 * N_STEPS
            with monkeypatch.context() as patch:
                for ending in ("finish", "leave"):
                    patch.setattr(AsyncReplica, ending, _stay)
                train(patch, servers.addresses, [("chief", 0)])
        make = replica(servers.addresses, role)
        monkeypatch.setattr("skest.estimators.estimator.Replica", lambda: make)
        monkeypatch.setattr(Shard, "update", fail)
        with pytest.raises(RefusedError, match="refuses: RuntimeError: no such step"):
            Estimator(plain_model).train(input_fn, max_steps=last)


def _stay(self, run):
    """Leave the servers at work."""
