# SPDX-License-Identifier: Apache-2.0
"""`PSClient`: what a worker asks of all parameter servers."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta

import torch
from torch import Tensor

from skest.distributed.ps.connection import (
    Peer,
    RefusedError,
    Session,
    client_options,
    connect,
)
from skest.distributed.ps.messages import (
    HEADER_BYTES,
    LIMIT,
    MAX_CONTROL,
    Message,
    Op,
    Status,
)
from skest.distributed.ps.transfer import (
    BLOCK_BYTES,
    Arriving,
    block_of,
    blocks_of,
    table_of_contents,
)
from skest.distributed.ps.variables import Part, Variables
from skest.exceptions import PeerLostError

_ROOM = HEADER_BYTES + MAX_CONTROL + BLOCK_BYTES


class StaleGenerationError(ConnectionError):
    """The servers have restored other variables since those that this is about."""


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
    generation : int
        Of the variables that requests are about.
    step : int
        The global step, as server 0 said last.
    is_stopping : bool
        Whether the chief asks all tasks to stop, as server 0 said last.
    bytes_sent, bytes_received : int
        All messages so far.
    pin_memory : bool
        Whether messages are written into, and read from, memory that a GPU reaches
        without a copy in between; initially False.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        peer: Peer,
        secret: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        self.addresses, self.peer = list(addresses), peer
        self.generation = self.step = 0
        self.is_stopping = False
        self._secret = secret
        self._timeout = timedelta(seconds=timeout)
        self._sessions: list[Session] = []
        self._inboxes: dict[int, list[Tensor]] = {}
        self.pin_memory = False
        self.bytes_sent = self.bytes_received = 0

    def connect(self) -> None:
        """Open a session with every server; closes those that there are.

        Raises
        ------
        PeerLostError
            If one does not answer.
        RefusedError
            If one refuses.
        """
        self.close()
        options = client_options(self.addresses[0], self._timeout)
        for address in self.addresses:
            how = (LIMIT, self._secret, self._timeout, options)
            session, _ = connect(address, self.peer, *how)
            self._sessions.append(session)

    def close(self) -> None:
        """Let go of all sessions."""
        for session in self._sessions:
            self.bytes_sent += session.bytes_sent
            self.bytes_received += session.bytes_received
            session.close()
        self._sessions = []

    def begin(
        self, requests: Mapping[int, Message], rooms: Mapping[int, int] | None = None
    ) -> Callable[..., dict[int, Message]]:
        """Send requests to servers, by their numbers; returns while they are on the way.

        Parameters
        ----------
        requests : dict of int to Message
            Their generation and room are filled in.
        rooms : dict of int to int, default=None
            Bytes of the largest payload of a reply.

        Returns
        -------
        callable
            ``finish(more_seconds=0)`` waits for the replies and returns them; so many
            seconds are added to the timeout. Payloads are valid until the next call
            that begins something. It raises PeerLostError, StaleGenerationError, or
            RefusedError.
        """
        waiting = {}
        for ps, request in requests.items():
            session = self._session(ps)
            room = _ROOM + (rooms or {}).get(ps, 0)
            inbox = self._inbox(ps, room)
            receive = session.expect(inbox)
            message = request._replace(generation=self.generation, room=room)
            session.send(message, self._timeout, pin_memory=self.pin_memory)
            waiting[ps] = (receive, inbox)

        def finish(more_seconds: float = 0.0) -> dict[int, Message]:
            replies = {}
            timeout = self._timeout + timedelta(seconds=more_seconds)
            for ps, (receive, inbox) in waiting.items():
                replies[ps] = receive(timeout)
                self._inboxes.setdefault(ps, []).append(inbox)
            if 0 in replies:
                self.step = max(self.step, replies[0].step)
                self.is_stopping |= "stop" in replies[0].control
            for ps, reply in replies.items():
                self._check(ps, reply)
            return replies

        return finish

    def ask(self, ps: int, request: Message) -> Message:
        """Send one request and return the reply."""
        return self.begin({ps: request})()[ps]

    def ask_all(self, request: Message, more_seconds: float = 0.0) -> list[Message]:
        """Send a request to all servers and return the replies in their order."""
        finish = self.begin({ps: request for ps in range(len(self.addresses))})
        replies = finish(more_seconds)
        return [replies[ps] for ps in range(len(self.addresses))]

    def initialize(
        self, variables: Variables, parts: Sequence[Part], step: int, generation: int
    ) -> None:
        """Give all servers their variables."""
        self.generation = generation
        for ps, part in enumerate(parts):
            contents = table_of_contents(part)
            announced = {
                "variables": variables.to_json(),
                "tensors": contents,
                "optimizers": part.optimizers,
                "generation": generation,
                "step": step,
            }
            self.ask(ps, Message(Op.INIT, control=announced))
            for block in blocks_of(contents):
                place = block._asdict()
                content = [block_of(part, place)]
                self.ask(ps, Message(Op.PUT, control=place, payload=content))
        self.commit(step)

    def commit(self, step: int) -> None:
        """Let all servers begin with the variables that they were given last."""
        for ps in range(len(self.addresses)):
            self.ask(ps, Message(Op.COMMIT))
        self.step = step

    def snapshot(self, kinds: Sequence[str]) -> tuple[int, Iterator[Part]]:
        """Return the global step, and a copy of the state of all servers.

        Those are copies of the same moment; each comes when it is asked for.
        """
        replies = self.take_snapshot(kinds)
        parts = (self.fetch(ps, reply) for ps, reply in enumerate(replies))
        return replies[0].step, parts

    def take_snapshot(self, kinds: Sequence[str]) -> list[Message]:
        """Let all servers copy variables of some kinds, and say what they have.

        They keep the copies until they are fetched or written, or they are asked for INFO
        or another one.
        """
        return self.ask_all(Message(Op.SNAPSHOT, control={"kinds": list(kinds)}))

    def snapshot_bytes(self, reply: Message) -> int:
        """Return the size of the copy that a server took."""
        return sum(block.size for block in blocks_of(reply.control["tensors"]))

    def fetch(self, ps: int, reply: Message) -> Part:
        """Return the copy that a server took; `reply` is what it said of it."""
        contents = reply.control["tensors"]
        arriving = Arriving(contents, reply.control["optimizers"])
        for block in blocks_of(contents):
            found = self.ask(ps, Message(Op.FETCH, control=block._asdict()))
            arriving.put(block._asdict(), found.payload[0])
        return arriving.complete()

    def wait_until(
        self, is_done: Callable[[], bool], seconds: float, what: str
    ) -> None:
        """Ask again and again until something is so.

        Raises
        ------
        TimeoutError
            After so many seconds.
        """
        end = time.monotonic() + seconds
        while not is_done():
            if time.monotonic() > end:
                raise TimeoutError(f"Waited {seconds:g} s in vain {what}.")
            time.sleep(0.02)

    def _session(self, ps: int) -> Session:
        if ps >= len(self._sessions):
            raise PeerLostError("There is no session with the parameter servers.")
        return self._sessions[ps]

    def _inbox(self, ps: int, room: int) -> Tensor:
        free = self._inboxes.setdefault(ps, [])
        while free:
            inbox = free.pop()
            if len(inbox) >= room:
                return inbox
        # Unless it is pinned, pages not used are no memory.
        return torch.empty(room, dtype=torch.uint8, pin_memory=self.pin_memory)

    def _check(self, ps: int, reply: Message) -> None:
        name = f"The ps at {self.addresses[ps]}"
        if reply.code == Status.NOT_READY:
            raise StaleGenerationError(f"{name} has no variables.")
        if reply.code == Status.STALE:
            raise StaleGenerationError(
                f"{name} has been initialized by another task, or anew: it is at "
                f"generation {reply.generation}, this is about {self.generation}."
            )
        if reply.code not in (Status.OK, Status.LATER):
            raise RefusedError(f"{name} refuses: {reply.control.get('error')}")
