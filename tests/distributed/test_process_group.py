# SPDX-License-Identifier: Apache-2.0
import pytest

from skest.distributed.process_group import Peers
from skest.exceptions import PeerLostError


class Store:
    """Stands for a store in which nobody has left a reason."""

    def check(self, keys):
        return False


@pytest.fixture
def peers():
    made = object.__new__(Peers)
    made._store, made.rank, made.size = Store(), 1, 2
    return made


@pytest.mark.parametrize(
    "text",
    [
        "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:9",
        "Application timeout caused pair closure",
        "Read error [127.0.0.1]:9: Connection reset by peer",
        "Timed out waiting 4000ms for send operation timed out",
    ],
)
def test_errors_of_communication_tell_that_a_peer_is_lost(peers, text):
    with pytest.raises(PeerLostError, match="or does not answer(.|\n)*rank 1 of 2"):
        with peers.explained():
            raise RuntimeError(text)


def test_errors_of_the_model_stay(peers):
    with pytest.raises(RuntimeError, match="^a defect$"):
        with peers.explained():
            raise RuntimeError("a defect")
