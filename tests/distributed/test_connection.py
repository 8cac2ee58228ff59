# SPDX-License-Identifier: Apache-2.0
"""Sessions: who gets one, and what may be said in it."""

import contextlib
import socket
import threading

import pytest
import torch

from skest.distributed.ps import connection
from skest.distributed.ps.connection import Peer, RefusedError, connect, listen, welcome
from skest.distributed.ps.messages import (
    HEADER_BYTES,
    LIMIT,
    MAC_BYTES,
    Message,
    Op,
    Reader,
    WireError,
)
from skest.exceptions import PeerLostError

SECONDS = 30.0  # a machine may be busy
WORKER = Peer("worker", 3)


@pytest.fixture
def opened():
    """Return ``opened(secret, other)``: what both ends of a connection come to."""
    found = []

    def run(secret="secret", other="secret", open_client=None):
        with listen("127.0.0.1:0", secret) as listening:
            address = f"127.0.0.1:{listening.getsockname()[1]}"
            results = {}

            def serve():
                try:
                    accepted, _ = listening.accept()
                    results["server"] = welcome(accepted, secret, SECONDS)
                except (PeerLostError, WireError, RefusedError) as error:
                    results["server"] = error

            thread = threading.Thread(target=serve)
            thread.start()
            try:
                if open_client is None:
                    results["client"] = connect(address, WORKER, other, SECONDS)
                else:
                    results["client"] = open_client(listening.getsockname())
            except (PeerLostError, RefusedError) as error:
                results["client"] = error
            thread.join(60)
        found.append(results)
        return results["client"], results["server"]

    yield run
    for results in found:
        for end in results.values():
            session = end[1] if isinstance(end, tuple) else end
            if hasattr(session, "close"):
                session.close()


@pytest.fixture(params=[True, False], ids=["near", "far"])
def far_or_near(request, monkeypatch):
    """On one machine headers are signed, between machines all is."""
    monkeypatch.setenv("SKEST_WITHOUT_SECRET", "1")
    monkeypatch.setattr(connection, "is_loopback", lambda host: request.param)
    return request.param


@pytest.mark.parametrize("secret", ["secret", None])
def test_messages_arrive_as_they_were_sent(opened, far_or_near, secret):
    client, (peer, server) = opened(secret, secret)
    assert peer == WORKER
    assert server.name.startswith("worker 3 at 127.0.0.1:")
    payload = [torch.arange(3.0), torch.tensor(7, dtype=torch.int8), torch.ones(2, 2)]
    client.send(Message(Op.PUSH, 5, 7, {"a": [1]}, payload))
    found = server.receive(SECONDS)
    assert found[:4] == (Op.PUSH, 5, 7, {"a": [1]})
    reader = Reader(found)
    for sent in payload:
        assert torch.equal(reader.take(sent.shape, sent.dtype), sent)
    with pytest.raises(WireError, match="too few for one of shape"):
        reader.take([1])
    server.send(Message(0, 6))
    assert client.receive(SECONDS).step == 6


@pytest.mark.parametrize(
    ("secret", "other"), [("secret", "another"), ("secret", None), (None, "secret")]
)
def test_who_does_not_know_the_secret_gets_no_session(opened, secret, other):
    client, server = opened(secret, other)
    assert isinstance(client, RefusedError)
    assert "does not know the secret of this task: set the same SKEST" in str(client)
    assert isinstance(server, WireError)
    assert "does not prove the shared secret" in str(server)


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(4096),
        # A greeting that is right, and what is no message of who knows the secret.
        connection._GREETING + b"\1" + bytes(32) + bytes(MAC_BYTES + HEADER_BYTES),
    ],
)
def test_who_speaks_otherwise_gets_no_session(opened, sent):
    def speak(address):
        with (
            contextlib.suppress(OSError),  # who listens may have hung up by then
            socket.create_connection(address, SECONDS) as opened,
        ):
            opened.sendall(sent)
            opened.shutdown(socket.SHUT_WR)
            while opened.recv(4096):
                pass

    _, server = opened(open_client=speak)
    assert isinstance(server, (PeerLostError, WireError, RefusedError))


class Between:
    """A session whose ends are seen by somebody in between."""

    def __init__(self, client):
        self.client, self.sent = client, []
        self._socket = client._socket
        client._socket = self

    def sendall(self, content):
        self.sent.append(bytes(content))

    def __getattr__(self, name):
        return getattr(self._socket, name)

    def pass_on(self, content):
        self._socket.sendall(content)


@pytest.mark.parametrize("what", ["header", "tensor", "twice", "left out", "too large"])
def test_what_somebody_else_has_sent_is_refused(opened, monkeypatch, what):
    monkeypatch.setattr(connection, "is_loopback", lambda host: False)
    client, (_, server) = opened()
    between = Between(client)
    for step in (1, 2):
        client.send(Message(Op.PUSH, step, payload=[torch.ones(9)]))
    first, second = map(bytearray, between.sent)
    step_at = MAC_BYTES + 4 * 8
    if what == "header":
        first[step_at] ^= 1
    elif what == "tensor":
        first[-30] ^= 1
    elif what == "too large":
        first[step_at - 8 : step_at] = (LIMIT + 1).to_bytes(8, "little")
    elif what == "left out":
        first = second
    else:
        second = first
    between.pass_on(first)
    if what == "twice":
        server.receive(SECONDS)
        between.pass_on(second)
    expected = "but may have" if what == "too large" else "not from worker 3"
    with pytest.raises(WireError, match=expected):
        server.receive(SECONDS)


def test_an_end_that_is_gone_or_silent_is_lost(opened):
    client, (_, server) = opened()
    with pytest.raises(PeerLostError, match="with ps at .* broke: there was no answer"):
        client.receive(0.05)
    server.close()
    with pytest.raises(PeerLostError, match="the other end has closed it"):
        client.receive(SECONDS)
    with pytest.raises(PeerLostError, match="no answer from the ps at 127.0.0.1:1:"):
        connect("127.0.0.1:1", WORKER, None, SECONDS)


def test_where_a_server_listens(monkeypatch):
    monkeypatch.delenv("SKEST_WITHOUT_SECRET", raising=False)
    own = socket.gethostbyname(socket.gethostname())
    for address, expected in {
        "somewhere": "must be 'host:port'; got 'somewhere'",
        "0.0.0.0:0": "stands for all addresses of a machine",
        "192.0.2.1:0": "'192.0.2.1' is no address of this machine",
        f"{own}:0": "does not listen at .* without a secret",
    }.items():
        if own.startswith("127.") and own in address:
            continue
        with pytest.raises(ValueError, match=expected):
            listen(address, None)
    with listen("127.0.0.1:0", None) as first:
        port = first.getsockname()[1]
        with pytest.raises(OSError, match="Choose a port that is free"):
            listen(f"127.0.0.1:{port}", None)
    monkeypatch.setenv("SKEST_WITHOUT_SECRET", "1")
    listen(f"{own}:0", None).close()
