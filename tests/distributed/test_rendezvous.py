# SPDX-License-Identifier: Apache-2.0
import contextlib
import json
import re
import socket
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from skest.distributed.authentication import proof
from skest.distributed.ps.connection import (
    Listener,
    RefusedError,
    Session,
    client_options,
    connect,
    is_loopback,
    split_address,
)
from skest.distributed.ps.messages import PROTOCOL, Message, Op
from skest.exceptions import PeerLostError
from tests.distributed._listening import LIMIT, SECONDS, WORKER, session_with

ASKED = {
    "protocol": PROTOCOL,
    "sid": "s" * 32,
    "task_type": "worker",
    "task_index": 0,
    "limit": LIMIT,
    "proof": "",
}


def store_of(listener):
    host, port = split_address(listener.address)
    return TCPStore(host, port, None, False, SECONDS, wait_for_workers=False)


def test_a_server_that_stands_still_is_no_answer():
    timeout = timedelta(seconds=0.2)
    with socket.create_server(("127.0.0.1", 0)) as opened:  # as the kernel keeps it
        address = f"127.0.0.1:{opened.getsockname()[1]}"
        options = client_options(address, timeout)
        with pytest.raises(
            PeerLostError, match=f"no answer from ps at {address}: time"
        ):
            connect(address, WORKER, LIMIT, None, timeout, options)


def test_nobody_at_an_address():
    listener = Listener("127.0.0.1:0", None, SECONDS)
    address = listener.address
    del listener
    options = client_options(address, SECONDS)
    brief = timedelta(seconds=0.3)
    with pytest.raises(PeerLostError, match=f"no answer from ps at {address}"):
        connect(address, WORKER, LIMIT, None, brief, options)


def refusal(listener, request):
    """Leave a request as it stands, and return the answer."""
    store = store_of(listener)
    store.queue_push("sessions", request)
    return json.loads(store.get("answer/" + "s" * 32))["error"]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"protocol": PROTOCOL + 1}, "Protocol 1 is spoken here"),
        ({"task_type": 3}, "not complete"),
        ({"task_index": "0"}, "not complete"),
        ({"limit": None}, "no limit"),
        ({"proof": None}, "shared secret"),
        ({"proof": "é"}, "shared secret"),
    ],
)
def test_a_bad_request_for_a_session_is_refused(listener, changes, match):
    assert match in refusal(listener, json.dumps({**ASKED, **changes}))
    assert listener.sessions.empty()


def test_a_request_that_was_granted_is_not_granted_again(listener):
    """What somebody heard of the talk of others is of no use to him."""
    store = store_of(listener)
    request = {"protocol": PROTOCOL, "sid": "s" * 32, "limit": LIMIT}
    said = (listener.incarnation, request["sid"], "worker", "0")
    request |= {"task_type": "worker", "task_index": 0, "proof": proof("secret", *said)}
    listener._seen.add(request["sid"])
    assert "was made before" in refusal(listener, json.dumps(request))
    store.delete_key("answer/" + "s" * 32)
    # To another task, another session or another process the proof says nothing.
    for changes in ({"task_index": 1}, {"task_type": "chief"}):
        store.delete_key("answer/" + "s" * 32)
        text = json.dumps({**request, **changes})
        assert "shared secret" in refusal(listener, text)
    store.delete_key("answer/" + "s" * 32)
    listener.incarnation = "another process"
    assert "shared secret" in refusal(listener, json.dumps(request))
    assert listener.sessions.empty()


NO_REQUESTS = ["{", "[]", "3", "x" * 5000, "[" * 4000, '{"sid": 3}']
NO_REQUESTS += [
    json.dumps({**ASKED, "sid": "\ud800" * 32}),
    json.dumps({**ASKED, "task_type": "\ud800"}),
]


@pytest.mark.parametrize("request_text", NO_REQUESTS)
def test_a_request_that_is_none_has_no_answer(listener, request_text, caplog):
    store = store_of(listener)
    store.queue_push("sessions", request_text)
    session_with(listener)
    assert listener.sessions.get(timeout=30)[0] == WORKER
    assert "Somebody who left no address gets no session" in caplog.text


def test_a_flood_of_requests_does_not_fill_the_log(listener, caplog):
    store = store_of(listener)
    began = time.monotonic()
    for _ in range(500):
        store.queue_push("sessions", "{")
    session_with(listener)  # its request comes behind them
    seconds = time.monotonic() - began
    told = [r.getMessage() for r in caplog.records if "gets no session" in r.message]
    assert 10 <= len(told) <= 10 * (seconds + 2)
    time.sleep(1)
    store.queue_push("sessions", "{")
    session_with(listener)
    assert re.search(r"\(\d+ such lines were left out.\)", caplog.text)


