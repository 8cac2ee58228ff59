# SPDX-License-Identifier: Apache-2.0
import queue
import threading

import pytest

from skest.distributed.ps.connection import (
    HELLO_BYTES,
    RefusedError,
    introduce,
    welcome,
)
from skest.distributed.ps.messages import Message, Op, pack, unpack
from skest.exceptions import PeerLostError
from tests.distributed._listening import SECONDS

AGREED = ("process", "session", "worker", "0")


class End:
    """One end of a session, in memory."""

    def __init__(self, inbox, outbox):
        self.name, self._inbox, self._outbox = "the other", inbox, outbox

    def send(self, message, timeout):
        self._outbox.put(pack(message, HELLO_BYTES))

    def expect(self, inbox):
        return lambda timeout: unpack(self._inbox.get(timeout=timeout.seconds))

    def receive(self):
        return self.expect(None)(SECONDS)


@pytest.fixture
def ends():
    there, back = queue.Queue(), queue.Queue()
    return End(there, back), End(back, there)


def outcome(work, *args):
    try:
        return work(*args)
    except (PeerLostError, RefusedError) as error:
        return error


def met(ends, server_secret, client_secret, client_agreed=AGREED):
    """Let both ends meet, and return what became of each."""
    found = []

    def serve():
        found.append(outcome(welcome, ends[0], server_secret, AGREED, SECONDS))
        if found[0] is not None:
            ends[0].send(Message(Op.HELLO), SECONDS)

    thread = threading.Thread(target=serve)
    thread.start()
    ours = outcome(introduce, ends[1], client_secret, client_agreed, SECONDS)
    thread.join()
    return found[0], ours


@pytest.mark.parametrize("secret", ["s", None])
def test_two_with_one_secret_meet(ends, secret):
    assert met(ends, secret, secret) == (None, None)


@pytest.mark.parametrize(("server", "client"), [("s", "t"), ("s", None)])
def test_a_client_without_the_secret_is_not_let_in(ends, server, client):
    theirs, _ = met(ends, server, client)
    assert "did not prove the shared secret" in str(theirs)


def test_a_server_without_the_secret_is_not_trusted(ends):
    theirs, ours = met(ends, None, "s")
    assert theirs is None
    assert isinstance(ours, RefusedError)
    assert "other does not prove the shared secret: set the same" in str(ours)


@pytest.mark.parametrize("place", range(len(AGREED)))
def test_a_proof_is_about_what_was_agreed(ends, place):
    others = tuple("x" if i == place else said for i, said in enumerate(AGREED))
    theirs, _ = met(ends, "s", "s", others)
    assert isinstance(theirs, PeerLostError)


def test_a_proof_does_not_hold_again_or_in_the_other_direction(ends):
    """What the client said is of no use to one who heard it."""
    heard = []
    thread = threading.Thread(
        target=lambda: heard.append(outcome(introduce, ends[1], "s", AGREED, SECONDS)),
    )
    thread.start()
    ends[0].send(Message(Op.HELLO, control={"nonce": "n"}), SECONDS)
    said = ends[0].receive()
    ends[0].send(said, SECONDS)  # as if it were the proof of the server
    thread.join()
    assert isinstance(heard[0], RefusedError)
    ends[1].send(said, SECONDS)  # to a server that has drawn another number
    with pytest.raises(PeerLostError, match="did not prove"):
        welcome(ends[0], "s", AGREED, SECONDS)


@pytest.mark.parametrize("code", [Op.SHUTDOWN, Op.INFO, Op.PUSH])
@pytest.mark.parametrize("secret", ["s", None])
def test_nothing_is_done_before_the_proof(ends, code, secret):
    ends[1].send(Message(code, room=HELLO_BYTES), SECONDS)
    with pytest.raises(PeerLostError, match="or asked for something before"):
        welcome(ends[0], secret, AGREED, SECONDS)


@pytest.mark.parametrize("nonce", [None, 3, "\ud800", ["n"]])
def test_a_number_that_is_none_proves_nothing(ends, nonce):
    control = {"nonce": nonce, "proof": "\ud800"}
    ends[1].send(Message(Op.HELLO, control=control), SECONDS)
    with pytest.raises(PeerLostError, match="did not prove"):
        welcome(ends[0], "s", AGREED, SECONDS)
