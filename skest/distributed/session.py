# SPDX-License-Identifier: Apache-2.0
"""Connections between two processes: process groups of gloo with two ranks.

Each server has a `TCPStore` at its address, where those who want a session leave a
request. Only one who proves to know the secret gets a process group.

Whoever gets one is trusted not to leave the protocol on purpose: gloo ends a process that
receives more bytes than it waits for, and nothing here can prevent that. `Session.send`
never sends more than the other side takes.
"""

import contextlib
import json
import os
import socket
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from skest.distributed.addresses import listen, own_address, split_address
from skest.distributed.authentication import is_proved, proof
from skest.distributed.wire import PROTOCOL, Message, WireError, pack, size_of, unpack
from skest.exceptions import PeerLostError

__all__ = [
    "Listener",
    "Peer",
    "RefusedError",
    "Session",
    "client_options",
    "connect",
]

_SERVER, _CLIENT = 0, 1
_GREETING, _REQUESTS = "skest", "sessions"
_MAX_REQUEST = 4096
_FOREVER = timedelta(days=365)
_MOMENT = timedelta(milliseconds=1)
_INTERFACE = "GLOO_SOCKET_IFNAME"


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
        self._expected: Any = None
        self.bytes_sent = self.bytes_received = 0

    def send(self, message: Message, timeout: timedelta) -> None:
        """Send a message; returns while it is on its way.

        Raises
        ------
        PeerLostError
            If the other process is gone, or did not take the message before in time.
        WireError
            If the message is larger than `limit`.
        """
        self._wait(self._sent, timeout)  # its buffer is used again
        packed = pack(message, self.limit, self._outbox)
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
        work = self._expected = self._begin("recv", inbox)

        def receive(timeout: timedelta) -> Message:
            self._wait(work, timeout)
            message = unpack(inbox)
            self.bytes_received += size_of(inbox)
            return message

        return receive

    def close(self) -> None:
        """Let go of the connection; the other process sees it at once."""
        self._group = self._sent = self._expected = None

    def break_off(self) -> None:
        """Let a thread fail that waits for the next message, unless it has come."""
        # When one wait was in vain gloo gives up the connection, and all waits for it.
        # Its `abort` does not end them.
        with contextlib.suppress(PeerLostError):
            self._wait(self._expected, _MOMENT)

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


class Listener:
    """The side of a server: hands out sessions to those who may have one.

    Parameters
    ----------
    address : str
        ``"host:port"``; port 0 is any that is free.
    secret : str or None
        What others must prove to know.
    timeout : timedelta
        For one who was let in to connect.

    Attributes
    ----------
    address : str
        With the port.
    incarnation : str
        Another one in each process, and never the same again.

    Raises
    ------
    ValueError
        If the host is another machine.
    OSError
        If the port is in use.
    """

    def __init__(self, address: str, secret: str | None, timeout: timedelta) -> None:
        host, _ = split_address(address)
        opened = listen(address)
        own, port = opened.getsockname()[:2]
        self._store = TCPStore(
            host,
            port,
            None,
            True,
            timeout,
            wait_for_workers=False,
            master_listen_fd=opened.detach(),  # it closes it
        )
        self.address = f"{host}:{port}"
        self.incarnation = uuid.uuid4().hex
        self._secret = secret
        self._timeout = timeout
        # All sessions of a process share one thread of gloo: more of them disturb each
        # other.
        self._options = _options(timeout, hostname=own)
        self._waiting = _clone(self._store)  # a store serves one thread at a time
        self._waiting.set_timeout(_FOREVER)
        self._seen: set[str] = set()
        greeting = {"protocol": PROTOCOL, "incarnation": self.incarnation}
        self._store.set(_GREETING, json.dumps(greeting))

    def accept(self, limit: int) -> tuple[Peer, Callable[[], Session]] | None:
        """Wait for a request that may be granted.

        Parameters
        ----------
        limit : int
            Largest message that this side will take, in bytes.

        Returns
        -------
        peer : Peer
            Who asked.
        join : callable
            Makes the session; raises PeerLostError. Call it in a thread of its own.
            None instead of both after `stop`.
        """
        while True:
            text = bytes(self._waiting.queue_pop(_REQUESTS))
            if not text:
                return None
            try:
                request = _request(text)
                peer, sid = self._check(request)
            except WireError as error:
                self._answer(text, {"error": str(error)})
                continue
            self._answer(text, {"limit": limit})
            return peer, partial(self._join, peer, sid, request["limit"])

    def stop(self) -> None:
        """Let `accept` return None."""
        _clone(self._store).queue_push(_REQUESTS, "")

    def _check(self, request: dict[str, Any]) -> tuple[Peer, str]:
        sid, kind, index = (request.get(k) for k in ("sid", *Peer._fields))
        if request.get("protocol") != PROTOCOL:
            raise WireError(
                f"Protocol {PROTOCOL} is spoken here, the request is for "
                f"{request.get('protocol')!r}: use one version of skest for all tasks."
            )
        if not (isinstance(sid, str) and isinstance(kind, str) and type(index) is int):
            raise WireError("The request for a session is not complete.")
        if type(request.get("limit")) is not int:
            raise WireError("The request for a session has no limit.")
        said = (self.incarnation, sid, kind, str(index))
        if not is_proved(request.get("proof"), self._secret, *said):
            raise WireError(
                "The request for a session does not prove the shared secret: set the "
                "same SKEST_SECRET for all tasks."
            )
        if sid in self._seen:
            raise WireError("The request for a session was made before.")
        self._seen.add(sid)
        return Peer(kind, index), sid

    def _answer(self, text: bytes, answer: dict[str, Any]) -> None:
        try:
            sid = _request(text).get("sid")
        except WireError:
            return
        if isinstance(sid, str) and len(sid) == 32:
            self._store.set(f"answer/{sid}", json.dumps(answer))

    def _join(self, peer: Peer, sid: str, limit: int) -> Session:
        store = _clone(self._store)
        group = _group(store, sid, _SERVER, self._options, str(peer))
        store.delete_key(f"answer/{sid}")
        return Session(group, _CLIENT, limit, str(peer))