def test_a_wrong_secret_is_refused(listener, caplog):
    with pytest.raises(RefusedError, match="SKEST_SECRET"):
        session_with(listener, "another")
    assert "worker 3 at 127.0.0.1 gets no session: The request for a" in caplog.text


def test_sessions_leave_nothing_in_the_store(listener):
    """A server lives for months, and workers come back again and again."""
    store = store_of(listener)
    before = store.num_keys()
    for _ in range(3):
        session_with(listener)
        assert listener.sessions.get(timeout=30)[0] == WORKER
    with pytest.raises(RefusedError):
        session_with(listener, "another")
    assert store.num_keys() - before <= 1 + 1  # the queue, and the answer of who failed


@pytest.mark.parametrize("address", ["host", ":1", "host:", "host:x", "host:70000", ""])
def test_an_address_has_a_host_and_a_port(address):
    with pytest.raises(ValueError, match="must be 'host:port'"):
        split_address(address)


def test_a_server_listens_at_its_address_only(listener):
    _, port = split_address(listener.address)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)
    with socket.create_connection(("127.0.0.1", port), timeout=5):
        pass


@pytest.mark.parametrize("host", ["203.0.113.7", "nowhere.invalid"])
def test_a_server_is_not_at_the_address_of_another_machine(host, monkeypatch):
    find = socket.getaddrinfo

    def offline(name, *args, **options):
        if name == "nowhere.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return find(name, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    expected = f"can't listen at '{host}:0': '{host}' is no address of this machine"
    with pytest.raises(ValueError, match=expected):
        Listener(f"{host}:0", None, SECONDS)


def test_a_port_that_is_in_use(listener):
    with pytest.raises(OSError, match="can't listen at .* Choose a port that is free"):
        Listener(listener.address, None, SECONDS)


def test_no_way_to_a_server(monkeypatch):
    def unreachable(self, place):
        raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    with pytest.raises(PeerLostError, match="no way to the ps at .* unreachable"):
        client_options("127.0.0.1:9", SECONDS)


