# SPDX-License-Identifier: Apache-2.0
"""`Session`: messages between two processes over one authenticated connection.

Each session is one TCP connection. Both ends send a random number in the clear, and
derive from these and the shared secret the keys of that session. Every message has its
number and a code (HMAC-SHA256) that only who knows the secret could make: none can be
changed, left out, repeated or sent to another session, and who does not know the secret
gets no further than his first message.

Between two processes of one machine the code is that of the header alone. Only the kernel
is between them, and a code of all takes three times as long as to send it.
"""

import contextlib
import errno
import hmac
import ipaddress
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skest.distributed.ps.messages import (
    HEADER_BYTES,
    LIMIT,
    MAC_BYTES,
    PROTOCOL,
    Message,
    Op,
    Status,
    WireError,
    pack,
    size_of,
    unpack,
)
from skest.exceptions import PeerLostError

_GREETING = f"skest/{PROTOCOL} ".encode()
_NONCE_BYTES = 32
_HELLO_BYTES = 1024
# All workers of a cluster connect at once when a training begins.
_BACKLOG = 4096


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
    connection : socket
        Just opened; it is closed with the session.
    name : str
        Of the other end, for errors.
    timeout : float, seconds
        How long the other end may be silent in the midst of a message, and before it
        takes what is sent.

    Attributes
    ----------
    bytes_sent, bytes_received : int
        All messages so far.
    """

    def __init__(self, connection: socket.socket, name: str, timeout: float) -> None:
        # Somebody waits for every message: Nagle's algorithm would hold small ones
        # back.
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A host that is gone without a word is noticed also where nobody waits for it.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.name, self.timeout = name, timeout
        self.bytes_sent = self.bytes_received = 0
        self._socket = connection
        self._signs_all = True
        # Who has not proved the secret makes no process reserve more than this.
        self._limit = _HELLO_BYTES
        self._send_key = self._receive_key = b""
        self._n_sent = self._n_received = 0
        self._outbox: Tensor | None = None

    def greet(self, secret: str | None, *, is_server: bool) -> None:
        """Tell the other end a random number, and derive the keys of this session.

        Raises
        ------
        PeerLostError
            If the other end breaks off.
        RefusedError
            If it speaks another protocol.
        """
        # Where a proxy is in between, one end may be on the machine of the other only as
        # that one sees it.
        is_near = is_loopback(self._socket.getpeername()[0])
        # Both ends have a part in the keys, so that a session that somebody has
        # recorded can be played back to neither.
        own = _GREETING + bytes([is_near]) + secrets.token_bytes(_NONCE_BYTES)
        found = bytearray(len(own))
        self._write(own)
        # Both send first and read then: neither waits for the other to begin.
        self._read(memoryview(found), self.timeout)
        if not found.startswith(_GREETING):
            raise RefusedError(
                f"{self.name} does not speak protocol {PROTOCOL} of skest: use one "
                "version of it for all tasks."
            )
        self._signs_all = not (is_near and found[len(_GREETING)])
        said = own + found if is_server else bytes(found) + own
        # Without a secret anybody can make the codes, which still tell sessions apart.
        shared = hmac.digest((secret or "").encode(), said, "sha256")
        # A key for each direction: what one end has sent does not pass when it comes
        # back.
        keys = [hmac.digest(shared, end, "sha256") for end in (b"server", b"client")]
        self._send_key, self._receive_key = keys if is_server else reversed(keys)

    def admit(self) -> None:
        """Take large messages from now on: the other end has proved the secret."""
        self._limit = LIMIT

    def send(self, message: Message) -> None:
        """Send a message.

        Raises
        ------
        PeerLostError
            If the other process is gone, or does not take it in time.
        WireError
            If the message is too large.
        """
        self.send_packed(self.pack(message))

    def pack(self, message: Message) -> memoryview:
        """Return a message as `send_packed` takes it, before another one is packed."""
        packed = pack(message, self._n_sent, self._limit, self._outbox)
        if self._outbox is None or len(packed) > len(self._outbox):
            self._outbox = packed
        content = _view(packed)
        content[:MAC_BYTES] = self._code(self._send_key, content[MAC_BYTES:])
        return content

    def send_packed(self, content: memoryview) -> None:
        """Send what `pack` returned."""
        self._write(content)
        self._n_sent += 1
        self.bytes_sent += len(content)

    def receive(self, timeout: float | None = None) -> Message:
        """Return the next message; its payload is memory of its own.

        Parameters
        ----------
        timeout : float, seconds, default=None
            How long to wait until it begins; None is for ever.

        Raises
        ------
        PeerLostError
            If the other process is gone or silent.
        WireError
            If what comes is not what the protocol allows, or not from the other end.
        """
        # The code lies before what it signs; where the message ends, the header says.
        begin = torch.empty(MAC_BYTES + HEADER_BYTES, dtype=torch.uint8)
        self._read(_view(begin), timeout)
        code, header = begin[:MAC_BYTES], begin[MAC_BYTES:]
        whole = torch.empty(size_of(header, self._limit), dtype=torch.uint8)
        whole[:HEADER_BYTES] = header
        content = _view(whole)
        self._read(content[HEADER_BYTES:], self.timeout)
        expected = self._code(self._receive_key, content)
        message, sequence = None, -1
        # Takes as long wherever the two differ, so that the time tells nothing of the
        # code.
        if hmac.compare_digest(code.numpy().tobytes(), expected):
            message, sequence = unpack(whole)
        if message is None or sequence != self._n_received:
            raise WireError(f"A message came that is not from {self.name}.")
        self._n_received += 1
        self.bytes_received += MAC_BYTES + len(whole)
        return message

    def close(self) -> None:
        """Close the connection; the other process sees it at once."""
        with contextlib.suppress(OSError):  # the other end was first
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        self._socket.close()

    def _code(self, key: bytes, content: memoryview) -> bytes:
        signed = content if self._signs_all else content[:HEADER_BYTES]
        return hmac.digest(key, signed, "sha256")

    def _write(self, content: bytes | memoryview) -> None:
        try:
            self._socket.settimeout(self.timeout)
            self._socket.sendall(content)
        except OSError as error:
            raise self._lost(error) from error

    def _read(self, into: memoryview, timeout: float | None) -> None:
        try:
            while into:
                self._socket.settimeout(timeout)
                n_read = self._socket.recv_into(into)
                if not n_read:
                    raise ConnectionResetError("the other end has closed it")
                into, timeout = into[n_read:], self.timeout
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> PeerLostError:
        why = str(error)
        if isinstance(error, TimeoutError):
            why = "there was no answer in time ('timeout' of AsyncParameterServer)"
        return PeerLostError(f"The session with {self.name} broke: {why}.")


def welcome(
    connection: socket.socket, secret: str | None, timeout: float
) -> tuple[Peer, Session]:
    """Be the server: open a session for who proves the secret.

    Parameters
    ----------
    connection : socket
        Just accepted; it is closed if there will be no session.
    secret : str or None
        What must be proved; None is nothing.
    timeout : float, seconds
        For each message.

    Returns
    -------
    peer : Peer
        Who the other end says that it is.
    session : Session
        To it.

    Raises
    ------
    PeerLostError
        If the other end breaks off.
    RefusedError, WireError
        If it does not prove the secret, or is of another version.
    """
    host, port = connection.getpeername()[:2]
    session = Session(connection, f"{host}:{port}", timeout)
    try:
        session.greet(secret, is_server=True)
        try:
            hello = session.receive(timeout)
        except WireError:
            # Of no use to who wants in, and tells who means well what is wrong.
            connection.sendall(bytes(MAC_BYTES + HEADER_BYTES))
            raise WireError(
                "it does not prove the shared secret: set the same SKEST_SECRET for all "
                "tasks."
            ) from None
        kind, index = (hello.control.get(key) for key in Peer._fields)
        # It is going to be logged: nobody shall send escapes to a terminal.
        is_name = isinstance(kind, str) and kind.isascii() and kind.isprintable()
        if hello.code != Op.HELLO or not is_name or type(index) is not int:
            raise WireError("it does not say who it is.")
        session.send(Message(Op.HELLO))
    except OSError as error:
        session.close()
        raise PeerLostError(f"{session.name} broke off: {error}") from error
    except BaseException:
        session.close()
        raise
    session.admit()
    peer = Peer(str(kind), int(index))
    session.name = f"{peer} at {session.name}"
    return peer, session


def connect(address: str, peer: Peer, secret: str | None, timeout: float) -> Session:
    """Open a session with the server at an address.

    Parameters
    ----------
    address : str
        ``"host:port"``.
    peer : Peer
        Who asks.
    secret : str or None
        Shared with the server.
    timeout : float, seconds
        For every part of it.

    Raises
    ------
    PeerLostError
        If nobody answers in time.
    RefusedError
        If the server is of another version, or one of both ends does not know the
        secret of the other.
    """
    name = f"ps at {address}"
    try:
        opened = socket.create_connection(split_address(address), timeout)
    except OSError as error:
        raise PeerLostError(f"There is no answer from the {name}: {error}") from error
    session = Session(opened, name, timeout)
    try:
        session.greet(secret, is_server=False)
        session.send(Message(Op.HELLO, control=peer._asdict()))
        try:
            session.receive(timeout)
        except WireError:
            raise RefusedError(
                f"The {name} does not know the secret of this task: set the same "
                "SKEST_SECRET for all tasks."
            ) from None
    except BaseException:
        session.close()
        raise
    session.admit()
    return session


def _view(content: Tensor) -> memoryview:
    """Return the memory of a tensor of bytes."""
    array: Any = content.numpy()
    return memoryview(array)


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


def listen(address: str, secret: str | None) -> socket.socket:
    """Return a socket that listens at one address, as a parameter server does.

    Parameters
    ----------
    address : str
        ``"host:port"``; port 0 is any that is free.
    secret : str or None
        What others will have to prove.

    Raises
    ------
    ValueError
        If the host is another machine, or all addresses of this one; or if other
        machines reach it and there is no secret, unless ``SKEST_WITHOUT_SECRET=1`` is in
        the environment.
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
        # At one address, not at all: a machine may be in a network that is not trusted.
        opened = socket.create_server(place[:2], family=family, backlog=_BACKLOG)
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
    may_lack_secret = os.environ.get("SKEST_WITHOUT_SECRET") == "1"
    if secret is None and not is_loopback(str(place[0])) and not may_lack_secret:
        opened.close()
        raise ValueError(
            f"A parameter server does not listen at {address} without a secret: whoever "
            "reaches it could read and change the model. Set SKEST_SECRET to the same "
            "string for all tasks, or SKEST_WITHOUT_SECRET=1 where all who reach it are "
            "trusted."
        )
    return opened


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
        # Called again until all servers are ready: sessions that stand are kept.
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

    def ask_each(
        self, requests: Mapping[int, Message], more_seconds: float = 0.0
    ) -> dict[int, Message]:
        """Send requests to servers, by their numbers, and return the replies.

        Parameters
        ----------
        requests : dict of int to Message
            What to send.
        more_seconds : float, default=0.0
            Added to the timeout.

        Raises
        ------
        PeerLostError
            If one does not answer.
        RefusedError
            If one refuses.
        """
        if requests.keys() - self._sessions.keys():
            raise PeerLostError("There is no session with the parameter servers.")
        # One that is too large is told before any is sent, so that no reply is owed.
        packed = {ps: self._sessions[ps].pack(r) for ps, r in requests.items()}
        # All are asked before the first reply is read, so that the servers work side by
        # side.
        for ps, content in packed.items():
            self._sessions[ps].send_packed(content)
        timeout = self._timeout + more_seconds
        replies = {ps: self._sessions[ps].receive(timeout) for ps in requests}
        # Every push goes to all servers; that number 0 counts is the global step.
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

    def ask(self, ps: int, request: Message) -> Message:
        """Send one request and return the reply."""
        return self.ask_each({ps: request})[ps]

    def ask_all(self, request: Message, more_seconds: float = 0.0) -> list[Message]:
        """Send a request to all servers and return the replies in their order."""
        requests = dict.fromkeys(range(len(self.addresses)), request)
        return list(self.ask_each(requests, more_seconds).values())