def client_options(address: str, timeout: timedelta) -> Any:
    """Return options of gloo for all sessions that a client opens.

    Sessions use the interface that leads to the server, unless the environment variable
    ``GLOO_SOCKET_IFNAME`` names another one.

    Raises
    ------
    PeerLostError
        If nothing leads there, now.
    ValueError
        If there is no such interface.
    """
    if name := os.environ.get(_INTERFACE):
        try:
            return _options(timeout, interface=name)
        except RuntimeError as error:
            raise ValueError(
                f"{_INTERFACE!r} names a network interface that is not there: {name!r}."
            ) from error
    try:
        return _options(timeout, hostname=own_address(address))
    except OSError as error:
        raise PeerLostError(
            f"There is no way to the ps at {address}: {error}"
        ) from error


def connect(
    address: str,
    peer: Peer,
    limit: int,
    secret: str | None,
    timeout: timedelta,
    options: Any,
) -> tuple[Session, str]:
    """Open a session with the server at an address.

    Parameters
    ----------
    address : str
        ``"host:port"``.
    peer : Peer
        Who asks.
    limit : int
        Largest message that this side will take, in bytes.
    secret : str or None
        Shared with the server.
    timeout : timedelta
        For every part of it.
    options : ProcessGroupGloo.Options
        What `client_options` returned, for all sessions of this process.

    Returns
    -------
    session : Session
        To it.
    incarnation : str
        Of the server.

    Raises
    ------
    PeerLostError
        If nobody answers in time.
    RefusedError
        If the server refuses; it says why.
    """
    host, port = split_address(address)
    name, sid = f"ps at {address}", uuid.uuid4().hex
    _check_listens(host, port, name, timeout)
    try:
        store = TCPStore(host, port, None, False, timeout, wait_for_workers=False)
        store.set_timeout(timeout)
        incarnation = json.loads(store.get(_GREETING))["incarnation"]
        said = (incarnation, sid, peer.task_type, str(peer.task_index))
        request = {"protocol": PROTOCOL, "sid": sid, "limit": limit}
        request |= {**peer._asdict(), "proof": proof(secret, *said)}
        store.queue_push(_REQUESTS, json.dumps(request))
        answer = json.loads(store.get(f"answer/{sid}"))
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        raise PeerLostError(f"There is no answer from {name}: {first}") from error
    if "error" in answer:
        raise RefusedError(f"The {name} refuses a session. {answer['error']}")
    group = _group(store, sid, _CLIENT, options, name)
    return Session(group, _SERVER, answer["limit"], name), incarnation


def _check_listens(host: str, port: int, name: str, timeout: timedelta) -> None:
    """Raise at once if nobody listens, where a store would try again and again."""
    try:
        socket.create_connection((host, port), timeout.total_seconds()).close()
    except OSError as error:
        raise PeerLostError(f"There is no answer from {name}: {error}") from error


def _clone(store: Any) -> TCPStore:  # the type has no `clone` for type checkers
    """Return another connection to a store, for another thread."""
    cloned: TCPStore = store.clone()
    return cloned


def _request(text: bytes) -> dict[str, Any]:
    try:
        request = json.loads(text) if len(text) <= _MAX_REQUEST else None
    except ValueError:
        request = None
    if not isinstance(request, dict):
        raise WireError("The request for a session is none.")
    return request


def _options(timeout: timedelta, **device: str) -> Any:
    gloo: Any = ProcessGroupGloo  # these parts of it have no public names
    options = gloo._Options()
    options._devices = [gloo.create_device(**device)]
    options._threads = 1
    options._timeout = timeout
    return options


def _group(
    store: TCPStore, sid: str, rank: int, options: Any, name: str
) -> ProcessGroupGloo:
    try:
        return ProcessGroupGloo(PrefixStore(f"session/{sid}", store), rank, 2, options)
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        raise PeerLostError(f"There is no connection with {name}: {first}") from error
