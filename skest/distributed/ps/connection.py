# SPDX-License-Identifier: Apache-2.0
"""`Session`: messages between two processes, and how these come to it."""

import contextlib
import errno
import ipaddress
import json
import logging
import os
import secrets
import socket
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor
from torch.distributed import (
    PrefixStore,
    ProcessGroupGloo,
    QueueEmptyError,
    Store,
    TCPStore,
)

from skest.distributed.authentication import is_proved, may_lack_secret, proof
from skest.distributed.ps.messages import (
    PROTOCOL,
    Message,
    Op,
    WireError,
    pack,
    size_of,
    unpack,
)
from skest.exceptions import PeerLostError

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
            See `skest.distributed.ps.messages.pack`.

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


#: Room for each of these messages.
HELLO_BYTES = 1024
_SERVER, _CLIENT = "server", "client"


def welcome(
    session: Session, secret: str | None, agreed: tuple[str, ...], timeout: timedelta
) -> None:
    """Be the server: let the other end prove the secret, then prove it to that.

    Parameters
    ----------
    session : Session
        In which nothing was said yet.
    secret : str or None
        What must be proved; None is nothing.
    agreed : tuple of str
        What both ends must know of the session.
    timeout : timedelta
        For each message.

    Raises
    ------
    PeerLostError
        If the other end breaks off, or does not prove the secret.
    WireError
        If what it says is no message.
    """
    nonce = secrets.token_hex()
    hear = _expect(session)
    session.send(Message(Op.HELLO, control={"nonce": nonce}), timeout)
    heard = hear(timeout)
    said = (*agreed, nonce, str(heard.control.get("nonce")))
    is_hello = heard.code == Op.HELLO
    if not (is_hello and is_proved(heard.control.get("proof"), secret, _CLIENT, *said)):
        raise PeerLostError(
            f"Who came as {session.name} did not prove the shared secret, or asked for "
            "something before."
        )
    shown = {"proof": proof(secret, _SERVER, *said)}
    session.send(Message(Op.HELLO, control=shown), timeout)


def introduce(
    session: Session, secret: str | None, agreed: tuple[str, ...], timeout: timedelta
) -> None:
    """Be the client: prove the secret, and let the server prove it.

    Parameters
    ----------
    session, secret, agreed, timeout
        As in `welcome`.

    Raises
    ------
    PeerLostError
        If the server breaks off.
    RefusedError
        If it does not prove the secret.
    WireError
        If what it says is no message.
    """
    nonce = secrets.token_hex()
    said = (*agreed, str(_expect(session)(timeout).control.get("nonce")), nonce)
    shown = {"nonce": nonce, "proof": proof(secret, _CLIENT, *said)}
    hear = _expect(session)
    session.send(Message(Op.HELLO, control=shown), timeout)
    if not is_proved(hear(timeout).control.get("proof"), secret, _SERVER, *said):
        raise RefusedError(
            f"The {session.name} does not prove the shared secret: set the same "
            "SKEST_SECRET for all tasks."
        )


def _expect(session: Session) -> Callable[[timedelta], Message]:
    return session.expect(torch.empty(HELLO_BYTES, dtype=torch.uint8))


