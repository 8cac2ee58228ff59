# SPDX-License-Identifier: Apache-2.0
"""A listener."""

import queue
import threading

import pytest

from skest.distributed.ps.connection import Listener
from skest.distributed.ps.messages import WireError
from skest.exceptions import PeerLostError
from tests.distributed._listening import LIMIT, SECONDS


@pytest.fixture
def listener():
    """Return a listener whose sessions, or errors, are in ``listener.sessions``."""
    listener = Listener("127.0.0.1:0", "secret", SECONDS)
    listener.sessions = queue.Queue()

    def accept():
        while accepted := listener.accept(LIMIT):
            peer, join = accepted
            try:
                listener.sessions.put((peer, join()))
            except (PeerLostError, WireError) as error:
                listener.sessions.put((peer, error))

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield listener
    listener.stop()
    thread.join(60)
    assert not thread.is_alive()