def test_the_interface_of_sessions_may_be_named(listener, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    session, _ = session_with(listener)
    session.close()
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    with pytest.raises(ValueError, match="'GLOO_SOCKET_IFNAME' names .*none0"):
        session_with(listener)


def test_who_steals_a_session_is_not_let_in(listener):
    """The store is open: anybody may go in where another has proved the secret."""
    store, sid = store_of(listener), "0" * 32
    said = (listener.incarnation, sid, "worker", "3")
    request = {"protocol": PROTOCOL, "sid": sid, "limit": LIMIT, **WORKER._asdict()}
    request["from"] = "203.0.113.9"
    request["proof"] = proof("secret", *said)  # the worker, who goes away then
    store.queue_push("sessions", json.dumps(request))
    store.get(f"answer/{sid}")
    options = client_options(listener.address, SECONDS)
    group = ProcessGroupGloo(PrefixStore(f"session/{sid}", store), 1, 2, options)
    thief = Session(group, 0, LIMIT, "ps")
    hear = thief.expect(torch.empty(LIMIT, dtype=torch.uint8))
    thief.send(Message(Op.SHUTDOWN, room=LIMIT), SECONDS)
    assert hear(SECONDS).code == Op.HELLO
    peer, error = listener.sessions.get(timeout=30)
    assert peer == WORKER
    assert isinstance(error, PeerLostError)
    assert "worker 3 at 203.0.113.9 did not prove the shared secret" in str(error)
    session_with(listener)[0].close()
    assert isinstance(listener.sessions.get(timeout=30)[1], Session)


def test_who_relays_proofs_between_two_groups_is_not_let_in():
    """Proofs are about the connection on which they come, and hold on no other."""
    listener = Listener("127.0.0.1:0", "secret", SECONDS)
    store = store_of(listener)

    def sit_at(rank, other, prefix):
        options = client_options(listener.address, SECONDS)
        group = ProcessGroupGloo(PrefixStore(prefix, store), rank, 2, options)
        return Session(group, other, LIMIT, "victim")

    def heard(session):
        return session.expect(torch.empty(LIMIT, dtype=torch.uint8))(SECONDS)

    with ThreadPoolExecutor() as pool:
        worker = pool.submit(session_with, listener)
        request = store.queue_pop("sessions")  # before the server takes it
        sid = json.loads(request)["sid"]
        store.set(f"answer/{sid}", json.dumps({"limit": LIMIT}))
        before_worker = sit_at(0, 1, f"session/{sid}")
        for rank in (0, 1):
            store.delete_key(f"session/{sid}/0/{rank}")
        store.queue_push("sessions", request)
        _, join = listener.accept(LIMIT)
        server = pool.submit(join)
        before_server = sit_at(1, 0, f"session/{sid}")
        before_worker.send(heard(before_server), SECONDS)
        before_server.send(heard(before_worker), SECONDS)
        with pytest.raises(PeerLostError, match="did not prove the shared secret"):
            server.result()
        before_worker.close()
        with pytest.raises(PeerLostError):
            worker.result()


def test_a_server_that_does_not_know_the_secret_is_refused(listener):
    listener._secret = None
    with pytest.raises(RefusedError, match="does not prove .* SKEST_SECRET"):
        session_with(listener)


@pytest.mark.parametrize("text", ["garbage", "[]", "[" * 4000, "x" * 5000])
def test_a_greeting_that_is_none_is_no_answer(listener, text):
    store_of(listener).set("skest", text)
    with pytest.raises(
        PeerLostError, match="no answer from ps at .* left in the store"
    ):
        session_with(listener)


@pytest.mark.parametrize("text", ["garbage", "{}", '{"limit": "1"}'])
def test_an_answer_that_is_none_is_no_answer(listener, monkeypatch, text):
    sid = "1" * 32
    monkeypatch.setattr(uuid, "uuid4", lambda: SimpleNamespace(hex=sid))
    store_of(listener).set(f"answer/{sid}", text)
    monkeypatch.setattr(listener, "_answer", lambda *args: None)
    monkeypatch.setattr(listener, "_secret", "another")  # nothing is granted
    with pytest.raises(PeerLostError, match="no answer from ps at .*(left|no limit)"):
        session_with(listener)


@pytest.mark.parametrize("secret", [None, "secret"])
@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("told", ["", "1"])
def test_a_listener_that_others_reach_has_a_secret(monkeypatch, secret, is_local, told):
    monkeypatch.setattr(
        "skest.distributed.ps.connection.is_loopback", lambda _: is_local
    )
    monkeypatch.setenv("SKEST_WITHOUT_SECRET", told)
    if secret or is_local or told:
        Listener("127.0.0.1:0", secret, SECONDS).stop()
        return
    expected = (
        "at 127.0.0.1:.* without a secret: .* Set SKEST_SECRET .*WITHOUT_SECRET=1"
    )
    with pytest.raises(ValueError, match=expected):
        Listener("127.0.0.1:0", secret, SECONDS)


def test_who_takes_requests_of_others_does_not_end_the_listener(listener):
    store = store_of(listener)
    for _ in range(300):
        store.queue_push("sessions", "j")
        with contextlib.suppress(RuntimeError):
            store.queue_pop("sessions", False)
    session_with(listener)
    assert listener.sessions.get(timeout=30)[0] == WORKER


@pytest.mark.parametrize(
    ("host", "is_local"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("10.0.0.1", False)],
)
def test_which_addresses_are_for_this_machine_alone(host, is_local):
    assert is_loopback(host) == is_local


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_server_listens_at_one_address(host):
    with pytest.raises(
        ValueError, match="all addresses of a machine: the cluster must"
    ):
        Listener(f"{host}:0", None, SECONDS)


def test_addresses_of_ipv6_have_brackets():
    try:
        opened = Listener("[::1]:0", None, SECONDS)
    except ValueError:
        with pytest.raises(OSError, match="."):  # only where there are none
            socket.create_server(("::1", 0), family=socket.AF_INET6)
        pytest.skip("no IPv6 here")
    try:
        host, port = opened.address.rsplit(":", 1)
        assert host == "[::1]"
        assert int(port) > 0
        with ThreadPoolExecutor() as pool:
            joined = pool.submit(lambda: opened.accept(LIMIT)[1]())
            options = client_options(opened.address, SECONDS)
            session, _ = connect(opened.address, WORKER, LIMIT, None, SECONDS, options)
            session.send(Message(Op.INFO), SECONDS)
            receive = joined.result().expect(torch.empty(LIMIT, dtype=torch.uint8))
            assert receive(SECONDS).code == Op.INFO
    finally:
        opened.stop()
