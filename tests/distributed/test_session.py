# SPDX-License-Identifier: Apache-2.0
import json
import queue
import socket
import threading
from datetime import timedelta

import pytest
import torch
from torch.distributed import TCPStore

from skest.distributed.addresses import split_address
from skest.distributed.authentication import proof
from skest.distributed.session import (
    Listener,
    Peer,
    RefusedError,
    client_options,
    connect,
)
from skest.distributed.wire import PROTOCOL, Message, Op
from skest.exceptions import PeerLostError

SECONDS = timedelta(seconds=5)
LIMIT = 1 << 20
WORKER = Peer("worker", 3)


@pytest.fixture
def listener():
    """Return a listener whose sessions are in ``listener.sessions``."""
    listener = Listener("127.0.0.1:0", "secret", SECONDS)
    listener.sessions = queue.Queue()

    def accept():
        while accepted := listener.accept(LIMIT):
            peer, join = accepted
            listener.sessions.put((peer, join()))

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield listener
    listener.stop()
    thread.join(5)
    assert not thread.is_alive()


def session_with(listener, secret="secret"):
    options = client_options(listener.address, SECONDS)
    return connect(listener.address, WORKER, LIMIT, secret, SECONDS, options)


def test_messages_go_both_ways(listener):
    ours, incarnation = session_with(listener)
    assert incarnation == listener.incarnation
    peer, theirs = listener.sessions.get(timeout=30)
    assert peer == WORKER
    inboxes = [torch.empty(LIMIT, dtype=torch.uint8) for _ in range(2)]
    for value in range(3):
        receive = [s.expect(i) for s, i in zip((ours, theirs), inboxes, strict=True)]
        ours.send(Message(Op.PUSH, step=value, payload=[torch.ones(9)]), SECONDS)
        assert receive[1](SECONDS).step == value
        theirs.send(Message(0, step=-value), SECONDS)
        assert receive[0](SECONDS).step == -value
    assert ours.bytes_sent == theirs.bytes_received == 3 * (64 + 40)
    assert ours.bytes_received == theirs.bytes_sent == 3 * 64


def test_the_end_of_a_session_is_seen_at_once(listener):
    ours, _ = session_with(listener)
    receive = ours.expect(torch.empty(64, dtype=torch.uint8))
    listener.sessions.get(timeout=30)[1].close()
    with pytest.raises(PeerLostError, match="with ps at 127.0.0.1:.* broke"):
        receive(SECONDS)
    ours.close()
    with pytest.raises(PeerLostError, match="is closed"):
        ours.send(Message(Op.INFO), SECONDS)


def test_who_does_not_answer_in_time_is_lost(listener):
    ours, _ = session_with(listener)
    receive = ours.expect(torch.empty(64, dtype=torch.uint8))
    with pytest.raises(PeerLostError, match="Timed out"):
        receive(timedelta(seconds=0.1))


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
    host, port = split_address(listener.address)
    store = TCPStore(host, port, None, False, SECONDS, wait_for_workers=False)
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
    request = {
        "protocol": PROTOCOL,
        "sid": "s" * 32,
        "task_type": "worker",
        "task_index": 0,
        "limit": LIMIT,
        "proof": "",
        **changes,
    }
    assert match in refusal(listener, json.dumps(request))
    assert listener.sessions.empty()


def test_a_request_that_was_granted_is_not_granted_again(listener):
    """What somebody heard of the talk of others is of no use to him."""
    host, port = split_address(listener.address)
    store = TCPStore(host, port, None, False, SECONDS, wait_for_workers=False)
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


@pytest.mark.parametrize("request_text", ["{", "[]", "3", "x" * 5000, '{"sid": 3}'])
def test_a_request_that_is_none_has_no_answer(listener, request_text):
    host, port = split_address(listener.address)
    store = TCPStore(host, port, None, False, SECONDS, wait_for_workers=False)
    store.queue_push("sessions", request_text)
    session_with(listener)
    assert listener.sessions.get(timeout=30)[0] == WORKER


def test_a_wrong_secret_is_refused(listener):
    with pytest.raises(RefusedError, match="SKEST_SECRET"):
        session_with(listener, "another")


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