_BACKLOG = 4096


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``"host:port"``; brackets of IPv6 are left out.

    Raises
    ------
    ValueError
        If it is something else.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(
            f"The address of a parameter server must be 'host:port'; got {address!r}."
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_loopback(host: str) -> bool:
    """Tell whether an IP address is one that only this machine reaches."""
    return ipaddress.ip_address(host).is_loopback


def listen(address: str) -> socket.socket:
    """Return a socket that listens at one address.

    A store that opens its own listens at all addresses of the machine.

    Parameters
    ----------
    address : str
        ``"host:port"``; port 0 is any that is free.

    Raises
    ------
    ValueError
        If the host is another machine, or all addresses of this one.
    OSError
        If the port is in use.
    """
    host, port = split_address(address)
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if ipaddress.ip_address(place[0]).is_unspecified:
            raise ValueError(
                f"A parameter server can't listen at {address!r}, which stands for all "
                "addresses of a machine: the cluster must have one that other tasks can "
                "connect to."
            )
        return socket.create_server(place[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise ValueError(
                f"A parameter server can't listen at {address!r}: {host!r} is no address "
                f"of this machine, {socket.gethostname()!r} ({error}). Start it where the "
                "cluster says that it is, or correct the cluster for all tasks."
            ) from error
        raise OSError(
            error.errno,
            f"A parameter server can't listen at {address!r}: {error.strerror}. Choose a "
            "port that is free.",
        ) from error


def own_address(address: str) -> str:
    """Return the address of this machine on the way to another one.

    Parameters
    ----------
    address : str
        ``"host:port"`` of the other one.

    Raises
    ------
    OSError
        If no way leads there, now.
    """
    host, port = split_address(address)
    found, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    with socket.socket(*found[:3]) as probe:
        probe.connect(found[4])  # sends nothing, but chooses the way
        own: str = probe.getsockname()[0]
    return own


_logger = logging.getLogger("skest")

_RENDEZVOUS_SERVER, _RENDEZVOUS_CLIENT = 0, 1
_GREETING, _REQUESTS, _PREFIX = "skest", "sessions", "session"
_MAX_TEXT = 4096
_FOREVER = timedelta(days=365)
_INTERFACE = "GLOO_SOCKET_IFNAME"
# Lines of a log in a second: anybody may leave requests, as fast as the store takes them.
_MOST_LINES = 10


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
        If the host is another machine, or other machines reach it and there is no
        secret, unless ``SKEST_WITHOUT_SECRET=1`` is in the environment.
    OSError
        If the port is in use.
    """

    def __init__(self, address: str, secret: str | None, timeout: timedelta) -> None:
        host, _ = split_address(address)
        opened = listen(address)
        own, port = opened.getsockname()[:2]
        if secret is None and not is_loopback(own) and not may_lack_secret():
            opened.close()
            raise ValueError(
                f"A parameter server does not listen at {host}:{port} without a secret: "
                "whoever reaches it could read and change the model. Set SKEST_SECRET to "
                "the same string for all tasks, or SKEST_WITHOUT_SECRET=1 where all who "
                "reach it are trusted."
            )
        self._store = TCPStore(
            host,
            port,
            None,
            True,
            timeout,
            wait_for_workers=False,
            master_listen_fd=opened.detach(),  # it closes it
        )
        self.address = f"{address.rpartition(':')[0]}:{port}"
        self.incarnation = uuid.uuid4().hex
        self._secret = secret
        self._timeout = timeout
        # All sessions of a process share one thread of gloo: more of them disturb each
        # other.
        self._options = _options(timeout, hostname=own)
        self._waiting = _clone(self._store)  # a store serves one thread at a time
        self._waiting.set_timeout(_FOREVER)
        self._seen: set[str] = set()
        self._second, self._n_lines = 0.0, 0
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
            Makes the session; raises PeerLostError or WireError if that fails, or if
            it is another one who comes, and DistError if the server itself cannot be
            reached. Call it in a thread of its own.
            None instead of both after `stop`.
        """
        while True:
            try:
                text = bytes(self._waiting.queue_pop(_REQUESTS))
            except QueueEmptyError:  # the store is open: somebody took it before
                self._warn(f"Somebody takes requests for sessions of {self.address}.")
                continue
            if not text:
                return None
            request: dict[str, Any] = {}
            try:
                request = _object(text)
                peer, sid = self._check(request)
            except WireError as error:
                self._warn(f"{_who(request)} gets no session: {error}")
                self._answer(text, {"error": str(error)})
                continue
            self._answer(text, {"limit": limit})
            agreed = _agreed(self.incarnation, sid, peer, request["limit"], limit)
            name = _who(request)
            return peer, partial(self._join, name, sid, request["limit"], agreed)

    def stop(self) -> None:
        """Let `accept` return None."""
        _clone(self._store).queue_push(_REQUESTS, "")

    def _warn(self, text: str) -> None:
        now = time.monotonic()
        if now - self._second >= 1:
            if self._n_lines > _MOST_LINES:
                text += f" ({self._n_lines - _MOST_LINES} such lines were left out.)"
            self._second, self._n_lines = now, 0
        self._n_lines += 1
        if self._n_lines <= _MOST_LINES:
            _logger.warning("%s", text)

    def _check(self, request: dict[str, Any]) -> tuple[Peer, str]:
        sid, kind, index = (request.get(k) for k in ("sid", *Peer._fields))
        if request.get("protocol") != PROTOCOL:
            raise WireError(
                f"Protocol {PROTOCOL} is spoken here, the request is for "
                f"{request.get('protocol')!r}: use one version of skest for all tasks."
            )
        if not (_is_name(sid) and _is_name(kind) and type(index) is int):
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
            sid = _object(text).get("sid")
        except WireError:
            return
        if _is_name(sid) and len(sid) == 32:
            self._store.set(f"answer/{sid}", json.dumps(answer))

    def _join(
        self, name: str, sid: str, limit: int, agreed: tuple[str, ...]
    ) -> Session:
        store = _clone(self._store)
        try:
            group, places = _group(store, sid, _RENDEZVOUS_SERVER, self._options, name)
            session = Session(group, _RENDEZVOUS_CLIENT, HELLO_BYTES, name)
            welcome(session, self._secret, (*agreed, *places), self._timeout)
        finally:  # when both have connected, or will not
            for key in (f"answer/{sid}", *_keys_of_group(sid)):
                store.delete_key(key)
        session.limit = limit
        return session


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
        If the server refuses, and says why; or does not prove the secret.
    """
    host, port = split_address(address)
    name, sid = f"ps at {address}", uuid.uuid4().hex
    own = _check_answers(host, port, name, timeout)
    try:
        store = TCPStore(host, port, None, False, timeout, wait_for_workers=False)
        store.set_timeout(timeout)
        incarnation = str(_object(store.get(_GREETING)).get("incarnation"))
        said = (incarnation, sid, peer.task_type, str(peer.task_index))
        request = {"protocol": PROTOCOL, "sid": sid, "limit": limit, "from": own}
        request |= {**peer._asdict(), "proof": proof(secret, *said)}
        store.queue_push(_REQUESTS, json.dumps(request))
        answer = _object(store.get(f"answer/{sid}"))
        if "error" in answer:
            raise RefusedError(f"The {name} refuses a session. {answer['error']}")
        if type(answer.get("limit")) is not int:
            raise WireError("The answer has no limit.")
        group, places = _group(store, sid, _RENDEZVOUS_CLIENT, options, name)
        session = Session(group, _RENDEZVOUS_SERVER, HELLO_BYTES, name)
        agreed = _agreed(incarnation, sid, peer, limit, answer["limit"])
        introduce(session, secret, (*agreed, *places), timeout)
    except (RuntimeError, WireError) as error:
        first = str(error).partition("\n")[0]
        raise PeerLostError(f"There is no answer from {name}: {first}") from error
    session.limit = answer["limit"]
    return session, incarnation


def _check_answers(host: str, port: int, name: str, timeout: timedelta) -> str:
    """Return the address of this machine on the way there.

    Raises PeerLostError if nobody listens, or a process that stands still: a store would
    try again and again, and wait for an answer without a limit. Who is there closes a
    connection on which nothing comes any more.
    """
    try:
        with socket.create_connection((host, port), timeout.total_seconds()) as probe:
            own: str = probe.getsockname()[0]
            with contextlib.suppress(ConnectionResetError):
                probe.shutdown(socket.SHUT_WR)
                probe.recv(1)
            return own
    except OSError as error:
        raise PeerLostError(f"There is no answer from {name}: {error}") from error


def _clone(store: Any) -> TCPStore:  # the type has no `clone` for type checkers
    """Return another connection to a store, for another thread."""
    cloned: TCPStore = store.clone()
    return cloned


def _object(text: bytes) -> dict[str, Any]:
    """Return a JSON object that may have been written by anybody."""
    try:
        found = json.loads(text) if len(text) <= _MAX_TEXT else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise WireError("What was left in the store is no request and no answer.")
    return found


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and value.isascii() and value.isprintable()


def _who(request: dict[str, Any]) -> str:
    """Return who left a request; a store knows no address but what is said there."""
    kind, index, own = (request.get(key) for key in (*Peer._fields, "from"))
    if not (_is_name(kind) and _is_name(own) and type(index) is int):
        return "Somebody who left no address"
    return f"{Peer(kind, index)} at {own}"[:200]


def _agreed(
    incarnation: str, sid: str, peer: Peer, client_limit: Any, server_limit: Any
) -> tuple[str, ...]:
    """Return what both ends must know of a session."""
    return (incarnation, sid, *map(str, (*peer, client_limit, server_limit)))


def _options(timeout: timedelta, **device: str) -> Any:
    gloo: Any = ProcessGroupGloo  # these parts of it have no public names
    options = gloo._Options()
    options._devices = [gloo.create_device(**device)]
    options._threads = 1
    options._timeout = timeout
    return options


def _keys_of_group(sid: str) -> list[str]:
    """Return what a group of two ranks leaves in the store."""
    return [
        f"{_PREFIX}/{sid}/0/{rank}" for rank in (_RENDEZVOUS_SERVER, _RENDEZVOUS_CLIENT)
    ]


def _group(
    store: TCPStore, sid: str, rank: int, options: Any, name: str
) -> tuple[ProcessGroupGloo, list[str]]:
    """Return a group of two ranks, and the places of both as this end knows them."""
    places = _Places(PrefixStore(f"{_PREFIX}/{sid}", store))
    try:
        group = ProcessGroupGloo(places, rank, 2, options)
    except RuntimeError as error:
        first = str(error).partition("\n")[0]
        raise PeerLostError(f"There is no connection with {name}: {first}") from error
    return group, [places.told[key].hex() for key in sorted(places.told)]


class _Places(Store):
    """The store of a group, which keeps what each rank tells of where it is.

    Another's is read once, and its own never, so that both are as the group uses them,
    whatever others write into the store.
    """

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store
        self.told: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        self.told[key] = bytes(value)
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        if key not in self.told:
            self.told[key] = bytes(self._store.get(key))
        return self.told[key]

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        self._store.wait([key for key in keys if key not in self.told], *timeout)
