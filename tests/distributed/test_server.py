# SPDX-License-Identifier: Apache-2.0
import contextlib
import socket
import threading
import time
import weakref
from datetime import timedelta

import pytest
import torch
from torch import nn

from skest.distributed.ps import connection as rendezvous
from skest.distributed.ps import transfer
from skest.distributed.ps.client import PSClient, StaleGenerationError
from skest.distributed.ps.connection import Peer, RefusedError, client_options, connect
from skest.distributed.ps.messages import LIMIT, Message, Op, Status
from skest.distributed.ps.optimizers import Shard
from skest.distributed.ps.server import serve_parameters
from skest.distributed.ps.tasks import Members
from skest.distributed.testing import LocalServers
from skest.exceptions import PeerLostError
from tests._models import raising
from tests.distributed._training import Counting, Trainer

IDS = torch.tensor([0, 3, 3, 6])
SECONDS = timedelta(seconds=5)


@pytest.fixture
def trainers(request):
    """Return ``trainers(servers, ...)``, which makes a Trainer that is closed again."""
    made = []

    def make(*args, **options):
        made.append(Trainer(*args, **options))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


def state_of(trainer):
    """Return the values in the servers by name, tables as a list of shards."""
    step, found = trainer.client.snapshot(["dense", "table"])
    parts = list(found)
    dense = [
        p.tensors["variable:dense"] for p in parts if "variable:dense" in p.tensors
    ]
    return step, dense[0], [p.tensors["variable:table.weight"] for p in parts]


def test_a_snapshot_ends_when_it_is_fetched(trainers, monkeypatch):
    """Nothing is kept for it any more when rows change."""
    taken = []
    frozen = Shard.frozen

    def watched(shard, kinds, lock):
        part = frozen(shard, kinds, lock)
        taken[:] = [weakref.ref(tensor) for tensor in part.tensors.values()]
        return part

    monkeypatch.setattr(Shard, "frozen", watched)
    monkeypatch.setattr(transfer, "BLOCK_BYTES", 16)
    with LocalServers(1) as servers:
        client = trainers(servers.addresses, "chief").initialize().client
        for kinds in (["dense"], ["dense", "table"], ["table"]):
            (reply,) = client.take_snapshot(kinds)
            assert all(tensor() is not None for tensor in taken)
            client.fetch(0, reply)
            client.ask(0, Message(Op.STATS))  # the answers before are sent
            assert taken
            assert all(tensor() is None for tensor in taken)


@pytest.mark.parametrize(
    "num_ps, n_workers, use_locking",
    [(1, 1, True), (3, 2, True), (1, 4, False)],
)
def test_every_push_counts_once(trainers, num_ps, n_workers, use_locking):
    n_steps = 20
    with LocalServers(num_ps, use_locking=use_locking) as servers:
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
            thread.join()
        total = n_steps * n_workers
        step, dense, table = state_of(chief)
        assert step == total
        assert dense.tolist() == [total] * 3
        whole = torch.empty(7, 2)
        for ps, rows in enumerate(table):
            whole[ps::num_ps] = rows
        counts = torch.bincount(IDS, minlength=7)
        assert whole.tolist() == (total * counts[:, None].expand(7, 2)).tolist()
        stats = chief.client.ask(0, Message(Op.STATS)).control
        tasks = [t for t in stats["tasks"] if t["task_type"] == "worker"]
        assert [t["pushes"] for t in tasks] == [n_steps] * n_workers
        for task in tasks:
            assert sum(n for _, n in task["staleness"]) == n_steps
            assert task["bytes_in"] > n_steps * 64
        if n_workers == 1:
            assert tasks[0]["staleness"] == [[0, n_steps]]


