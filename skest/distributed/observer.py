# SPDX-License-Identifier: Apache-2.0
"""`Observer`: asks how a training with parameter servers is going."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from skest.distributed.client import PSClient
from skest.distributed.cluster_status import cluster_status
from skest.distributed.members import OBSERVER
from skest.distributed.session import Peer, RefusedError
from skest.distributed.wire import Message, Op
from skest.exceptions import PeerLostError

__all__ = ["Observer"]


class Observer:
    """Asks parameter servers how a training is going, again and again.

    It is no task of the training: nobody waits for it, and it may come and go.

    Parameters
    ----------
    ps_addresses : sequence of str
        ``"host:port"`` of each server, in the order of their numbers.
    secret : str, default=None
        Shared by all tasks.
    timeout : float, default=5.0
        Seconds that a server has for an answer.

    Raises
    ------
    ValueError
        If an address is malformed.

    Examples
    --------
    >>> from skest.distributed.observer import Observer
    >>> from skest.distributed.testing import LocalServers
    >>> with LocalServers(num_ps=2) as servers:
    ...     status = Observer(servers.addresses).look()
    >>> status["generation"], status["tasks"], len(status["servers"])
    (0, [], 2)
    """

    def __init__(
        self,
        ps_addresses: Sequence[str],
        secret: str | None = None,
        timeout: float = 5.0,
    ) -> None:
        self._clients = {
            address: PSClient([address], Peer(OBSERVER, 0), secret, timeout)
            for address in ps_addresses
        }

    def look(self) -> dict[str, Any]:
        """Return what `skest.distributed.cluster_status.cluster_status` does.

        A server that does not answer is described as such.
        """
        # One that is gone takes a while, which is no reason to ask others later.
        with ThreadPoolExecutor(len(self._clients) or 1) as threads:
            answers = threads.map(_answer, self._clients.values())
            return cluster_status(dict(zip(self._clients, answers, strict=True)))

    def close(self) -> None:
        """Let go of the sessions."""
        for client in self._clients.values():
            client.close()


def _answer(client: PSClient) -> Message | str:
    """Return what a server says, or why it does not."""
    try:
        try:
            return client.ask(0, Message(Op.STATS))
        except PeerLostError:  # there is no session yet, or none any more
            client.connect()
            return client.ask(0, Message(Op.STATS))
    except (PeerLostError, RefusedError) as error:
        return str(error)
