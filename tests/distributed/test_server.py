# SPDX-License-Identifier: Apache-2.0
"""Parameter servers in threads, asked by workers without an Estimator."""

import contextlib
import socket
import threading

import pytest
import torch

from skest.distributed import AsyncParameterServer
from skest.distributed.ps.connection import Peer, RefusedError, connect
from skest.distributed.ps.messages import Message, Op
from skest.distributed.ps.optimizers import Shard
from skest.distributed.ps.server import serve_parameters
from skest.exceptions import PeerLostError
from tests.distributed._servers import LocalServers
from tests.distributed._training import Trainer

IDS = torch.tensor([0, 3, 3, 6])


@pytest.fixture
def trainers():
    """Make trainers that are closed at the end."""
    made = []

    def make(*args, **kwargs):
        made.append(Trainer(*args, **kwargs))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


@pytest.mark.parametrize("num_ps", [1, 3])
def test_every_update_of_every_worker_counts_once(trainers, num_ps):
    n_workers, n_steps = 3, 20
    with LocalServers(num_ps) as servers:
        chief = trainers(servers.addresses, "chief").initialize()
        workers = [
            trainers(servers.addresses, index=i).begin() for i in range(n_workers)
        ]

        def work(worker):
            for _ in range(n_steps):
                worker.step(IDS)

        threads = [threading.Thread(target=work, args=[w]) for w in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        total = n_workers * n_steps
        values = chief.values()
        table, dense = values["table.weight"], values["dense"]
        counts = IDS.bincount(minlength=7)[:, None].expand(7, 2)
        assert dense.tolist() == [total] * 3
        assert torch.equal(table, counts * total)
        assert chief.client.ask(0, Message(Op.INFO)).step == total
        tasks = servers.servers[0].members.to_json()
        assert [task["pushes"] for task in tasks] == [0, *[n_steps] * n_workers]


def test_variables_are_given_once(trainers):
    with LocalServers() as servers:
        first = trainers(servers.addresses, "chief").initialize().begin()
        with pytest.raises(RefusedError, match="has variables already, of another"):
            trainers(servers.addresses, "chief", 1).initialize()
        first.step(IDS)


@pytest.mark.parametrize(
    "request_",
    [
        Message(99),
        Message(Op.COMMIT),
        Message(Op.FETCH, control={"name": "a", "first": 0, "n": 1}),
        Message(Op.PUT, control={"name": "a", "first": 0, "n": 1}),
        Message(Op.INIT, control={"tensors": [["a", "what", [1]]], "optimizers": []}),
        Message(Op.PULL, number=1, payload=[torch.tensor([1 << 40])]),
        Message(Op.PULL, number=1, payload=[torch.tensor([1, 99])]),
        Message(Op.PUSH, payload=[torch.zeros(3, dtype=torch.uint8)]),
        Message(Op.SNAPSHOT),
    ],
    ids=lambda request: f"{request.code}",
)
def test_who_asks_for_what_there_is_not_ends_its_own_session_only(trainers, request_):
    with LocalServers() as servers:
        good = trainers(servers.addresses).initialize().begin()
        evil = trainers(servers.addresses, index=1)
        with pytest.raises(RefusedError, match="refuses: "):
            evil.client.ask(0, request_)
        with pytest.raises(PeerLostError):
            evil.client.ask(0, Message(Op.INFO))
        good.step(IDS)
        assert good.client.step == 1


def test_a_server_ends_when_the_chief_says_so_or_nobody_speaks():
    serve_parameters("127.0.0.1:0", orphan_timeout=0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        thread = threading.Thread(target=serve_parameters, args=[listening])
        thread.start()
        session = connect(address, Peer("chief", 0), None, 30.0)
        session.send(Message(Op.SHUTDOWN))
        session.receive(30.0)
        thread.join(60)
        assert not thread.is_alive()
        session.close()


@contextlib.contextmanager
def held_back(monkeypatch):
    """Yield an event that updates wait for."""
    update, may_go_on = Shard.update, threading.Event()

    def later(shard, gradients):
        assert may_go_on.wait(60)
        return update(shard, gradients)

    monkeypatch.setattr(Shard, "update", later)
    try:
        yield may_go_on
    finally:
        may_go_on.set()


@pytest.mark.parametrize("use_locking", [True, False])
def test_a_task_does_not_wait_for_its_update_but_who_reads_does(
    trainers, monkeypatch, use_locking
):
    with (
        LocalServers(strategy=AsyncParameterServer(use_locking=use_locking)) as servers,
        held_back(monkeypatch) as may_go_on,
    ):
        chief = trainers(servers.addresses, "chief").initialize().begin()
        worker = trainers(servers.addresses).begin()
        worker.step(IDS)
        assert worker.client.step == 1
        seen = []

        def read():
            chief.pull(IDS)
            seen.append(chief.network.dense.tolist())

        reader = threading.Thread(target=read)
        reader.start()
        reader.join(0.2 if use_locking else 60)
        assert seen == ([] if use_locking else [[0.0] * 3])
        may_go_on.set()
        reader.join(60)
        chief.compute(IDS)
        chief.exchange.push()
        assert chief.exchange.staleness == (0 if use_locking else 1)
