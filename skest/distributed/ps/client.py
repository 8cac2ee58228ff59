# SPDX-License-Identifier: Apache-2.0
"""`PSClient`: what a worker asks of all parameter servers."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor

from skest.distributed.ps.connection import Peer, RefusedError, Session, connect
from skest.distributed.ps.messages import Message, Op, Status
from skest.distributed.ps.transfer import (
    Arriving,
    block_of,
    blocks_of,
    table_of_contents,
)
from skest.distributed.ps.variables import Part, Variables
from skest.exceptions import PeerLostError

# torch imports its compiler for the first optimizer of a process.
_SECONDS_TO_BEGIN = 60.0


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

    def initialize(
        self, variables: Variables, parts: Sequence[Part[Tensor]], step: int
    ) -> None:
        """Give all servers their variables."""
        for ps, part in enumerate(parts):
            contents = table_of_contents(part)
            announced = {
                "variables": variables.to_json(),
                "tensors": contents,
                "optimizers": part.optimizers,
                "step": step,
            }
            self.ask(ps, Message(Op.INIT, control=announced))
            for block in blocks_of(contents):
                place = block._asdict()
                content = [block_of(part, place)]
                self.ask(ps, Message(Op.PUT, control=place, payload=content))
        self.commit()

    def commit(self) -> None:
        """Let all servers begin with the variables that they were given."""
        self.ask_all(Message(Op.COMMIT), more_seconds=_SECONDS_TO_BEGIN)

    def snapshot(self, kinds: Sequence[str]) -> tuple[int, Iterator[Part[Tensor]]]:
        """Return the global step, and the state of all servers.

        Each part comes when it is asked for.
        """
        replies = self.take_snapshot(kinds)
        parts = (self._fetch(ps, reply) for ps, reply in enumerate(replies))
        return replies[0].step, parts

    def take_snapshot(self, kinds: Sequence[str]) -> list[Message]:
        """Let all servers prepare variables of some kinds, and say what they have."""
        return self.ask_all(Message(Op.SNAPSHOT, control={"kinds": list(kinds)}))

    def _fetch(self, ps: int, reply: Message) -> Part[Tensor]:
        contents = reply.control["tensors"]
        arriving = Arriving(contents, reply.control["optimizers"])
        for block in blocks_of(contents):
            found = self.ask(ps, Message(Op.FETCH, control=block._asdict()))
            arriving.put(block._asdict(), found.payload[0])
        return arriving.complete()