class Dense(nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = nn.Parameter(torch.zeros(3))

    def forward(self, ids):
        return self.dense.sum()


def test_servers_without_variables_hear_of_steps_too(trainers):
    """They would end as those of whom nobody wants anything."""
    with LocalServers(3) as servers:
        worker = trainers(servers.addresses, network=Dense()).initialize().begin()
        for _ in range(2):
            worker.step(IDS)
        for ps in range(3):
            (task,) = worker.client.ask(ps, Message(Op.STATS)).control["tasks"]
            assert task["pushes"] == 2
        assert worker.client.step == 2


def test_staleness_counts_updates_between_pull_and_push(trainers):
    with LocalServers() as servers:
        first = trainers(servers.addresses, index=0).initialize().begin()
        second = trainers(servers.addresses, index=1).begin()
        first.pull(IDS)
        first.compute(IDS)
        for _ in range(3):
            second.step(IDS)
        first.exchange.push()
        assert first.exchange.staleness == 3
        assert second.exchange.staleness == 0


def test_gradients_of_an_earlier_generation_are_refused(trainers):
    with LocalServers(2) as servers:
        ghost = trainers(servers.addresses, index=0).initialize(step=5).begin()
        ghost.step(IDS)
        ghost.pull(IDS)
        ghost.compute(IDS)
        trainers(servers.addresses, "chief").initialize(generation=2, step=5)
        with pytest.raises(
            StaleGenerationError, match="at generation 2, this is about 1"
        ):
            ghost.exchange.push()
        ghost.client.generation = 2
        step, dense, _ = state_of(ghost)
        assert step == 5
        assert dense.tolist() == [0, 0, 0]


def test_variables_are_not_replaced_by_those_of_an_earlier_generation(trainers):
    with LocalServers() as servers:
        chief = trainers(servers.addresses, "chief").initialize(generation=3)
        with pytest.raises(
            StaleGenerationError, match="at generation 3, this is about 2"
        ):
            chief.initialize(generation=2)


@pytest.mark.parametrize(
    "bad",
    [{"generation": (1 << 62) + 1}, {"step": 1 << 63}, {"step": -1}, {"step": "1"}],
)
def test_numbers_that_no_answer_can_have_are_refused(trainers, bad):
    (key,) = bad
    with LocalServers() as servers:
        good = trainers(servers.addresses, index=0).initialize().begin()
        evil = trainers(servers.addresses, index=1)
        with pytest.raises(RefusedError, match=f"must come with a {key} from 0 to"):
            evil.initialize(**{"generation": 2, **bad})
        good.step(IDS)
        assert (good.client.step, servers.servers[0].generation) == (1, 1)


def test_a_server_without_variables_is_not_ready(trainers):
    with LocalServers() as servers:
        trainer = trainers(servers.addresses).begin(generation=0)
        with pytest.raises(StaleGenerationError, match="has no variables"):
            trainer.pull(IDS)
        assert trainer.client.ask(0, Message(Op.INFO)).control["variables"] is None


def test_an_optimizer_that_no_server_can_make_is_refused(trainers):
    with LocalServers() as servers:
        make = torch.optim.LBFGS
        network = nn.Linear(2, 1)
        trainer = trainers(servers.addresses, network=network, make=make)
        with pytest.raises(RefusedError, match="computes the loss several times"):
            trainer.initialize()


BAD = {
    "an unknown request": Message(99),
    "a request without an announcement": Message(Op.PUT),
    "a commit without an announcement": Message(Op.COMMIT),
    "a fetch without a snapshot": Message(Op.FETCH),
    "missing fields": Message(Op.SNAPSHOT),
    "a snapshot of what": Message(Op.SNAPSHOT, control={"kinds": 3}),
    "tensors of no type": Message(
        Op.INIT, control={"tensors": [["a", "object", [1]]], "optimizers": []}
    ),
    "tensors of a huge size": Message(
        Op.INIT, control={"tensors": [["a", "int64", [1 << 60]]], "optimizers": []}
    ),
    "too few gradients": Message(Op.PUSH, 1),
    "too few ids": Message(Op.PULL, 1, number=1, payload=[torch.tensor([7])]),
    "a negative number of ids": Message(Op.PULL, 1, payload=[torch.tensor([-7])]),
    "ids of no row": Message(Op.PULL, 1, payload=[torch.tensor([1, 999])]),
    "ids again and again": Message(
        Op.PULL, 1, payload=[torch.tensor([8]), torch.zeros(8, dtype=torch.int64)]
    ),
    "ids below zero": Message(Op.PULL, 1, payload=[torch.tensor([1, -1])]),
    "options of no optimizer": Message(
        Op.PUSH,
        1,
        control={"options": [[5, 0, {"lr": 1.0}]]},
        payload=[
            torch.ones(1, dtype=torch.uint8),
            torch.zeros(64, dtype=torch.uint8),
            torch.tensor([-1]),
        ],
    ),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_bad_message_ends_its_own_session_only(trainers, bad):
    with LocalServers() as servers:
        good = trainers(servers.addresses, index=0).initialize().begin()
        evil = trainers(servers.addresses, index=1)
        evil.client.generation = 1
        with pytest.raises(RefusedError, match="refuses"):
            evil.client.ask(0, bad)
        with pytest.raises(PeerLostError):
            evil.client.ask(0, Message(Op.INFO))
        good.step(IDS)
        assert good.client.step == 1


@pytest.mark.parametrize(
    "header",
    [
        [0] * 8,
        [0x736B657374, 5, 1 << 40, 0, 1, 0, 0, 1 << 20],
        [0x736B657374, 5, -1, 0, 1, 0, 0, 1 << 20],
        [0x736B657374, 5, 0, 1 << 62, 1, 0, 0, 1 << 20],
        [0x736B657374, 5, 0, -8, 1, 0, 0, 1 << 20],
        [0x736B657374, 5, 8, 0, 1, 0, 0, 1 << 20],  # JSON that is none
        [0x736B657374, 1, 0, 0, 1, 0, 0, 0],  # no room for a reply
    ],
)
def test_a_malformed_header_ends_its_own_session_only(trainers, header):
    with LocalServers() as servers:
        good = trainers(servers.addresses).initialize().begin()
        options = client_options(servers.addresses[0], SECONDS)
        how = (1 << 20, None, SECONDS, options)
        session, _ = connect(servers.addresses[0], Peer("worker", 7), *how)
        receive = session.expect(torch.empty(1 << 20, dtype=torch.uint8))
        raw = torch.cat([torch.tensor(header), torch.full((1,), -1)]).view(torch.uint8)
        session._begin("send", raw).wait(SECONDS)
        with pytest.raises(PeerLostError):
            receive(SECONDS)
        good.step(IDS)


def test_garbage_at_the_port_harms_nobody(trainers):
    with LocalServers() as servers:
        good = trainers(servers.addresses).initialize().begin()
        host, port = servers.addresses[0].split(":")
        for garbage in (b"GET / HTTP/1.1\r\n\r\n", bytes(4096), b"\xff" * 4096):
            with socket.create_connection((host, int(port)), timeout=5) as connection:
                connection.sendall(garbage)
        good.step(IDS)
        trainers(servers.addresses, index=1).begin().step(IDS)


def test_who_finds_no_room_in_a_server_does_not_shut_it_for_others(trainers):
    with LocalServers() as servers:
        good = trainers(servers.addresses).initialize().begin()
        short = timedelta(seconds=0.5)
        how = (LIMIT, None, short, client_options(servers.addresses[0], short))
        for where, name, error in (
            (threading.Thread, "start", RuntimeError("can't start new thread")),
            (rendezvous, "_clone", torch.distributed.DistNetworkError("no sockets")),
        ):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(where, name, raising(error))
                with pytest.raises(PeerLostError, match="no answer"):
                    connect(servers.addresses[0], Peer("worker", 1), *how)
        good.step(IDS)
        trainers(servers.addresses, index=1).begin().step(IDS)


def test_a_request_larger_than_the_limit_is_not_sent(trainers):
    with LocalServers() as servers:
        client = trainers(servers.addresses).client
        large = torch.empty(LIMIT, dtype=torch.uint8)
        with pytest.raises(ValueError, match="larger than the other side takes"):
            client.ask(0, Message(Op.PUT, payload=[large]))


@pytest.mark.parametrize("secret", [None, "another"])
def test_who_does_not_know_the_secret_gets_no_session(secret):
    with LocalServers(secret="the secret") as servers:
        client = PSClient(servers.addresses, Peer("worker", 0), secret, timeout=30)
        with pytest.raises(RefusedError, match="does not prove the shared secret"):
            client.connect()
        client = PSClient(
            servers.addresses, Peer("worker", 0), "the secret", timeout=30
        )
        client.connect()
        assert client.ask(0, Message(Op.INFO)).code == Status.OK
        client.close()


def test_a_task_that_is_too_far_ahead_waits(trainers):
    bound = 2
    with LocalServers(max_staleness=bound) as servers:
        fast = trainers(servers.addresses, index=0).initialize().begin()
        slow = trainers(servers.addresses, index=1).begin()
        done = threading.Semaphore(0)

        def work():
            for _ in range(8):
                fast.step(IDS)
                done.release()

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(bound + 1):
            assert done.acquire(timeout=60)
        assert not done.acquire(timeout=0.2)
        slow.step(IDS)
        assert done.acquire(timeout=60)
        assert not done.acquire(timeout=0.1)
        # From now on the slow one is silent, and its lease ends.
        servers.servers[0].members.lease = 0.2
        thread.join(timeout=60)
        assert not thread.is_alive()
        slow.step(IDS)  # it may come back
        assert slow.client.step == 10


def test_who_waited_reads_what_the_others_did_meanwhile_on_all_servers(
    trainers, monkeypatch
):
    """Only server 0 lets it wait; the others have answered before."""
    wait = Members.wait_for_others
    is_waiting, may_go_on = threading.Event(), threading.Event()

    def longer(members, *given):
        is_waiting.set()
        wait(members, *given)
        assert may_go_on.wait(60)

    monkeypatch.setattr(Members, "wait_for_others", longer)
    with LocalServers(2, max_staleness=0) as servers:
        fast = trainers(servers.addresses, index=0).initialize().begin()
        slow = trainers(servers.addresses, index=1).begin()
        fast.step(IDS)
        thread = threading.Thread(target=fast.pull, args=[IDS])
        thread.start()
        assert is_waiting.wait(60)
        slow.step(IDS)
        may_go_on.set()
        thread.join(60)
        assert fast.network.dense.tolist() == [2] * 3
        rows = fast.network.table.weight[[0, 3, 6]]
        assert rows.tolist() == [[2] * 2, [4] * 2, [2] * 2]


def test_to_wait_for_others_is_no_failure(trainers, monkeypatch):
    """It may take longer than an answer may; what fails meanwhile is seen."""
    monkeypatch.setattr("tests.distributed._training.TIMEOUT", 1.0)
    looks = threading.Semaphore(0)
    with LocalServers(max_staleness=0, timeout=1.0) as servers:
        fast = trainers(servers.addresses, index=0).initialize()
        fast.begin(check=looks.release)
        slow = trainers(servers.addresses, index=1).begin()
        fast.step(IDS)
        thread = threading.Thread(target=fast.step, args=[IDS])
        thread.start()
        for _ in range(3):
            assert looks.acquire(timeout=60)
        slow.step(IDS)
        thread.join(60)
        assert not thread.is_alive()
        assert slow.client.ask(0, Message(Op.INFO)).step == 3


def test_a_server_ends_when_the_chief_says_so(trainers):
    addresses = []
    is_there = threading.Event()

    def announce(address):
        addresses.append(address)
        is_there.set()

    thread = threading.Thread(
        target=serve_parameters, args=["127.0.0.1:0"], kwargs={"announce": announce}
    )
    thread.start()
    assert is_there.wait(60)
    client = trainers(addresses).client
    client.ask(0, Message(Op.SHUTDOWN))
    client.close()
    thread.join(60)
    assert not thread.is_alive()


def test_a_server_ends_when_nobody_speaks_any_more():
    serve_parameters("127.0.0.1:0", orphan_timeout=0.1)


def test_counting_has_what_the_tests_say():
    loss = Counting()(IDS)
    assert loss.item() == 0


def test_updates_wait_for_each_other_also_without_locking(trainers, monkeypatch):
    apply, at_work, most = Shard.update, [], []

    def slowly(shard, *given):
        at_work.append(shard)
        most.append(len(at_work))
        time.sleep(0.02)
        apply(shard, *given)
        at_work.pop()

    monkeypatch.setattr(Shard, "update", slowly)
    with LocalServers(use_locking=False) as servers:
        trainers(servers.addresses, "chief").initialize()
        workers = [trainers(servers.addresses, index=i).begin() for i in range(2)]
        threads = [threading.Thread(target=w.step, args=[IDS]) for w in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1, 1]


@contextlib.contextmanager
def held_back(monkeypatch, what="update"):
    """Yield an event that updates, or parts of them, wait for, and one that says so."""
    method = getattr(Shard, what)
    may_go_on, is_waiting = threading.Event(), threading.Event()

    def later(shard, given):
        is_waiting.set()
        assert may_go_on.wait(60)
        return method(shard, given)

    monkeypatch.setattr(Shard, what, later)
    try:
        yield may_go_on, is_waiting
    finally:
        may_go_on.set()


@pytest.mark.parametrize("ask", ["pull", "snapshot"])
def test_a_task_does_not_wait_for_its_update_but_who_reads_does(
    trainers, monkeypatch, ask
):
    with LocalServers() as servers, held_back(monkeypatch) as (may_go_on, _):
        chief = trainers(servers.addresses, "chief").initialize().begin()
        worker = trainers(servers.addresses).begin()
        worker.step(IDS)
        assert worker.client.step == 1
        pushes = [t["pushes"] for t in servers.servers[0].members.to_json()]
        assert pushes == [0, 1]
        seen = []

        def read():
            if ask == "pull":
                chief.pull(IDS)
                seen.append(chief.network.dense.tolist())
            else:
                seen.append(state_of(chief)[1].tolist())

        reader = threading.Thread(target=read)
        reader.start()
        reader.join(0.2)
        assert seen == []
        may_go_on.set()
        reader.join(60)
        assert seen == [[1.0] * 3]


def test_who_reads_does_not_wait_for_gradients_to_be_looked_at(trainers, monkeypatch):
    with LocalServers() as servers:
        chief = trainers(servers.addresses, "chief").initialize().begin()
        worker = trainers(servers.addresses).begin()
        step = threading.Thread(target=worker.step, args=[IDS])
        with held_back(monkeypatch, "gradients") as (_, is_waiting):
            step.start()
            assert is_waiting.wait(60)
            chief.pull(IDS)
            assert chief.network.dense.tolist() == [0.0] * 3
        step.join()
        assert state_of(chief)[1].tolist() == [1.0] * 3


def test_gradients_that_are_looked_at_are_applied_to_the_same_variables(
    trainers, monkeypatch
):
    with LocalServers() as servers:
        (server,) = servers.servers
        chief = trainers(servers.addresses, "chief").initialize()
        worker = trainers(servers.addresses).begin()
        step = threading.Thread(target=worker.step, args=[IDS])
        replace = threading.Thread(target=chief.initialize, args=[2])
        with held_back(monkeypatch, "gradients") as (_, is_waiting):
            step.start()
            assert is_waiting.wait(60)
            replace.start()
            replace.join(0.2)
            assert server.generation == 1
        step.join()
        replace.join()
        assert (worker.client.step, server.generation) == (1, 2)
        assert state_of(chief)[1].tolist() == [0.0] * 3


def test_an_update_that_a_reader_did_not_wait_for_makes_it_stale(trainers, monkeypatch):
    with LocalServers(use_locking=False) as servers:
        chief = trainers(servers.addresses, "chief").initialize().begin()
        worker = trainers(servers.addresses).begin()
        with held_back(monkeypatch) as (may_go_on, _):
            worker.step(IDS)
            chief.pull(IDS)
            assert chief.network.dense.tolist() == [0.0] * 3
            may_go_on.set()
        chief.compute(IDS)
        chief.exchange.push()
        assert chief.exchange.staleness == 1


def test_an_update_that_ends_while_a_reader_copies_makes_it_stale(
    trainers, monkeypatch
):
    pull = Shard.pull

    def slowly(shard, reader, with_dense):
        found = pull(shard, reader, with_dense)
        if slowly.meanwhile:
            slowly.meanwhile.pop()()
        return found

    slowly.meanwhile = []
    monkeypatch.setattr(Shard, "pull", slowly)
    with LocalServers(use_locking=False) as servers:
        chief = trainers(servers.addresses, "chief").initialize().begin()
        worker = trainers(servers.addresses).begin()

        def update():
            worker.step(IDS)
            state_of(worker)  # answered behind the update

        slowly.meanwhile.append(update)
        chief.pull(IDS)
        assert chief.network.dense.tolist() == [0.0] * 3
        chief.compute(IDS)
        chief.exchange.push()
        assert chief.exchange.staleness == 1


@pytest.mark.parametrize("request_", [Op.INFO, Op.BYE, Op.SNAPSHOT, Op.STOP, Op.STATS])
def test_an_error_of_an_update_refuses_the_next_request(
    trainers, monkeypatch, request_
):
    update = Shard.update

    def failing(shard, gradients):
        if threading.current_thread() in failing.threads:
            raise RuntimeError("no such step")
        failing.threads.append(threading.current_thread())
        update(shard, gradients)

    failing.threads = []
    monkeypatch.setattr(Shard, "update", failing)
    with LocalServers() as servers:
        good = trainers(servers.addresses, index=0).initialize().begin()
        bad = trainers(servers.addresses, index=1).begin()
        bad.step(IDS)
        bad.step(IDS)
        with pytest.raises(RefusedError, match="RuntimeError: no such step"):
            bad.client.ask(0, Message(request_, control={"kinds": []}))
        with pytest.raises(PeerLostError):
            bad.client.ask(0, Message(Op.INFO))
        good.step(IDS)
        assert state_of(good)[1].tolist() == [2.0] * 3


def test_an_error_of_an_update_is_logged_though_its_task_is_gone(
    trainers, monkeypatch, caplog
):
    def failing(shard, gradients):
        raise RuntimeError("no such step")

    monkeypatch.setattr(Shard, "update", failing)
    with LocalServers() as servers:
        worker = trainers(servers.addresses, index=1).initialize().begin()
        worker.step(IDS)
        worker.close()
    assert "An update by worker 1 failed: RuntimeError: no such step" in caplog.text


def test_nobody_waits_for_a_task_that_does_not_take_an_answer(trainers):
    """It may have asked for more, and have been stopped."""
    n_rows = 1 << 21  # more bytes than a connection holds
    with LocalServers() as servers:
        network = Counting(n_rows)
        good = trainers(servers.addresses, index=0, network=network)
        good.initialize().begin()
        options = client_options(servers.addresses[0], SECONDS)
        how = (LIMIT, None, SECONDS, options)
        still, _ = connect(servers.addresses[0], Peer("worker", 1), *how)
        ids = torch.arange(n_rows)
        room = {"generation": 1, "room": LIMIT}
        pull = Message(Op.PULL, **room, payload=[torch.tensor([n_rows]), ids])
        still.send(pull, SECONDS)
        gradients = [
            torch.ones(1, dtype=torch.uint8),
            torch.ones(16).view(torch.uint8),
            torch.tensor([-1]),
        ]
        still.send(Message(Op.PUSH, **room, payload=gradients), SECONDS)
        good.step(IDS)
        assert good.client.step == 1
        inbox = torch.empty(1 << 26, dtype=torch.uint8)
        for expected in (0, 2):
            reply = still.expect(inbox)(SECONDS)
            assert reply.step == expected
        still.close()
