# SPDX-License-Identifier: Apache-2.0
"""`Session`: messages between two processes, which are a process group of gloo.

Whoever has one is trusted not to leave the protocol on purpose: gloo ends a process that
receives more bytes than it waits for, and nothing here can prevent that. `Session.send`
never sends more than the other side takes.
"""

import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributed import ProcessGroupGloo

from skest.distributed.wire import Message, pack, size_of, unpack
from skest.exceptions import PeerLostError

__all__ = ["Peer", "RefusedError", "Session"]

_MOMENT = timedelta(milliseconds=1)


class RefusedError(ValueError):
    """The process at the other end does not do what it was asked for; it says why."""


class Peer(NamedTuple):
    """The task at the other end of a session."""

    task_type: str
    task_index: int

    def __str__(self) -> str:
        return f"{self.task_type} {self.task_index}"


class Session:
    """Messages to and from one other process, in order.

    Parameters
    ----------
    group : ProcessGroupGloo
        Of two ranks.
    other : int
        Rank of the other process.
    limit : int
        Largest message that the other one takes, in bytes.
    name : str
        Of the other one, for errors.
    """

    def __init__(
        self, group: ProcessGroupGloo, other: int, limit: int, name: str
    ) -> None:
        self._group: ProcessGroupGloo | None = group
        self._other = other
        self.limit = limit
        self.name = name
        self._outbox: Tensor | None = None
        self._sent: Any = None
        self._expected: dict[Any, Tensor] = {}
        self.bytes_sent = self.bytes_received = 0

    def settle(self, timeout: timedelta) -> None:
        """Wait until what was sent before is taken, so that `send` need not wait for it.

        Raises
        ------
        PeerLostError
            If the other process is gone, or did not take it in time.
        """
        sent, self._sent = self._sent, None
        self._wait(sent, timeout)

    def send(
        self, message: Message, timeout: timedelta, *, pin_memory: bool = False
    ) -> None:
        """Send a message; returns while it is on its way.

        Parameters
        ----------
        message : Message
            What to send.
        timeout : timedelta
            How long to wait until the message before is taken.
        pin_memory : bool, default=False
            See `skest.distributed.wire.pack`.

        Raises
        ------
        PeerLostError
            If the other process is gone, or did not take the message before in time.
        WireError
            If the message is larger than `limit`.
        """
        self.settle(timeout)  # the buffer is used again
        packed = pack(message, self.limit, self._outbox, pin_memory=pin_memory)
        if self._outbox is None or len(packed) > len(self._outbox):
            self._outbox = packed
        self._sent = self._begin("send", packed)
        self.bytes_sent += len(packed)

    def expect(self, inbox: Tensor) -> Callable[[timedelta], Message]:
        """Prepare to receive the next message.

        Parameters
        ----------
        inbox : Tensor of uint8
            At least as large as the message: what comes goes there at once.

        Returns
        -------
        callable
            ``receive(timeout)`` waits for the message, whose payload is in `inbox`.
            It raises PeerLostError or WireError.
        """
        work = self._begin("recv", inbox)
        # Kept also if nobody calls what is returned, as after Ctrl-C: gloo would take
        # nothing more from the connection.
        self._expected[work] = inbox

        def receive(timeout: timedelta) -> Message:
            self._wait(work, timeout)
            self._expected.pop(work, None)
            message = unpack(inbox)
            self.bytes_received += size_of(inbox)
            return message

        return receive

    def close(self) -> None:
        """Let go of the connection; the other process sees it at once."""
        self._group = self._sent = None
        self._expected = {}

    def break_off(self) -> None:
        """Let a thread fail that waits for the next message, unless it has come."""
        # When one wait was in vain gloo gives up the connection, and all waits for it.
        # Its `abort` does not end them.
        with contextlib.suppress(PeerLostError):
            for work in list(self._expected):
                self._wait(work, _MOMENT)

    def _begin(self, what: str, buffer: Tensor) -> Any:
        if self._group is None:
            raise PeerLostError(f"The session with {self.name} is closed.")
        try:
            return getattr(self._group, what)([buffer], self._other, 0)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _wait(self, work: Any, timeout: timedelta) -> None:
        if work is None:
            return
        try:
            work.wait(timeout)
        except RuntimeError as error:
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> PeerLostError:
        first = str(error).partition("\n")[0]
        return PeerLostError(f"The session with {self.name} broke: {first}")
