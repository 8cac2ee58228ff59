# SPDX-License-Identifier: Apache-2.0
"""`PSClient`: what a worker asks of all parameter servers."""

from collections.abc import Callable, Mapping, Sequence

from skest.distributed.ps.connection import Peer, RefusedError, Session, connect
from skest.distributed.ps.messages import Message, Status
from skest.exceptions import PeerLostError


class PSClient:
    """Sessions with all parameter servers of a cluster.

    Parameters
    ----------
    addresses : sequence of str
        ``"host:port"`` of each server, in the order of their numbers.
    peer : Peer
        Which task this is.
    secret : str, default=None
        Shared with the servers.
    timeout : float, default=30.0
        Seconds that a server has for an answer.

    Attributes
    ----------
    step : int
        The global step, as server 0 said last.
    is_stopping : bool
        Whether the chief asks all tasks to stop, as server 0 said last.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        peer: Peer,
        secret: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        self.addresses, self.peer = list(addresses), peer
        self.step = 0
        self.is_stopping = False
        self._secret, self._timeout = secret, timeout
        self._sessions: dict[int, Session] = {}

    def connect(self) -> None:
        """Open sessions with the servers with which there is none.

        Raises
        ------
        PeerLostError
            If one does not answer.
        RefusedError
            If one refuses.
        """
        for ps, address in enumerate(self.addresses):
            if ps not in self._sessions:
                self._sessions[ps] = connect(
                    address, self.peer, self._secret, self._timeout
                )

    def close(self) -> None:
        """Let go of all sessions."""
        for session in self._sessions.values():
            session.close()
        self._sessions = {}

    def begin(
        self, requests: Mapping[int, Message]
    ) -> Callable[..., dict[int, Message]]:
        """Send requests to servers, by their numbers.

        Parameters
        ----------
        requests : dict of int to Message
            What to send.

        Returns
        -------
        callable
            ``finish(more_seconds=0)`` waits for the replies and returns them; so many
            seconds are added to the timeout. It raises PeerLostError, or RefusedError if
            a server refuses.
        """
        if requests.keys() - self._sessions.keys():
            raise PeerLostError("There is no session with the parameter servers.")
        waiting = {ps: self._sessions[ps].ask(r) for ps, r in requests.items()}

        def finish(more_seconds: float = 0.0) -> dict[int, Message]:
            timeout = self._timeout + more_seconds
            replies = {ps: wait(timeout) for ps, wait in waiting.items()}
            if 0 in replies and replies[0].code != Status.REFUSED:
                self.step = max(self.step, replies[0].step)
                self.is_stopping |= "stop" in replies[0].control
            for ps, reply in replies.items():
                if reply.code == Status.REFUSED:
                    raise RefusedError(
                        f"The ps at {self.addresses[ps]} refuses: "
                        f"{reply.control.get('error')}"
                    )
            return replies

        return finish

    def ask(self, ps: int, request: Message) -> Message:
        """Send one request and return the reply."""
        return self.begin({ps: request})()[ps]

    def ask_all(self, request: Message, more_seconds: float = 0.0) -> list[Message]:
        """Send a request to all servers and return the replies in their order."""
        finish = self.begin(dict.fromkeys(range(len(self.addresses)), request))
        replies = finish(more_seconds)
        return [replies[ps] for ps in range(len(self.addresses))]
